// SPDX-License-Identifier: Apache-2.0
//! Defines a limit for every input whose length a tenant, a plugin or an engine chooses (D54); each
//! applies where the input enters. A longer text is cut and its length is stated; a longer
//! identity, or list that protects containers, is refused. `tests/tidy/limits.rs` finds limits that
//! are defined elsewhere.
//!
//! The crates can be used without this program, so each defines its limits itself: `nri-api` for a
//! plugin's name, `nri-transport` for a plugin's messages and their queues, `nri-adaptation` for a
//! response's entries and the plugins that a pod may require, `oci-document` for the edited
//! document.

pub(crate) use nri_api::text::{cut, split};

use crate::text::counted;

/// Connected plugins. An event may wait for all of them; NRI's benchmark has ten. Pre-installed and
/// configured plugins are never refused because of this limit.
pub(crate) const PLUGINS: usize = 128;
/// Annotations of one container. Each costs some 10 µs when the container is created and again when
/// it ends. Kubernetes limits only their total length, to 256 KiB, which allows 80,000.
pub(crate) const ANNOTATIONS: usize = 10_000;
/// Identity claims of one container that its engine contradicts; each takes a line in the log and
/// in the record.
pub(crate) const CONTRADICTIONS: usize = 8;
/// Foreign text quoted in a line, in bytes, such as a refusal or a parser's error.
pub(crate) const QUOTED: usize = 4 << 10;
/// The line of a failure, in bytes, including names of fields and containers that a plugin or an
/// engine chose. Several quoted texts fit.
pub(crate) const LINE: usize = 32 << 10;
/// The longest line, in bytes, to which a message's code is added. The search for the message takes
/// 1 to 2 µs in a usual line, and up to 1 ms in the longest.
pub(crate) const LINE_WITH_CODE: usize = 8 << 10;
/// Places in a line where a message is searched for: the beginning, and after each colon.
pub(crate) const PARTS_WITH_CODE: usize = 32;
/// One part of a response to an operator, in bytes, below the frame's limit; a longer response is
/// sent in parts.
pub(crate) const ADMIN_PART: usize = 1 << 20;
/// Pods and containers in one line of a recorded state, in bytes; a longer state has several lines.
pub(crate) const RECORDED_STATE: usize = 1 << 20;
/// Notes of commands that ran without the daemon, of some 4 KiB each: two for each container of a
/// large node. Further notes replace the oldest; the next daemon searches for the containers of the
/// replaced ones.
pub(crate) const BYPASS_NOTES: usize = 2048;
/// Notes of commands that wrappers refused without the daemon: kubelet repeats such commands
/// forever.
pub(crate) const REFUSAL_NOTES: usize = 128;
/// One note of a command that ran without the daemon or was refused without it, in bytes. The
/// resources of an `update`, or the refused request, are omitted from a note that would be longer.
pub(crate) const NOTE: usize = 1 << 20;
/// All notes of commands that ran without the daemon, in bytes (on a tmpfs). The notes of refused commands, in another
/// folder, have the same limit.
pub(crate) const NOTES: usize = 16 << 20;
/// Updates that may wait for a container's creation or start.
pub(crate) const DEFERRED: usize = 200;
/// Bytes of a container's waiting updates in its record; an update has some 100.
pub(crate) const DEFERRED_BYTES: usize = 1 << 20;
/// Events queued for a plugin that is not yet synchronized.
pub(crate) const EVENT_BACKLOG: usize = 10_000;
/// Encoded bytes of the events queued for a plugin that is not yet synchronized; one has some 5 KiB.
pub(crate) const EVENT_BACKLOG_BYTES: usize = 64 << 20;
/// Requests queued for the reader of a recording.
pub(crate) const RECORDING_BACKLOG: usize = 1024;
/// Bytes of the lines queued for the reader of a recording; a longer line is queued alone.
pub(crate) const RECORDING_BACKLOG_BYTES: usize = 16 << 20;
/// Events kept in memory for readers of `nri events`.
pub(crate) const EVENTS: usize = 4000;
/// Bytes of the lines of all events kept in memory; a line has some 600.
pub(crate) const EVENTS_BYTES: usize = 1 << 20;
/// Event lines that are compressed as one block.
pub(crate) const EVENTS_TOGETHER: usize = 64;
/// Concurrent readers that follow events: each is a connection of the daemon.
pub(crate) const EVENT_READERS: usize = 16;
/// Bytes of events that one reader receives before another task has its turn.
pub(crate) const EVENT_BATCH: usize = 64 << 10;
/// The labels of a pod in an event, in bytes: an author may choose a megabyte, which would displace
/// all other events.
pub(crate) const EVENT_LABELS: usize = 4 << 10;
/// Conditions, and as many taints, of a node for missing plugins.
pub(crate) const NODE_CONDITIONS: usize = 32;
/// Letters of a plugin's name in the key of its condition and taint: Kubernetes limits a key to 63
/// letters, prefix included.
pub(crate) const CONDITION_NAME: usize = 50;
/// Attempts to change a node that other clients are changing too.
pub(crate) const CONFLICTS: usize = 5;
/// Kubernetes Events in a burst about one pod: the API server keeps each for an hour.
pub(crate) const POD_EVENTS: u32 = 5;
/// Kubernetes Events in a burst about all pods of the node.
pub(crate) const NODE_EVENTS: u32 = 50;
/// Pods whose Kubernetes Events are counted, some 100 bytes each.
pub(crate) const EVENT_PODS: usize = 1024;
/// A name in Kubernetes, in bytes.
pub(crate) const KUBERNETES_NAME: usize = 253;
/// The part of a pod's name in the name of its Event, in bytes.
pub(crate) const EVENT_POD_NAME: usize = 200;
/// The message of an Event, in bytes. Kubernetes permits 1024; the number of omitted Events may be
/// added.
pub(crate) const EVENT_MESSAGE: usize = 900;
/// Latest refusals in one record: an engine may retry a start, an update or an exec forever.
pub(crate) const REFUSALS: usize = 20;
/// First entries, and as many last ones, of a list in a record: an engine may repeat requests
/// forever.
pub(crate) const ENDS: usize = 200;
/// Log lines about the entries of one list; the other entries are counted in one more line.
pub(crate) const LISTED: usize = 20;
/// All arguments of a process that `exec` starts, in bytes, as the daemon receives them.
pub(crate) const LATER_ARGS: usize = 16 << 10;
/// One argument of a process that `exec` starts, in bytes; a path has at most 4096.
pub(crate) const LATER_ARG: usize = 4200;
/// The document of an `exec` that plugins receive, in bytes: below the limits of a frame and of a
/// plugin's request. A kernel accepts some 2 MiB of arguments and environment.
pub(crate) const LATER_DOCUMENT: usize = 3 << 20;
/// Latest execs changed by plugins that `explain` shows for a container.
pub(crate) const EXEC_CHANGES: usize = 20;

/// A file with settings, in bytes: the configuration, CDI files, classes, and a plugin's settings,
/// which must fit into a message. It is read as a whole; a larger one is refused.
pub(crate) const SETTINGS_FILE: usize = 4 << 20;
/// A file of the kernel, in bytes: the mounts and sockets of a large node take megabytes.
pub(crate) const KERNEL_FILE: usize = 64 << 20;
/// A process's list of its cgroups, in bytes: some twelve paths. It is read for thousands of
/// processes.
pub(crate) const CGROUPS_OF_PROCESS: usize = 8 << 10;
/// Containers whose cgroups are kept after an update, up to 6 KB each; those of others are read again.
pub(crate) const CACHED_CGROUPS: usize = 256;
/// A file of a runtime or an engine about one container, in bytes: its state, exit code or PID.
pub(crate) const CONTAINER_FILE: usize = 16 << 20;
/// The policy file for unprivileged users, in bytes: one word.
pub(crate) const ROOTLESS_MARKER: usize = 64;
/// A file of the run directory, in bytes: a record holds texts of plugins and engines about one
/// container.
pub(crate) const OWN_FILE: usize = 64 << 20;
/// A program that is copied or compared with this one, in bytes.
pub(crate) const PROGRAM_FILE: usize = 256 << 20;
/// Names listed in one line; the others are counted.
pub(crate) const NAMES: usize = 8;

// Plugins
/// Connections to the plugin socket that may be registering at the same time (D11).
pub(crate) const REGISTERING: usize = 64;
/// Disconnected plugins and refused connections that are shown.
pub(crate) const DEPARTED: usize = 64;
/// Refused connections among the [`DEPARTED`]: a peer that changes its name each time displaces no
/// more plugins that were connected.
pub(crate) const DEPARTED_REFUSED: usize = 16;
/// Plugin identities whose takeovers are remembered.
pub(crate) const TAKEOVER_PLACES: usize = 1024;
/// Pods remembered for one plugin identity, because a process outside the pod replaced the pod's process.
pub(crate) const TAKEOVER_PODS: usize = 16;
/// Plugin names with a row in the metrics: a peer may choose a new name each time. Plugins that the
/// operator configured or installed always have a row.
pub(crate) const METRIC_NAMES: usize = 128;
/// Unknown fields of one plugin connection that are logged, each once: random field numbers must
/// not flood the log.
pub(crate) const UNKNOWN_FIELDS: usize = 1000;
/// Entries read from the list of plugins in the run directory, one per line: far more than can be
/// connected.
pub(crate) const LISTED_PLUGINS: usize = 1000;
/// Notifications of the extension that one plugin has not answered, each a task with its message;
/// more are dropped and counted. Execs of a busy node reach this limit within seconds.
pub(crate) const EXTENSION_NOTICES: usize = 256;
/// Consecutive failed updates of one container by one plugin before further ones are delayed: an
/// ending container or a busy engine causes one or two.
pub(crate) const FREE_FAILURES: u32 = 3;
/// Pairs of a container and a plugin whose updates keep failing, some 100 bytes each. Updates of
/// further pairs are not delayed.
pub(crate) const FAILING_UPDATES: usize = 4096;
/// Requests of one plugin queued for the daemon, each in memory: as many as `nri-transport` reads
/// unanswered (`IN_HAND`), so none waits for room.
pub(crate) const PLUGIN_REQUESTS: usize = 32;
/// Snapshots that are being sent to plugins, in bytes.
pub(crate) const SNAPSHOTS: usize = 64 << 20;
/// A line that a launched plugin prints, in bytes; a longer one is cut.
pub(crate) const PLUGIN_LINE: usize = 1000;
/// Lines of a launched plugin that are logged within 10 s; further ones are counted.
pub(crate) const PLUGIN_LINES: u32 = 200;
/// Last lines of a launched plugin that are kept for error messages.
pub(crate) const PLUGIN_LAST_LINES: usize = 5;
/// Last lines of a launched plugin that `plugins --logs` shows.
pub(crate) const PLUGIN_TAIL_LINES: usize = 500;
/// Bytes of the lines of a launched plugin that `plugins --logs` shows.
pub(crate) const PLUGIN_TAIL_BYTES: usize = 128 << 10;

// Containers and pods
/// Changes of one creation or `exec` that the container's record keeps for `explain`.
pub(crate) const CHANGES: usize = 2000;
/// Matches of audit-mode rules in one container's record.
pub(crate) const RULE_HITS: usize = 100;
/// Removed or refused containers that `explain` still shows (D27), and as many removed pods.
pub(crate) const REMEMBERED: usize = 1000;
/// Bytes of the records of removed or refused containers before compression, and as many of
/// removed pods.
pub(crate) const REMEMBERED_BYTES: usize = 16 << 20;
/// Records of removed containers, or of pods, that are compressed together.
pub(crate) const REMEMBERED_TOGETHER: usize = 16;
/// Removed containers whose records stay on disk (a tmpfs): a container may be created again under
/// its ID.
pub(crate) const KEPT_RECORDS: usize = 256;
/// Bytes of the records of removed containers on disk; a single larger record stays.
pub(crate) const KEPT_RECORDS_BYTES: usize = 32 << 20;
/// Deleted containers kept for their engine; beyond the limit the oldest are treated as removed.
pub(crate) const UNTIL_REMOVED: usize = 1000;
/// CRI-O pod folders that are awaited concurrently; further pods are announced with their first
/// container.
pub(crate) const AWAITED_FOLDERS: usize = 1000;
/// Containers of the plain runtime that plugins receive: far more than a node has.
pub(crate) const PLAIN_CONTAINERS: usize = 2000;
/// State directories of the plain runtime (one for each namespace of an engine), and their parents,
/// that are watched.
pub(crate) const RUNTIME_ROOTS: usize = 256;
/// Container folders that one search in the plain runtime's state directories examines.
pub(crate) const RUNTIME_FOLDERS: usize = 20_000;
/// New folders of one state directory in which the runtime's state is awaited.
pub(crate) const ARRIVING: usize = 1000;
/// New folders of one state directory that are examined concurrently.
pub(crate) const ARRIVALS_LOOKED_AT: usize = 16;
/// Checks of a new folder for its runtime's state, within some 25 s.
pub(crate) const ARRIVAL_LOOKS: u32 = 12;
/// Unadjusted containers that `status` names. If no daemon ran for a while, every container of the
/// node may be one.
pub(crate) const UNADJUSTED: usize = 100;
/// Containers with access to the plugin socket that `check` names; the others are counted. One
/// mount in a template exposes the socket to every container.
pub(crate) const EXPOSED: usize = 20;
/// Failures that `status` shows, one per line: they fit a screen, and the log has the others.
pub(crate) const FAILURES: usize = 20;
/// Unreadable items that `status` shows, one per line; the oldest is dropped. A line names an engine's
/// file and an error, so there may be any number of different lines.
pub(crate) const MISSING: usize = 64;
/// Contradicted identity claims of all containers that `status` shows: tenants cause them, and the
/// record of each container lists its own.
pub(crate) const CONTRADICTED: usize = 100;
/// A pod's ID, or a name that an nri-runc key gives a pod or container, in bytes; longer ones do
/// not occur in engines or Kubernetes.
pub(crate) const POD_ID: usize = 253;
/// A value in a line about a contradicted claim, in characters.
pub(crate) const CLAIM: usize = 80;
/// Concurrent threads in other network namespaces; beyond this number, addresses stay unknown.
pub(crate) const NAMESPACE_THREADS: usize = 8;
/// The kernel's messages that are read in response to one query of addresses: a container may have
/// millions of addresses.
pub(crate) const ADDRESS_ANSWERS: usize = 8;
/// One message of the kernel in response to a query of addresses, in bytes.
pub(crate) const ADDRESS_ANSWER: usize = 32 << 10;
/// Entries of the host's `/dev` that are compared with a container's devices; a node has hundreds.
pub(crate) const DEVICE_NODES: usize = 50_000;
/// Addresses of a pod that plugins receive.
pub(crate) const ADDRESSES: usize = 16;
/// Existing cgroups that are examined to see which files the kernel has.
pub(crate) const PRESENT_CGROUPS: usize = 8;
/// The name of a process as the kernel keeps it, in bytes.
pub(crate) const PROCESS_NAME: usize = 15;
/// Ancestors of a wrapper that an `exec` records.
pub(crate) const CALLERS: usize = 16;
/// A `tracestate` that is passed on, in bytes: the W3C recommendation asks for at least 512.
pub(crate) const TRACE_STATE: usize = 512;

/// Values that `drift` lists, some 300 bytes each, so that the response is one part.
pub(crate) const DRIFTS: usize = 2000;
/// Containers whose files time out (after 10 s each) before a check of all containers is abandoned.
pub(crate) const DRIFT_UNANSWERED: usize = 3;
/// Restorations of drifted values within a minute on the node, each of any number of values:
/// another program may change them again each time.
pub(crate) const DRIFT_WRITES: usize = 60;
/// Restorations of drifted values within an hour for one container.
pub(crate) const DRIFT_WRITES_OF_CONTAINER: usize = 10;

/// Recorded requests to plugins, and their responses, that the daemon keeps for `sysdump`, in bytes.
pub(crate) const FLIGHT: usize = 1 << 20;
/// A request to a plugin or a response that is kept for `sysdump`, in bytes; a creation has some 8 KiB.
pub(crate) const FLIGHT_MESSAGE: usize = 16 << 10;

/// A line of a script or recording, in bytes: the first line of a node with 10,000 containers has
/// some 50 MB.
pub(crate) const SCRIPT_LINE: usize = 256 << 20;

/// A text or the rows of a list in a `sysdump`, in bytes.
pub(crate) const SYSDUMP_PART: usize = 2 << 20;
/// Lines of a log, mounts, and files of a folder in a `sysdump`, each.
pub(crate) const SYSDUMP_LINES: usize = 5000;

// Lines and texts
/// A line for the journal or syslog, in characters: their datagrams are limited. A longer one is
/// cut.
pub(crate) const LOG_LINE: usize = 16 << 10;
/// Log lines within a minute from one place in the program: more than all containers of a large
/// node cause when they start together.
pub(crate) const LOG_LINES: usize = 300;
/// Log lines within a minute from one place in the program about one plugin.
pub(crate) const LOG_LINES_OF_PLUGIN: usize = 60;
/// Pairs of a place in the program and a plugin whose lines are counted. Beyond this number, only
/// the limit of the place applies, because a peer may choose a new name each time.
pub(crate) const LOG_KINDS: usize = 1000;
/// Lines within a minute about connections refused for one reason: a peer can cause thousands a
/// second.
pub(crate) const REFUSED_LINES: usize = 10;
/// Lines within a minute about plugins that connect, and as many about plugins that disconnect.
pub(crate) const CONNECTION_LINES: usize = 100;
/// A text in an audit line, in bytes; a longer one is cut, so that eleven texts and two values fit
/// into a line.
pub(crate) const AUDIT_TEXT: usize = 1024;
/// A value in an audit line, in bytes; a longer one is cut.
pub(crate) const AUDIT_VALUE: usize = 4096;
/// An audit line, in bytes: escaping a byte of a text or value may take six.
pub(crate) const AUDIT_LINE: usize = 128 << 10;
/// A field of a line of the journal, in characters; a longer one is cut.
pub(crate) const JOURNAL_FIELD: usize = 256;
/// A runtime's message that a line of nri-runc quotes, in characters.
pub(crate) const RUNTIME_MESSAGE: usize = 500;
/// The last output of an exited daemon, as it is shown, in characters.
pub(crate) const LAST_WORDS: usize = 400;
/// The part of an ID in the name of a record's file, in bytes.
pub(crate) const ID_IN_FILE_NAME: usize = 120;
/// The name of a rule, an injection or a promise, in characters.
pub(crate) const SECTION_NAME: usize = 100;
/// A word that is compared with the known keys, in characters; every key is shorter.
pub(crate) const SPELLED_WORD: usize = 200;
/// The first rules, with which each later rule is compared, and the entries compared in their
/// lists: comparing every pair of thousands of rules takes a minute.
pub(crate) const COMPARED_RULES: usize = 32;
/// Different changes listed in a comparison of two configurations; the others are counted.
pub(crate) const COMPARED_ROWS: usize = 1000;
/// Nesting depth of a manifest beyond which members are ignored: a pod's own members are at most
/// ten deep.
pub(crate) const MANIFEST_DEPTH: usize = 50;
/// A column of a table, in characters; a longer cell overflows its column instead of widening every
/// row.
pub(crate) const COLUMN: usize = 256;
/// The minimum width of a column that is shortened to fit the screen, in characters: a shorter text
/// identifies nothing.
pub(crate) const SHORTEST_COLUMN: usize = 12;
/// Rows of plugins in `top`: the pods need the rest of the screen.
pub(crate) const TOP_PLUGINS: usize = 20;
/// Lines of failures in `top`.
pub(crate) const TOP_FAILURES: usize = 8;

// Queues and connections
/// Audit lines queued for the disk; further ones are lost and counted.
pub(crate) const AUDIT_QUEUE: usize = 4096;
/// Bytes of the queued audit lines.
pub(crate) const AUDIT_QUEUE_BYTES: usize = 4 << 20;
/// Log lines queued for one target of the log; further ones are lost and counted.
pub(crate) const LOG_QUEUE: usize = 1024;
/// Bytes of the queued log lines.
pub(crate) const LOG_QUEUE_BYTES: usize = 1 << 20;
/// Concurrent connections to the metrics or probe port.
pub(crate) const HTTP_CONNECTIONS: usize = 16;
/// The head of a request to the metrics or probe port, in bytes.
pub(crate) const HTTP_HEAD: usize = 16 << 10;
/// A frame between a wrapper and the daemon, in bytes: Linux allows 6 MiB of arguments and
/// environment.
pub(crate) const FRAME: u32 = 8 << 20;
/// Calls off the event loop that have not returned, each with a thread; further calls wait until
/// one returns.
pub(crate) const OFF_LOOP: usize = 64;
/// Calls for one folder that have not returned, so that a folder that hangs leaves threads for the
/// others.
pub(crate) const OFF_LOOP_IN_FOLDER: usize = 8;

// Files and answers that are read
/// A `config.json` or the document of an `exec`, in bytes. Engines write 4 to 300 KB.
pub(crate) const DOCUMENT: u64 = 16 << 20;
/// A document above this size, in bytes, is parsed and edited on another thread.
pub(crate) const LARGE_DOCUMENT: usize = 256 << 10;
/// The resources of an `update`, in bytes, from standard input or a file; usually some KB.
pub(crate) const RESOURCES: u64 = 16 << 20;
/// The state on a hook's standard input, in bytes: it repeats the annotations.
pub(crate) const HOOK_STATE: usize = 4 << 20;
/// A container's mark, in bytes. Linux allows 6 MiB of arguments and environment.
pub(crate) const MARK: usize = 16 << 20;
/// The state that a daemon passes to the next program, in bytes: 100,000 containers need less.
pub(crate) const HANDOVER: u64 = 256 << 20;
/// The response of the program that is to replace this one, in bytes.
pub(crate) const CANDIDATE_ANSWER: usize = 64 << 10;
/// A log file, in bytes: a longer one is renamed; two are kept.
pub(crate) const LOG_FILE: u64 = 4 << 20;
/// The standard error of a runtime that the daemon starts, in bytes.
pub(crate) const RUNTIME_STDERR: u64 = 64 << 10;
/// The end of a runtime's log that is read, in bytes.
pub(crate) const RUNTIME_LOG_TAIL: u64 = 64 << 10;
/// The end of the file with a daemon's standard error that is read, in bytes: a panic fits.
pub(crate) const LAST_WORDS_TAIL: u64 = 4 << 10;
/// The output of a command of a runtime or another program, such as `--version`, in bytes.
pub(crate) const RUNTIME_ANSWER: u64 = 1 << 20;
/// A response of Docker's API, in bytes; usually 5 KB.
pub(crate) const DOCKER_ANSWER: u64 = 4 << 20;
/// An event of containerd, in bytes; a TaskExit has some 200.
pub(crate) const TASK_EVENT: usize = 64 << 10;
/// Latest exits that containerds published and the daemon keeps.
pub(crate) const TASK_EXITS: usize = 4096;
/// Containerds whose events are followed.
pub(crate) const TASK_EXIT_SOURCES: usize = 16;
/// All responses of containerd to one request, or kubelet's list of the node's pods, in bytes; also
/// the receive window for them.
pub(crate) const CONTAINERD_ANSWER: u32 = 16 << 20;
/// Pages, keys and rows (and each half KiB of a row) that one search in an engine's database may
/// visit: a forged page may have tens of thousands of entries, each as large as the file.
pub(crate) const DATABASE_STEPS: usize = 500_000;
/// The depth of a tree of database pages; real ones are lower.
pub(crate) const DATABASE_DEPTH: usize = 20;
/// A file that `install` reads, in bytes. Only Podman's database grows.
pub(crate) const INSTALL_FILE: u64 = 256 << 20;

/// Keeps the first `most` lines, and adds the number of the others.
pub(crate) fn list_first(lines: &mut Vec<String>, most: usize) {
    let more = lines.len().saturating_sub(most);
    if more > 0 {
        lines.truncate(most);
        lines.push(format!("{more} more"));
    }
}

/// Returns the first [`LISTED`] lines, and one line that counts the others: "N more `noun`" (given
/// in the singular), then `what`, which must fit one and many.
pub(crate) fn listed(
    mut lines: impl Iterator<Item = String>,
    noun: &str,
    what: &str,
) -> Vec<String> {
    let mut first: Vec<String> = lines.by_ref().take(LISTED).collect();
    let more = lines.count();
    if more > 0 {
        first.push(format!("{} {what}", counted(more, &format!("more {noun}"))));
    }
    first
}

/// Adds to a list that keeps its latest `most` entries.
pub(crate) fn keep_latest<T>(list: &mut Vec<T>, next: T, most: usize) {
    list.push(next);
    list.drain(..list.len().saturating_sub(most));
}

/// Adds to a list that keeps its first and last [`ENDS`] entries.
pub(crate) fn keep_ends<T>(list: &mut Vec<T>, next: T) {
    if list.len() >= 2 * ENDS {
        list.remove(ENDS);
    }
    list.push(next);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlong_list_keeps_its_beginning_and_its_end() {
        let mut list = Vec::new();
        (0..1000).for_each(|number| keep_ends(&mut list, number));
        let (first, last) = list.split_at(ENDS);
        assert_eq!((first[0], first[ENDS - 1]), (0, ENDS - 1));
        assert_eq!((last[0], last.last()), (1000 - ENDS, Some(&999)));
        keep_latest(&mut list, 1000, 2);
        assert_eq!(list, [999, 1000]);
    }

    #[test]
    fn a_long_list_keeps_its_first_lines_and_counts_the_others() {
        let mut lines: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        list_first(&mut lines, 2);
        assert_eq!(lines, ["0", "1", "98 more"]);
        list_first(&mut lines, 3);
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn listed_lines_end_with_the_number_of_the_others() {
        let of =
            |count: usize| listed((0..count).map(|number| number.to_string()), "error", "in it");
        assert_eq!((of(0).len(), of(LISTED).len()), (0, LISTED));
        assert_eq!(of(LISTED + 1)[LISTED], "1 more error in it");
        assert_eq!((of(7000).len(), &*of(7000)[LISTED]), (LISTED + 1, "6980 more errors in it"));
    }
}
