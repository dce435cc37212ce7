// SPDX-License-Identifier: Apache-2.0
//! The operator's rules: each kind of them in golden cases, properties that hold for any rules, and
//! what they do to plugins, containers and operators with the built binary.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod case;
mod hidden;
mod host;
mod origin;
mod policy;
mod properties;

/// Every folder of `fixtures/rules`.
#[test]
fn each_golden_case_is_decided_as_it_says() {
    let cases = case::all();
    assert!(cases.len() >= 20, "{} cases", cases.len());
    for case in cases {
        let decided = case.decide();
        assert_eq!(decided, case.verdict(&decided), "{}", case.name);
    }
}
