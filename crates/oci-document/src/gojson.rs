// SPDX-License-Identifier: Apache-2.0
//! Names of JSON members as Go compares them: a decoder in Go matches a member with a field whose
//! name differs only in case. This matters if a person, an image or a tenant may have written what
//! an engine or runc reads; JSON written by Go has the fields' exact names.
//!
//! Go folds letter by letter: two letters beyond ASCII fold to ASCII ones (U+017F to s, U+212A to
//! k). No letter folds to two ("ß" is not "ss"), and neither Turkish i folds to i. Reference: Go
//! `encoding/json`, `fold.go`; `tests/engines/interop/names.rs` asks Go about every letter.

/// Folds all spellings of a field to one. Field names are ASCII, and of the letters beyond ASCII
/// only U+017F and U+212A can match an ASCII one.
pub fn fold(name: &str) -> String {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    name.chars().map(fold).collect()
}

/// Whether Go matches a member of this name with `field`.
pub fn is_field(name: &str, field: &str) -> bool {
    name.eq_ignore_ascii_case(field) || (!name.is_ascii() && fold(name) == fold(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_matches_a_field_if_and_only_if_go_matches_it() {
        for name in ["disk", "DISK", "di\u{17f}k", "dis\u{212a}", "DI\u{17f}\u{212a}"] {
            assert!(is_field(name, "disk") && fold(name) == "disk", "{name}");
        }
        for (name, field) in [
            ("d\u{131}sk", "disk"),
            ("D\u{130}SK", "disk"),
            ("con\u{fb01}g", "config"),
            ("cla\u{df}", "class"),
            ("\u{ff4b}ey", "key"),
            ("", "a"),
            ("a ", "a"),
        ] {
            assert!(!is_field(name, field), "{name}");
        }
    }
}
