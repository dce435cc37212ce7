// SPDX-License-Identifier: Apache-2.0
//! What a call of the program came to, and a process that ends with its test.

use std::process::{Child, Output};

/// It succeeded; else its standard error is shown.
#[track_caller]
pub fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// It failed with one line that has all these words.
#[track_caller]
pub fn fails(output: &Output, words: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && line.lines().count() == 1, "{line}");
    for word in words {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
}

/// A process that is killed when its test ends.
pub struct Started(pub Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}
