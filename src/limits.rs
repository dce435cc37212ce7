// SPDX-License-Identifier: Apache-2.0
//! The limits of everything whose length a tenant, a plugin or an engine chooses (D54), each where
//! it enters. Beyond one, a text is cut and its length is stated; an identity, and a list that
//! protects, is refused. Limits of frames and documents stand with their readers.

/// A plugin's name, in bytes. It becomes a file name, a label of metrics and a table's column.
pub(crate) const PLUGIN_NAME: usize = 64;
/// The NRI version that a plugin states, in bytes.
pub(crate) const NRI_VERSION: usize = 64;
/// The plugins that one pod may require with its annotations. More than any node has; a list that is
/// cut would let the pod pass without the rest, so the pod is refused.
pub(crate) const REQUIRED_PLUGINS: usize = 64;
/// Claims of one container that its engine contradicts: each is a line of the log and of the record.
pub(crate) const CONTRADICTIONS: usize = 8;
/// Foreign text inside one of our lines, in bytes: a refusal, a parser's complaint.
pub(crate) const QUOTED: usize = 4 << 10;

/// The largest files that are read whole, in bytes; a larger one is refused. Settings: the
/// configuration, CDI's files, classes, a plugin's own, which has to fit into a message.
pub(crate) const SETTINGS_FILE: usize = 4 << 20;
/// A file of the kernel: the mounts and the sockets of a large node are megabytes.
pub(crate) const KERNEL_FILE: usize = 64 << 20;
/// A file of a runtime or an engine about one container: its state, its exit code, its PID.
pub(crate) const CONTAINER_FILE: usize = 16 << 20;
/// A file of the run directory: a record has what plugins and engines said of one container.
pub(crate) const OWN_FILE: usize = 64 << 20;
/// A program that is compared with this one.
pub(crate) const PROGRAM_FILE: usize = 256 << 20;

/// At most `most` bytes of `text`, cut between characters, and then its length.
pub(crate) fn cut(text: &str, most: usize) -> std::borrow::Cow<'_, str> {
    if text.len() <= most {
        return text.into();
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}… ({} bytes)", &text[..end], text.len()).into()
}

/// Keeps the first `most` of these lines, and says how many more there are.
pub(crate) fn list_first(lines: &mut Vec<String>, most: usize) {
    let more = lines.len().saturating_sub(most);
    if more > 0 {
        lines.truncate(most);
        lines.push(format!("{more} more"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_keeps_its_first_lines_and_their_number() {
        let mut lines: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        list_first(&mut lines, 2);
        assert_eq!(lines, ["0", "1", "98 more"]);
        list_first(&mut lines, 3);
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut("äöü", 6), "äöü");
        assert_eq!(cut("äöü", 5), "äö… (6 bytes)");
        assert_eq!(cut("", 0), "");
    }
}
