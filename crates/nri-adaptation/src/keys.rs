// SPDX-License-Identifier: Apache-2.0
//! Canonical keys for different spellings of one name.
//!
//! Ownership is decided on these canonical keys, so that `/data` and `/data/`, `nofile` and
//! `RLIMIT_NOFILE`, `2M` and `2MB` conflict instead of silently overriding each other as in the
//! reference. Only keys are rewritten, never the plugins' values.

/// Returns the name after a removal mark, if there is one: `-PATH` requests the removal of `PATH`.
pub(crate) fn marked(name: &str) -> Option<&str> {
    name.strip_prefix('-')
}

/// Returns a mount destination as the runtime will read it: absolute, without `.`, `..`, doubled or
/// trailing slashes. An empty destination stays empty, because it is a mistake and does not mean
/// the root directory.
pub fn destination(path: &str) -> String {
    if path.is_empty() { String::new() } else { cleaned(path, true) }
}

/// Removes `.`, doubled and trailing slashes, and `..` except at the start of a relative path. If the
/// path contains symbolic links, the result may name another file.
pub fn path(path: &str) -> String {
    cleaned(path, path.starts_with('/'))
}

fn cleaned(path: &str, is_absolute: bool) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if is_absolute => {}
            part => parts.push(part),
        }
    }
    format!("{}{}", if is_absolute { "/" } else { "" }, parts.join("/"))
}

/// Returns the kernel's name of a resource limit: `RLIMIT_NOFILE` for `nofile`.
pub fn rlimit(kind: &str) -> String {
    let upper = kind.to_ascii_uppercase();
    if upper.starts_with("RLIMIT_") { upper } else { format!("RLIMIT_{upper}") }
}

/// Returns a huge page size in runtimes' spelling: `2M`, `2MiB` and `2048KB` become `2MB`. A string that is
/// not a positive size is unchanged.
pub fn hugepage(size: &str) -> String {
    let Some(mut bytes) = bytes(size) else { return size.to_owned() };
    let mut unit = 0;
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    while bytes % 1024 == 0 && unit + 1 < UNITS.len() {
        bytes /= 1024;
        unit += 1;
    }
    format!("{bytes}{}", UNITS[unit])
}

fn bytes(size: &str) -> Option<u64> {
    let digits = size.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.len());
    let (number, unit) = size.split_at(digits);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dash_marks_a_removal_and_an_empty_name_does_not() {
        assert_eq!(marked("-a"), Some("a"));
        assert_eq!(marked("--a"), Some("-a"));
        assert_eq!(marked("a-"), None);
        assert_eq!(marked(""), None);
    }

    #[test]
    fn equivalent_destinations_have_one_key() {
        for path in ["/a/b", "/a/b/", "//a//b", "/a/./b", "/a/c/../b", "a/b", "/../a/b"] {
            assert_eq!(destination(path), "/a/b", "{path}");
        }
        assert_eq!(destination("/"), "/");
        assert_eq!(destination(""), "");
        assert_ne!(destination("/a b"), destination("/a/b"));
    }

    #[test]
    fn a_relative_path_stays_relative() {
        for (given, clean) in
            [("./a//b/", "a/b"), ("../a/../b", "../b"), ("../../a", "../../a"), ("/../a/.", "/a")]
        {
            assert_eq!(path(given), clean);
        }
    }

    #[test]
    fn a_limit_has_one_key_however_it_is_spelled() {
        for kind in ["nofile", "NOFILE", "rlimit_nofile", "RLIMIT_NOFILE", "Rlimit_NoFile"] {
            assert_eq!(rlimit(kind), "RLIMIT_NOFILE");
        }
        assert_ne!(rlimit("nproc"), rlimit("nofile"));
    }

    #[test]
    fn page_sizes_have_one_key_however_they_are_spelled() {
        for size in ["2M", "2MB", "2MiB", "2mb", "2048KB", "2097152"] {
            assert_eq!(hugepage(size), "2MB", "{size}");
        }
        assert_eq!((hugepage("1GB"), hugepage("1gib")), ("1GB".to_owned(), "1GB".to_owned()));
        assert_eq!(hugepage("64kB"), "64KB");
        assert_eq!(hugepage("2048tib"), "2048TB", "the largest unit");
    }

    #[test]
    fn an_invalid_page_size_is_returned_unchanged() {
        for size in ["", "MB", "2XB", "two", "0MB", "0", "99999999999999999999MB", "-2MB"] {
            assert_eq!(hugepage(size), size);
        }
    }
}
