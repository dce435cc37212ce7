// SPDX-License-Identifier: Apache-2.0
//! Invalid answers do not compile: each file of `tests/misuse` is one, with the compiler's message
//! next to it. `TRYBUILD=overwrite cargo test -p nri-plugin --test misuse` rewrites the messages.

#[test]
fn misuse_of_the_builders_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
