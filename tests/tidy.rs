// SPDX-License-Identifier: Apache-2.0
//! House rules that a compiler cannot check.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests start programs and write files in place")]

#[path = "tidy/book/mod.rs"]
mod book;
#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/engines.rs"]
mod engines;
#[path = "tidy/limits.rs"]
mod limits;
#[path = "tidy/manual/mod.rs"]
mod manual;
#[path = "tidy/named.rs"]
mod named;
#[path = "tidy/pace.rs"]
mod pace;
#[path = "tidy/predicates.rs"]
mod predicates;
#[path = "tidy/sbom/mod.rs"]
mod sbom;
#[path = "tidy/skips.rs"]
mod skips;
#[path = "tidy/unused.rs"]
mod unused;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The time of a release, never that of the build machine.
fn release_time() -> String {
    let seconds = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse::<u64>().ok());
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds.unwrap_or_default());
    nri_runc::testing::text::rfc3339(time)
}

fn sources(dir: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut dirs = vec![root().join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).unwrap().display().to_string();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// The folders of the program's code and of its crates.
const CODE: [&str; 2] = ["src", "crates"];

fn code() -> impl Iterator<Item = (String, String)> {
    CODE.into_iter().flat_map(sources)
}

/// A file without its tests.
fn code_of(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or_default()
}

fn is_generated(text: &str) -> bool {
    text.lines().take(5).any(|line| line.contains("@generated"))
}

#[test]
fn every_file_states_its_purpose() {
    for (name, text) in ["src", "crates", "tests", "examples"].into_iter().flat_map(sources) {
        if is_generated(&text) {
            continue;
        }
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("// SPDX-License-Identifier: Apache-2.0"), "{name}");
        assert!(lines.next().is_some_and(|line| line.starts_with("//!")), "{name}");
    }
}

#[test]
fn no_source_file_is_too_long() {
    for (name, text) in code() {
        let code = code_of(&text);
        assert!(is_generated(&text) || code.lines().count() <= 500, "{name} has grown too long");
    }
}

/// The formatter breaks code, but no comment.
#[test]
fn every_comment_line_fits_120_columns() {
    let folders = ["src", "crates", "tests", "examples", "benches", "fuzz", "contrib"];
    let mut count = 0;
    for (name, text) in folders.into_iter().flat_map(sources) {
        let is_comment = |line: &&str| line.trim_start().starts_with("//");
        let long = text.lines().filter(is_comment).find(|line| line.chars().count() > 120);
        assert!(is_generated(&text) || long.is_none(), "{name}: {long:?}");
        count += text.lines().filter(is_comment).count();
    }
    assert!(count > 10_000, "{count} lines of comments were found");
}

/// The name of each test; attributes and comments may be between it and `#[test]`.
const TEST_NAME: &str = r"(?s)#\[(?:tokio::)?test\b.*?\n\s*(?:async )?fn (\w+)";

/// A longer name is a paragraph, and a list of failed tests no longer fits a screen.
#[test]
fn every_test_name_has_at_most_60_characters() {
    let (name, mut count) = (regex::Regex::new(TEST_NAME).unwrap(), 0);
    let folders = ["src", "crates", "tests", "examples", "benches", "fuzz", "contrib"];
    for (file, text) in folders.into_iter().flat_map(sources) {
        for found in name.captures_iter(&text) {
            assert!(found[1].len() <= 60, "{file}: {} is longer", &found[1]);
            count += 1;
        }
    }
    assert!(count > 2500, "{count} tests were found");
}

/// The permitted imports: a folder reaches only the folders listed for it.
const IMPORTS: &[(&str, &str)] = &[
    (
        "admin",
        "audit config daemon dry engine inject link plugin runtime sources spec stream wrapper",
    ),
    ("answers", "config rules state"),
    ("argv", ""),
    ("audit", "config"),
    ("cgroup", ""),
    ("chain", "config inject plugin rules"),
    ("config", "engine"),
    (
        "daemon",
        "argv audit cgroup chain config describe engine inject link mark metrics plugin \
         resolve rules runtime sources spec state stream trace",
    ),
    ("describe", "engine plugin spec"),
    ("dry", "chain config describe engine inject plugin resolve rules runtime sources spec"),
    ("engine", "formats"),
    ("formats", ""),
    ("inject", "config describe plugin rules spec"),
    ("link", ""),
    ("mark", ""),
    ("metrics", "plugin"),
    ("plugin", "config formats trace"),
    ("resolve", "cgroup config plugin runtime spec"),
    ("rules", "config engine link plugin"),
    ("runtime", "config"),
    ("sources", "engine formats"),
    ("spec", "mark plugin"),
    ("state", "engine formats mark"),
    ("stream", "audit"),
    ("trace", ""),
    ("wrapper", "argv link mark runtime config"),
    ("wrapper/exec", "argv mark runtime spec"),
    ("wrapper/later", "argv config link mark rules"),
    ("wrapper/protection", "argv config describe engine link plugin rules runtime sources"),
];

#[test]
fn folders_import_only_what_they_may() {
    let low = [
        "accept",
        "allocator",
        "answers",
        "clock",
        "ends",
        "error",
        "files",
        "fnv",
        "journal",
        "glob",
        "host",
        "http",
        "last_words",
        "limits",
        "log",
        "messages",
        "named",
        "packed",
        "presence",
        "procfs",
        "tagged",
        "text",
    ];
    for (folder, may) in IMPORTS {
        let files = sources("src").into_iter().filter(|(name, text)| {
            let inside = name.strip_prefix("src/").unwrap_or_default();
            // For a file with a separate row only that row applies.
            let own = |(other, _): &(&str, &str)| inside == format!("{other}.rs");
            let is_in_folder =
                inside.starts_with(&format!("{folder}/")) && !IMPORTS.iter().any(own);
            !is_generated(text) && (is_in_folder || inside == format!("{folder}.rs"))
        });
        for (name, text) in files {
            for reached in text.split("crate::").skip(1) {
                let reached: String =
                    reached.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
                let allowed = reached.is_empty()
                    || reached == *folder
                    || low.contains(&reached.as_str())
                    || may.split(' ').any(|folder| folder == reached);
                assert!(allowed, "{name} reaches {reached}");
            }
        }
    }
}

/// The permitted imports inside the daemon: each row names only rows above it, so there is no cycle. The names
/// are folders of `src/daemon`, and files beside them.
const DAEMON_IMPORTS: &[(&str, &str)] = &[
    ("watch", ""),
    ("process", ""),
    ("registry", "watch"),
    ("runtime", "watch"),
    ("shared", "process registry runtime watch"),
    ("bundle", "shared"),
    ("request", "shared"),
    ("resources", "shared registry runtime watch"),
    ("pods", "runtime shared request watch"),
    ("lifecycle", "bundle shared pods resources runtime watch"),
    ("connections", "shared process registry resources watch"),
    ("verbs", "bundle lifecycle shared pods registry request resources runtime watch"),
    ("recovery", "bundle lifecycle shared pods request resources runtime watch"),
    ("server", "lifecycle shared process recovery registry request resources runtime verbs watch"),
    ("run_dir", "shared connections process recovery server watch"),
    ("reload", "shared connections process recovery run_dir server"),
    ("reexec", "shared connections process recovery registry run_dir server"),
];

/// The folder of the daemon that contains a file; `None` for `src/daemon/mod.rs`, which starts all of them.
fn daemon_folder(name: &str) -> Option<&str> {
    let inside = name.strip_prefix("src/daemon/")?;
    let folder = inside.split('/').next()?;
    let folder = folder.strip_suffix(".rs").unwrap_or(folder);
    (folder != "mod").then_some(folder)
}

/// The folders that a file imports or names by path, without tests.
fn daemon_folders_named(text: &str) -> BTreeSet<String> {
    let code = code_of(text);
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect()
    };
    let mut folders = BTreeSet::new();
    for path in code.split("crate::daemon::").skip(1) {
        let listed = path.strip_prefix('{').and_then(|list| list.split_once('}'));
        match listed {
            Some((list, _)) => folders.extend(list.split(',').map(|item| word(item.trim()))),
            None => folders.extend([word(path)]),
        }
    }
    folders.remove("");
    folders
}

#[test]
fn folders_of_the_daemon_form_a_tree() {
    let mut above = BTreeSet::new();
    for (folder, may) in DAEMON_IMPORTS {
        let may: Vec<&str> = may.split_whitespace().collect();
        assert!(may.iter().all(|name| above.contains(name)), "{folder} imports a folder below it");
        assert!(above.insert(*folder), "{folder} is listed twice");
    }
    let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let files = sources("src/daemon");
    for (name, text) in &files {
        let Some(folder) = daemon_folder(name) else { continue };
        let named = daemon_folders_named(text).into_iter().filter(|named| named != folder);
        seen.entry(folder).or_default().extend(named);
        let escapes = ["use super::super", "use crate::daemon::*"];
        assert!(escapes.iter().all(|path| !text.contains(path)), "{name} hides what it imports");
    }
    for (folder, named) in &seen {
        let (_, may) = DAEMON_IMPORTS.iter().find(|(name, _)| name == folder).unwrap();
        let may: BTreeSet<String> = may.split_whitespace().map(str::to_owned).collect();
        assert_eq!(*named, may, "what {folder} imports is not what the table says");
    }
    assert_eq!(seen.len(), DAEMON_IMPORTS.len(), "a folder of the table is not there");
}

#[test]
fn each_folder_of_the_daemon_states_what_it_never_does() {
    for (folder, may) in DAEMON_IMPORTS {
        let place = root().join("src/daemon").join(folder);
        let file = if place.is_dir() { place.join("mod.rs") } else { place.with_extension("rs") };
        let text = std::fs::read_to_string(file).unwrap();
        let header = text.lines().take_while(|line| line.starts_with("//"));
        let header: String = header.map(|line| line.trim_start_matches("//!")).collect();
        assert!(header.contains(" never "), "{folder} does not say what it never does");
        let (_, imports) = header.split_once("It imports").expect(folder);
        let named: BTreeSet<&str> = imports.split('`').skip(1).step_by(2).collect();
        assert_eq!(named, may.split_whitespace().collect(), "what {folder} says that it imports");
    }
}

/// Pure code: no file, no clock, no log. Cargo shows that two of them do not even depend on tokio
/// ([`no_pure_crate_has_tokio_in_its_tree`]).
const PURE: [&str; 3] = ["crates/nri-adaptation/src", "crates/oci-document/src", "src/spec"];

#[test]
fn no_pure_crate_has_tokio_in_its_tree() {
    for package in ["nri-adaptation", "oci-document"] {
        let of =
            ["tree", "--locked", "--offline", "--prefix", "none", "-e", "normal", "-p", package];
        let tree = std::process::Command::new(env!("CARGO")).args(of).current_dir(root()).output();
        let tree = String::from_utf8(tree.unwrap().stdout).unwrap();
        assert!(tree.starts_with(package), "{tree}");
        for heavy in ["tokio", "ttrpc", "nix", "nri-runc"] {
            let is_it = |line: &str| line.split(' ').next() == Some(heavy);
            assert!(!tree.lines().any(is_it), "{package} has {heavy} in its tree:\n{tree}");
        }
    }
}

#[test]
fn the_core_of_the_merge_does_no_input_or_output() {
    for (name, text) in PURE.into_iter().flat_map(sources) {
        for word in ["std::fs", "tokio::", "tracing::", "SystemTime", "Instant", "async fn"] {
            assert!(!text.contains(word), "{name} uses {word}");
        }
    }
}

/// The wrapper delays every verb, so slow work belongs to the daemon.
#[test]
fn the_wrapper_starts_no_runtime_and_reads_no_host_files() {
    for (name, text) in sources("src/wrapper").into_iter().chain(sources("src/argv")) {
        for word in ["runtime::features", "resolve::", "container_device_interface", "saphyr"] {
            assert!(!text.contains(word), "{name} uses {word}");
        }
    }
}

/// Only a wrapper that is about to refuse a container reads the engine's files.
#[test]
fn the_wrapper_reads_engines_files_only_before_it_refuses() {
    let mut callers = Vec::new();
    for (name, text) in sources("src/wrapper") {
        if name.ends_with("/protection.rs") {
            continue;
        }
        for word in ["tokio::", "sources::", "describe::", "engine::"] {
            assert!(!text.contains(word), "{name} uses {word}");
        }
        let calls = text.matches("protection::refuse_unless_exempt(").count();
        callers.extend(std::iter::repeat_n(name, calls));
    }
    // A create without the daemon, and a hook without it.
    assert_eq!(callers, ["src/wrapper/bypass.rs", "src/wrapper/hook.rs"]);
}

/// The callers of an `exec` end at the engine. The wrapper uses no module about engines, so it has a list of its own.
#[test]
fn the_wrapper_knows_every_process_name_that_detects_an_engine() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let between = |text: &str, start: &str, end: &str| {
        let rest = text.split_once(start).unwrap().1;
        rest.split_once(end).unwrap().0.to_owned()
    };
    let detect = between(&read("src/engine/detect.rs"), "let kind = match name {", "_ => return");
    let shims = between(&read("src/wrapper/later.rs"), "const SHIMS", ";\n\n");
    let arms = regex::Regex::new(r#"(?m)(?:^ *|\| )"([a-z0-9-]+)""#).unwrap();
    let mut seen = 0;
    let by_rule = ["conmon", "crio-conmon"].map(str::to_owned);
    for name in arms.captures_iter(&detect).map(|found| found[1].to_owned()).chain(by_rule) {
        // conmon is in between, and nothing is executed in a container of BuildKit.
        if ["podman", "buildkitd"].contains(&name.as_str()) {
            continue;
        }
        let kept: String = name.chars().take(15).collect();
        assert!(shims.contains(&format!("\"{kept}\"")), "{name} is not in SHIMS");
        seen += 1;
    }
    assert!(seen > 7, "{seen} names were found: {detect}");
}

/// Calls that may find nothing, and calls that treat any failure as absence.
const MAY_FIND_NOTHING: &str = r"(files::(read|open)|read_dir|read_link|metadata\(|open_dir|read_at\(|File::open|\bopenat?\(|fstatat|canonicalize|watch_if_there|pidfd::open|procfs::|read_own|inode_at|presence::)";
const FORGETS_WHY: &str = r"(\.ok\(\)|\.is_ok\(\)|\.is_ok_and\(|\.is_err\(\)|\.into_iter\(\)\s*\.flatten\(\)\s*\.flatten\(\))|^[^|]*\)\s*\.unwrap_or_default\(\)";
const LOOKS_AWAY: &str = r"(?P<what>[\w)?]+)\s*\.(exists|is_dir|is_file)\(\)";

/// Files in which a false absence only refuses or shows something, and never ends or permits anything.
const MAY_FORGET: &[&str] = &[
    "src/admin/",
    "src/config/mod.rs",
    // This file implements the calls that the others must use.
    "src/presence.rs",
    // A node that seems to lack something refuses the container.
    "src/resolve/node.rs",
];

/// "Absent" and "unknown" are different answers (`src/presence.rs`): `if_there` distinguishes them, `or_absent`
/// states that the difference does not matter.
#[test]
fn no_failed_look_up_counts_as_an_absent_value() {
    let [finds, forgets, looks] =
        [MAY_FIND_NOTHING, FORGETS_WHY, LOOKS_AWAY].map(|text| regex::Regex::new(text).unwrap());
    let comment = regex::Regex::new("//[^\n]*").unwrap();
    let mut found = Vec::new();
    for (name, text) in code() {
        let is_test = name.ends_with("tests.rs") || name.contains("/tests/");
        if is_generated(&text) || is_test || MAY_FORGET.iter().any(|may| name.starts_with(may)) {
            continue;
        }
        let code = code_of(&text);
        let code = comment.replace_all(code, "");
        for statement in code.split([';', '{', '}']) {
            let line = statement.split_whitespace().collect::<Vec<_>>().join(" ");
            let after = finds.find(statement).map(|call| &statement[call.end()..]);
            // The text after these calls concerns the result.
            let after = after.and_then(|after| after.split("or_absent()").next());
            let after = after.and_then(|after| after.split("if_there()").next());
            // Variables of these names are no paths: they contain metadata, a file type or a known
            // answer.
            let is_path = |what: &str| !["meta", "kind", "there", "cgroups"].contains(&what);
            let looks_away = looks.captures(statement).is_some_and(|seen| is_path(&seen["what"]));
            if looks_away || after.is_some_and(|after| forgets.is_match(after)) {
                found.push(format!("{name}: {line}"));
            }
        }
    }
    assert!(found.is_empty(), "an error passes for an absence:\n{}", found.join("\n"));
}

/// Children of other tests inherit a file that a test process has open for writing, and it cannot be executed
/// until all of them have executed another program.
#[test]
fn programs_of_tests_are_written_by_a_separate_process() {
    for (name, text) in sources("tests").into_iter().chain(sources("benches")) {
        for call in [["fs::", "copy("].concat(), ["from_mode(", "0o755"].concat()] {
            // With `temp.path()`, the mode is that of a folder.
            let found =
                text.lines().find(|line| line.contains(&call) && !line.contains("temp.path()"));
            assert_eq!(found, None, "{name}: test_support::program does it");
        }
    }
}

/// Calls that open a file by name: they would block on a FIFO, and its author chooses the size.
const OPENS: &str = r"\bfs::read(_to_string)?\b|\bread_to_string\(file|File::open\b";

/// Files in which no other process waits for a blocked open.
const MAY_WAIT: &[&str] = &[
    // A command reads a file that its operator named.
    "src/dry/",
    // A plugin is a separate process.
    "crates/nri-plugin/src/",
];

/// Files that open others for writing without `O_NONBLOCK`.
const MAY_BLOCK: &[&str] = &[
    // The command creates the file itself.
    "src/admin/record.rs",
    // The kernel's files of this process, before it serves requests.
    "src/daemon/process/detach.rs",
    // Only tests use it.
    "src/host/faults.rs",
    // The runtime's log, as the runtime opens it.
    "src/wrapper/failure.rs",
];

/// The daemon's loop waits for no other process (D53), and reads no more than the stated limit (D54): all files
/// are read by `src/files.rs`.
#[test]
fn files_are_opened_only_without_blocking() {
    let opens = regex::Regex::new(OPENS).unwrap();
    for (name, text) in code() {
        let is_test = name.ends_with("tests.rs");
        if is_generated(&text) || is_test || name.contains("/tests/") {
            continue;
        }
        let code = code_of(&text);
        let is_listed = |list: &[&str]| list.iter().any(|listed| name.starts_with(listed));
        let waits = opens.find(code).map(|found| found.as_str());
        assert!(waits.is_none() || is_listed(MAY_WAIT), "{name}: {waits:?}, not files::read");
        let makes = code.contains("OpenOptions::new()") || code.contains("File::options()");
        let is_bound = code.contains("O_NONBLOCK") || is_listed(MAY_BLOCK);
        assert!(!makes || is_bound, "{name} opens a file without O_NONBLOCK");
    }
}

#[test]
fn no_unfinished_code_is_left() {
    let words = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["#[ig", "nore"].concat()];
    for (name, text) in code().chain(sources("tests")) {
        for word in &words {
            assert!(is_generated(&text) || !text.contains(word.as_str()), "{name} has {word}");
        }
    }
}

#[test]
fn the_configuration_page_is_the_table_in_the_code() {
    let path = root().join("docs/config.md");
    let wanted = nri_runc::testing::config::markdown();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        nri_runc::testing::files::replace(&path, wanted.as_bytes()).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == wanted, "docs/config.md is stale: UPDATE_GOLDEN=1 cargo test --test tidy");
}

#[test]
fn the_page_of_exit_codes_is_the_table_in_the_code() {
    let path = root().join("docs/exit-codes.md");
    let wanted = nri_runc::testing::admin::exit_codes_page();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        nri_runc::testing::files::replace(&path, wanted.as_bytes()).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == wanted, "docs/exit-codes.md is stale: UPDATE_GOLDEN=1 cargo test --test tidy");
}

#[test]
fn architecture_md_names_every_folder_of_src() {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert!(map.len() <= 10 << 10, "ARCHITECTURE.md is longer than 10 KiB");
    for entry in std::fs::read_dir(root().join("src")).unwrap().flatten() {
        let name = format!("src/{}", entry.file_name().to_string_lossy());
        assert!(map.contains(&name), "ARCHITECTURE.md does not name {name}");
    }
    assert!(root().join("CHANGELOG.md").exists());
    let changelog = std::fs::read_to_string(Path::new(&root()).join("CHANGELOG.md")).unwrap();
    assert!(changelog.contains("## Unreleased"));
}

#[test]
fn pages_name_only_proofs_that_exist() {
    let code: String = code().chain(sources("tests")).map(|(_, text)| text).collect();
    for (page, least) in [("docs/compatibility.md", 90), ("docs/threat-model.md", 50)] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let proofs = text.split('`').skip(1).step_by(2).filter(|word| is_proof(word, &code));
        let proofs = proofs.count();
        assert!(proofs > least, "{proofs} proofs were found in {page}");
    }
}

/// Whether the word names a test or a case, which must exist.
fn is_proof(word: &str, code: &str) -> bool {
    let is_name = word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if let Some(folder) = word.strip_prefix("bundles/").filter(|folder| *folder != "NAME") {
        assert!(root().join("fixtures/bundles").join(folder).is_dir(), "{word}");
        return true;
    }
    let is_test = is_name && word.matches('_').count() >= 3;
    // A claim of the suite over engines is generic; without a test in its tables it is dead code.
    let is_there = |next: &str| code.contains(&format!("fn {word}{next}"));
    assert!(!is_test || is_there("(") || is_there("<E: "), "no test is named {word}");
    is_test
}

/// The names in one table of Cargo.toml, each with whether a comment precedes it.
fn crates(table: &str) -> Vec<(String, bool)> {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let lines = manifest.lines().skip_while(|line| *line != format!("[{table}]")).skip(1);
    let lines: Vec<&str> = lines.take_while(|line| !line.starts_with('[')).collect();
    let above = std::iter::once("").chain(lines.iter().copied());
    let pairs = above.zip(&lines).filter_map(|(above, line)| {
        Some((line.split_once(" = ")?.0.to_owned(), above.starts_with("# ")))
    });
    pairs.collect()
}

#[test]
fn every_dependency_is_used_and_has_its_reason() {
    let text = |dirs: &[&str]| -> String {
        dirs.iter().flat_map(|dir| sources(dir)).map(|(_, text)| text).collect()
    };
    for (table, dirs) in [
        ("dependencies", &["src"] as &[&str]),
        ("dev-dependencies", &["src", "tests", "benches", "examples"]),
    ] {
        let (names, code) = (crates(table), text(dirs));
        assert!(names.len() > 5, "{names:?}");
        for (name, has_reason) in names {
            let path = format!("{}::", name.replace('-', "_"));
            assert!(code.contains(&path), "{name} is not used");
            assert!(has_reason, "{name} has no reason above it in Cargo.toml");
        }
    }
}

/// The feature set of shipped programs: packages and `make install` build these two.
#[test]
fn no_shipped_program_has_the_fault_points_of_tests() {
    let tree = |edges: &str| {
        let mut cargo = std::process::Command::new(env!("CARGO"));
        cargo.args(["tree", "--locked", "--offline", "--edges", edges, "--prefix", "none"]);
        cargo.args(["--package", "nri-runc", "--package", "resource-defaults"]);
        let output = cargo.current_dir(root()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let has_faults = |edges: &str| tree(edges).contains("nri-runc feature \"faults\"");
    assert!(!has_faults("normal,build,features"));
    assert!(has_faults("normal,build,dev,features"), "tests have them");
    let page = nri_runc::testing::config::markdown();
    for of_tests in ["debug.fault", "debug.silence"] {
        assert!(!page.contains(of_tests) && page.contains("debug.host_root"));
    }
}

/// One alternative of a licence expression is enough, but all of its parts are needed.
fn may_be_shipped(licence: &str) -> bool {
    const FINE: &[&str] = &[
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "MIT",
        "Unicode-3.0",
        "Zlib",
    ];
    let plain = licence.replace(['(', ')'], "").replace('/', " OR ");
    plain.split(" AND ").all(|part| part.split(" OR ").any(|name| FINE.contains(&name.trim())))
}

#[test]
fn every_licence_is_one_that_may_be_shipped() {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["metadata", "--locked", "--format-version", "1"]);
    cargo.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = cargo.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50, "{} packages", packages.len());
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none");
        assert!(may_be_shipped(licence), "{} is under {licence}", package["name"]);
    }
    for licence in ["GPL-3.0-only", "none", "MIT AND GPL-2.0-only", "AGPL-3.0 OR BSL-1.0"] {
        assert!(!may_be_shipped(licence), "{licence}");
    }
}

/// Every word of these texts that is `prefix` and a number, possibly with a `G` before it.
fn citations<'t>(text: &'t str, prefix: &str) -> Vec<&'t str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let words = text.split(|c: char| !is_part(c));
    let is_citation = |word: &&str| {
        let number = word.strip_prefix(prefix).map(|rest| rest.trim_start_matches('G'));
        number.is_some_and(|n| matches!(n.len(), 1 | 2) && n.bytes().all(|b| b.is_ascii_digit()))
    };
    words.filter(is_citation).collect()
}

#[test]
fn every_cited_decision_and_difference_has_its_paragraph() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let (decisions, differences) = (read("docs/decisions.md"), read("docs/nri-differences.md"));
    let mut cited = 0;
    for (name, text) in
        ["src", "crates", "tests", "benches", "examples"].into_iter().flat_map(sources)
    {
        let comments: String =
            text.lines().filter_map(|line| line.split_once("//")).map(|(_, text)| text).collect();
        if is_generated(&text) || name == "tests/tidy.rs" {
            continue;
        }
        for decision in citations(&comments, "D") {
            let heading = format!("### {decision} ");
            assert!(decisions.contains(&heading), "{name} cites {decision}: no such decision");
            cited += 1;
        }
        for difference in citations(&comments, "BUG-") {
            let row = format!("| {difference} |");
            assert!(differences.contains(&row), "{name} cites {difference}: no such difference");
            cited += 1;
        }
        for elsewhere in ["pitfalls", "nri-semantics", "engine-metadata", "perf-floor"] {
            assert!(!comments.contains(elsewhere), "{name} cites {elsewhere}, which is not here");
        }
    }
    assert!(cited > 80, "{cited} citations were found");
}

/// Lines that users met and could not understand, in two parts so that this list does not match itself.
const GONE: [[&str; 2]; 46] = [
    ["Tell an engine ", "of us"],
    ["Who shall ", "know of us"],
    ["Who shall ", "forget us"],
    ["Although containers ", "still name our path"],
    ["as the engine ", "shall call it"],
    ["for containers that ", "name no runtime"],
    ["Read this configuration ", "file alone"],
    ["to fend ", "for themselves"],
    ["mend it, or ", "set nri.socket_path"],
    ["\"mend ", "the file\""],
    ["a list of texts ", "is wanted"],
    ["if they shall ", "go on with it"],
    ["means more than ", "one container"],
    ["said nothing: ", "containerd"],
    ["written by hand ", "goes by hand"],
    ["nothing of ours ", "is recorded"],
    ["kept, ", "edited"],
    ["is no program ", "with an absolute path"],
    ["stderr is ", "nobody's"],
    ["none of its ", "business are"],
    ["never sends a verb ", "to another runtime"],
    ["Once, twice, ", "never"],
    ["none of the values ", "it can have"],
    ["has a zero ", "byte inside"],
    ["this needs ", "root"],
    ["no pod would ", "ever come here"],
    ["says something ", "else\""],
    ["tells of what was ", "not done"],
    ["only our lines ", "were taken out"],
    ["no longer as it ", "was written"],
    ["runs without ", "it\""],
    ["creates go on ", "unadjusted"],
    ["every container passes ", "as it is"],
    ["see why it does ", "not come"],
    ["fell ", "silent\""],
    ["answered something ", "else"],
    ["cannot be relied ", "on"],
    ["no host program ", "belongs"],
    ["nobody called ", "this hook"],
    ["for it ", "hung"],
    ["does not ", "sit down"],
    ["whose word ", "counts"],
    ["Two ", "NRIs"],
    ["goes on without ", "us |"],
    ["told of us by ", "`install`"],
    ["Differences that are ", "meant"],
];

/// The pages that must not contain them either.
const PAGES: [&str; 14] = [
    "README.md",
    "install.sh",
    "hooks/README.md",
    "src/config/about.md",
    "docs/compatibility.md",
    "docs/engines.md",
    "docs/hooks.md",
    "docs/identity.md",
    "docs/install.md",
    "docs/operating.md",
    "docs/plugins.md",
    "docs/quickstart.md",
    "docs/timing.md",
    "docs/troubleshooting.md",
];

#[test]
fn removed_sentences_stay_removed() {
    let pages = PAGES.map(|page| {
        (page.to_owned(), std::fs::read_to_string(root().join(page)).unwrap_or_default())
    });
    for (name, text) in code().chain(pages) {
        for words in GONE {
            assert!(!text.contains(&words.concat()), "{name} has: {}", words.concat());
        }
    }
}
