// SPDX-License-Identifier: Apache-2.0
//! A wrong answer does not compile: each file of `tests/misuse` is one, with the compiler's message beside it.
//! `TRYBUILD=overwrite cargo test -p nri-plugin --test misuse` writes the messages anew.

#[test]
fn misuse_of_the_builders_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
