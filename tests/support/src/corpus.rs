// SPDX-License-Identifier: Apache-2.0
//! Reads the command lines of `fixtures/argv/*.txt`.
//!
//! One case per line: the words, ` => `, and their meaning. Words are separated by blanks; a word
//! with a blank in it, an empty one and `=>` itself are in double quotes; `\xff`, `\n`, `\t`, `\"`
//! and `\\` are escapes everywhere. A line that begins with `by stdin:` belongs to the case above
//! it. `#` begins a comment line. Absent facts are not named: a case with `verb=state at=1 id=c1`
//! claims that there is no root, no bundle and so on.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One command line and its meaning.
#[derive(Debug)]
pub struct Case {
    /// The file's name, without its folder.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The words, with `argv[0]`.
    pub argv: Vec<OsString>,
    /// The result of [`read`](nri_runc::testing::argv::read), as written.
    pub want: String,
    /// For an update: the words that take the resources from standard input.
    pub by_stdin: Option<Vec<OsString>>,
}

/// The corpus files, sorted.
pub fn files() -> Vec<PathBuf> {
    let folder = crate::program::project().join("fixtures/argv");
    let entries = std::fs::read_dir(folder).expect("fixtures/argv is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "txt"));
    files.sort();
    files
}

/// Every case of every file.
pub fn load() -> Vec<Case> {
    files().iter().flat_map(|path| load_file(path)).collect()
}

fn load_file(path: &Path) -> Vec<Case> {
    let file = path.file_name().expect("a file").to_string_lossy().into_owned();
    let text = std::fs::read_to_string(path).expect("a corpus file is UTF-8");
    let mut cases: Vec<Case> = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let line = index + 1;
        if is_comment(text) {
            continue;
        }
        if let Some(rest) = by_stdin(text) {
            let case = cases.last_mut().expect("`by stdin:` follows a case");
            assert!(case.want.starts_with("verb=update"), "{}:{line}: no update", case.file);
            case.by_stdin = Some(words(rest));
            continue;
        }
        let (left, want) = halves(text);
        let want = want.to_owned();
        assert!(!want.is_empty(), "{file}:{line}: no expectation; run with UPDATE_GOLDEN=1");
        cases.push(Case { file: file.clone(), line, argv: words(left), want, by_stdin: None });
    }
    cases
}

/// Whether a line has no case.
pub fn is_comment(line: &str) -> bool {
    line.trim().is_empty() || line.starts_with('#')
}

/// The words of a `by stdin:` line.
pub fn by_stdin(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("by stdin:")
}

/// The words and the expectation of a case, which may be missing.
pub fn halves(line: &str) -> (&str, &str) {
    let is_outside_quotes =
        |at: usize| line[..at].replace("\\\"", "").matches('"').count().is_multiple_of(2);
    let mut arrows = line.match_indices("=>").map(|(at, _)| at);
    let (left, right) = match arrows.find(|at| is_outside_quotes(*at)) {
        Some(at) => (&line[..at], &line[at + 2..]),
        None => (line, ""),
    };
    (left.trim_end(), right.trim())
}

/// Splits a line into words.
pub fn words(text: &str) -> Vec<OsString> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut is_quoted = false;
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' if !is_quoted => words.extend(word.take().map(OsString::from_vec)),
            b'"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            b'\\' => word.get_or_insert_default().push(escaped(&mut bytes, text)),
            byte => word.get_or_insert_default().push(byte),
        }
    }
    assert!(!is_quoted, "an open quote: {text}");
    words.extend(word.take().map(OsString::from_vec));
    words
}

fn escaped(bytes: &mut impl Iterator<Item = u8>, text: &str) -> u8 {
    match bytes.next() {
        Some(b'n') => b'\n',
        Some(b't') => b'\t',
        Some(byte @ (b'"' | b'\\')) => byte,
        other => {
            assert_eq!(other, Some(b'x'), "no such escape: {text}");
            let digits: String = bytes.take(2).map(char::from).collect();
            u8::from_str_radix(&digits, 16).expect("two hexadecimal digits")
        }
    }
}
