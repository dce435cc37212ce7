// SPDX-License-Identifier: Apache-2.0
//! The operator's rules: golden cases of each kind, and properties that hold for any rules.

mod case;
mod properties;

/// Every folder of `fixtures/rules`.
#[test]
fn each_golden_case_is_decided_as_expected() {
    let cases = case::all();
    assert!(cases.len() >= 20, "{} cases", cases.len());
    for case in cases {
        let decided = case.decide();
        assert_eq!(decided, case.verdict(&decided), "{}", case.name);
    }
}
