// SPDX-License-Identifier: Apache-2.0
//! The limits of lengths and counts that others choose are in one table, `src/limits.rs` (D54). A number
//! elsewhere is found here, and needs a reason.

use std::collections::BTreeSet;

use regex::Regex;

use super::{code, root};

/// The constants elsewhere that are numbers: the reason, and each by its file and name.
const ELSEWHERE: &[(&str, &[&str])] = &[
    (
        "a limit of a crate that others use without nri-runc; the table's introduction names it",
        &[
            "crates/nri-adaptation/src/bounds.rs MOST_IN_ALL",
            "crates/nri-adaptation/src/bounds.rs MOST_IN_ONE",
            "crates/nri-adaptation/src/unknown.rs NAMED",
            "crates/nri-adaptation/src/validator.rs LONGEST_REFUSAL",
            "crates/nri-adaptation/src/validator.rs LONGEST_VALUE",
            "crates/nri-adaptation/src/validator.rs MOST_REQUIRED_PLUGINS",
            "crates/nri-api/src/identity.rs NRI_VERSION",
            "crates/nri-api/src/identity.rs PLUGIN_NAME",
            "crates/nri-transport/src/backpressure.rs IN_HAND",
            "crates/nri-transport/src/backpressure.rs REQUESTS_IN_HAND",
            "crates/nri-transport/src/backpressure.rs ROOM",
            "crates/nri-transport/src/mux.rs UNREGISTERED",
            "crates/nri-transport/src/outgoing.rs LIMIT",
            "crates/oci-document/src/decoded.rs DEEPEST",
            "crates/oci-document/src/document.rs MAX_BYTES",
            "crates/oci-document/src/document.rs MOST",
        ],
    ),
    (
        "a number of a protocol, a file's format, the kernel or a specification",
        &[
            "crates/nri-adaptation/src/encoded.rs CONTAINER",
            "crates/nri-transport/src/backpressure.rs FRAME",
            "crates/nri-transport/src/caller.rs ENVELOPE",
            "crates/nri-transport/src/caller.rs PAIR",
            "crates/nri-transport/src/caller.rs START",
            "crates/nri-transport/src/frame.rs FIRST_FRAME",
            "crates/nri-transport/src/frame.rs FRAME_HEADER",
            "crates/nri-transport/src/frame.rs BEFORE",
            "crates/nri-transport/src/frame.rs FRAME_LIMIT",
            "crates/nri-transport/src/frame.rs PLUGIN_CONNECTION",
            "crates/nri-transport/src/frame.rs RUNTIME_CONNECTION",
            "crates/nri-transport/src/frame.rs TTRPC_HEADER",
            "crates/nri-transport/src/frame.rs TTRPC_LIMIT",
            "crates/nri-transport/src/frame.rs TYPE",
            "src/admin/install/engine_files.rs FOR_ALL",
            "src/admin/install/engine_files.rs PRIVATE",
            "src/admin/install/ledger.rs SCHEMA",
            "src/admin/install/nri_decision.rs LONGEST_SOCKET_PATH",
            "src/admin/install/on_node.rs PROGRAM_MODE",
            "src/admin/node/record.rs SCHEMA",
            "src/admin/record.rs PIPE_ROOM",
            "src/allocator.rs SMALLEST",
            "src/allocator.rs STEP",
            "src/audit/line.rs VERSION",
            "src/cgroup/write.rs LARGEST_PAGE",
            "src/config/user.rs OVERFLOW_UID",
            "src/daemon/process/handover.rs HEAD",
            "src/daemon/process/handover.rs STATE_VERSION",
            "src/daemon/runtime/state_dir.rs TICKS",
            "src/daemon/server/frames.rs DESCRIPTORS",
            "src/daemon/server/frames.rs HEADER",
            "src/daemon/server/frames.rs LENGTH",
            "src/daemon/server/frames.rs NUMBER",
            "src/daemon/server/http.rs SOCKET_MODE",
            "src/daemon/shared/messages.rs CONTAINERS_LINUX",
            "src/daemon/shared/messages.rs ID",
            "src/daemon/shared/messages.rs LABELS",
            "src/daemon/shared/messages.rs LINUX",
            "src/daemon/shared/messages.rs RESOURCES",
            "src/daemon/watch/pidfd.rs EXIT",
            "src/daemon/watch/writers.rs METADATA",
            "src/daemon/watch/writers.rs PIDFD_RECORD",
            "src/formats/bolt.rs BRANCH",
            "src/formats/bolt.rs ELEMENT",
            "src/formats/bolt.rs HEADER",
            "src/formats/bolt.rs LEAF",
            "src/formats/bolt.rs MAGIC",
            "src/formats/bolt.rs VERSION",
            "src/formats/netlink.rs ADDRESS_HEADER",
            "src/formats/netlink.rs ALIGNED",
            "src/formats/netlink.rs HEADER",
            "src/link/mod.rs PROTOCOL",
            "src/link/mod.rs UNDERSTOOD",
            "src/plugin/snapshot.rs ROOM",
            "src/resolve/device_nodes.rs PERMISSIONS",
            "src/sources/hpack.rs LONGEST_CODE",
            "src/sources/unary.rs FRAME_LIMIT",
            "src/sources/unary.rs NOT_FOUND",
            "src/spec/patch/net_devices.rs LONGEST",
            "src/spec/patch/resources.rs LEAST_BANDWIDTH",
            "src/spec/patch/resources.rs MOST_SHARES",
            "src/spec/patch/seccomp.rs LAST_ARGUMENT",
            "src/spec/patch/values.rs PERMISSIONS",
            "src/state/disk.rs NEXT",
            "src/state/mod.rs SCHEMA",
        ],
    ),
    (
        "attempts of our own, or steps upwards, whatever others send",
        &[
            "src/admin/install/root.rs LOOKUP_ATTEMPTS",
            "src/cgroup/resctrl.rs ROUNDS",
            "src/chain/strikes.rs HANGING_STRIKES",
            "src/daemon/bundle.rs ATTEMPTS",
            "src/daemon/lifecycle/settle.rs ATTEMPTS",
            "src/daemon/recovery/bypassed.rs ANNOUNCEMENTS",
            "src/daemon/registry/takeovers.rs MOST",
            "src/daemon/verbs/hook.rs ORDER_CHECKS",
            "src/engine/mod.rs ROUNDS",
            "src/plugin/turns.rs OVERTAKEN",
            "src/presence.rs ATTEMPTS",
            "src/state/store.rs REFUSALS",
            "src/wrapper/hook.rs GENERATIONS",
        ],
    ),
    (
        "the size of one step, after which others have their turn; the whole has its limit in the table",
        &[
            "crates/nri-transport/src/mux.rs READ_AT_MOST",
            "crates/nri-transport/src/mux.rs READ_AT_ONCE",
            "src/audit/tail.rs CHUNK",
            "src/config/places.rs STEP",
            "src/daemon/connections/admission.rs ACCEPTED_AT_ONCE",
            "src/daemon/connections/slots.rs LEVELS",
            "src/daemon/connections/snapshot.rs AT_ONCE",
            "src/daemon/recovery/lost.rs AT_ONCE",
            "src/daemon/resources/drift.rs AT_ONCE",
            "src/daemon/resources/updates.rs AT_ONCE",
            "src/daemon/server/admin.rs AT_ONCE",
            "src/plugin/snapshot.rs PART",
            "src/daemon/shared/snapshot_room.rs UNIT",
            "src/dry/script.rs READ_AHEAD",
            "src/wrapper/request.rs READ_AHEAD",
        ],
    ),
    (
        "where another way of doing the same is cheaper: nothing is cut or refused beyond it",
        &[
            "src/allocator.rs KEPT_OF_A_SIZE",
            "src/allocator.rs SIZES",
            "crates/nri-transport/src/caller.rs LARGE",
            "crates/nri-transport/src/unread.rs KEPT",
            "crates/oci-document/src/document.rs FEW",
            "src/chain/create.rs SMALL",
            "src/daemon/runtime/state_dir.rs BEGINNING",
            "src/daemon/verbs/host_facts.rs FEW",
            "src/plugin/latency.rs SLOTS",
            "src/plugin/turns.rs ENOUGH",
            "src/plugin/turns.rs RANKS",
            "src/plugin/turns.rs SAMPLES",
        ],
    ),
    (
        "the width of a screen, or what an operator's setting or disk has at least",
        &[
            "src/admin/check/plugins.rs SETTLED",
            "src/admin/check/run_dir.rs ROOM",
            "src/admin/check/run_dir.rs ROOM_FILES",
            "src/admin/explain.rs VALUE_WIDTH",
            "src/admin/progress.rs USUAL_WIDTH",
            "src/admin/plugins.rs SECONDS",
            "src/admin/show.rs TERMINAL_WIDTH",
            "src/admin/top/mod.rs WINDOW",
            "src/audit/file.rs SHARE",
            "src/config/exec_rules.rs MISSPELLED_LETTERS",
            "src/config/injections/mod.rs TYPO_LETTERS",
            "src/config/keys.rs LEAST_AUDIT_FILE",
            "src/config/mistakes.rs RUNTIME_TYPO_LETTERS",
            "src/config/mistakes.rs TYPO_LETTERS",
            "src/daemon/process/detach.rs DESCRIPTORS",
        ],
    ),
    (
        "what a text has that looks like a secret",
        &[
            "src/admin/sysdump/redact.rs KEY_LENGTH",
            "src/admin/sysdump/redact.rs KEY_LINES",
            "src/admin/sysdump/redact.rs LONGEST_VALUE",
        ],
    ),
];

/// The constants of this text that are unsigned numbers of the types of lengths and counts.
fn numbers(text: &str) -> Vec<String> {
    let constant = r"(?m)^\s*(?:pub(?:\([a-z]+\))? )?const ([A-Z_0-9]+): (?:usize|u64|u32) =";
    let (code, _) = text.split_once("\nmod tests {").unwrap_or((text, ""));
    let found = Regex::new(constant).unwrap();
    found.captures_iter(code).map(|found| found[1].to_owned()).collect()
}

#[test]
fn limits_of_foreign_input_are_in_one_table() {
    let is_code = |name: &str| name.contains("src/") && !name.contains("/tests");
    let code = code().filter(|(name, _)| is_code(name) && name != "src/limits.rs");
    let code = code.filter(|(_, text)| !super::is_generated(text));
    let found: BTreeSet<String> = code
        .flat_map(|(file, text)| {
            numbers(&text).into_iter().map(move |name| format!("{file} {name}"))
        })
        .collect();
    let listed: BTreeSet<String> =
        ELSEWHERE.iter().flat_map(|(_, names)| *names).map(|name| (*name).to_owned()).collect();
    let new: Vec<&String> = found.difference(&listed).collect();
    assert!(new.is_empty(), "in src/limits.rs, or with a reason in tests/tidy/limits.rs: {new:#?}");
    let gone: Vec<&String> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "no longer there: {gone:#?}");
}

#[test]
fn numbers_are_found_in_any_declaration_but_not_in_tests() {
    let text = "pub(crate) const A: usize = 1;\n    const B: u64 = 1 << 20;\nconst C: &str = \"\";\n\
                const D: Duration = x;\npub const E_2: u32 =\n    7;\nmod tests {\n    const F: usize = 1;\n}\n";
    assert_eq!(numbers(text), ["A", "B", "E_2"]);
}

/// Each entry of the table has a sentence that names the limited quantity; an entry that directly follows
/// another one shares its sentence.
#[test]
fn each_limit_has_or_shares_a_comment() {
    let text = std::fs::read_to_string(root().join("src/limits.rs")).unwrap();
    let (table, _) = text.split_once("pub(crate) fn ").unwrap();
    let lines: Vec<&str> = table.lines().collect();
    let entries: Vec<usize> =
        (0..lines.len()).filter(|line| lines[*line].starts_with("pub(crate) const ")).collect();
    assert!(entries.len() > 80, "{}", entries.len());
    for entry in entries {
        let before = lines[entry - 1];
        let is_said = before.starts_with("/// ") || before.starts_with("pub(crate) const ");
        assert!(is_said, "{}", lines[entry]);
    }
}

#[test]
fn the_table_names_the_limits_of_the_crates() {
    let text = std::fs::read_to_string(root().join("src/limits.rs")).unwrap();
    let introduction: String = text.lines().filter(|line| line.starts_with("//!")).collect();
    for entry in ELSEWHERE[0].1 {
        let (file, name) = entry.split_once(' ').unwrap();
        let (_, file) = file.split_once("crates/").unwrap();
        let (of, _) = file.split_once('/').unwrap();
        assert!(introduction.contains(of), "{of} has {name}");
    }
}
