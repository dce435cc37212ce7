// SPDX-License-Identifier: Apache-2.0
//! The limits of everything whose length a tenant, a plugin or an engine chooses (D54), each where
//! it enters. Beyond one, a text is cut and its length is stated; an identity, and a list that
//! protects, is refused. `tests/tidy/limits.rs` finds a number that stands elsewhere.
//!
//! The crates, which others use without this program, have their own: `nri-api` the name of a plugin,
//! `nri-transport` the messages of a plugin and what waits of them, `nri-adaptation` the entries of an answer
//! and the plugins that a pod may require, `oci-document` the document that is edited.

pub(crate) use nri_api::text::{cut, split};

use crate::text::counted;

/// The plugins that take part at once: each event waits for all of them. The reference's own benchmark
/// has ten; one that is pre-installed or configured is never refused for the number of others.
pub(crate) const PLUGINS: usize = 128;
/// Annotations of one container. Each costs some 10 µs at its creation, and as much at its end: Kubernetes
/// limits their length alone, to 256 KiB, which is room for 80,000.
pub(crate) const ANNOTATIONS: usize = 10_000;
/// Claims of one container that its engine contradicts: each is a line of the log and of the record.
pub(crate) const CONTRADICTIONS: usize = 8;
/// Foreign text inside one of our lines, in bytes: a refusal, a parser's complaint.
pub(crate) const QUOTED: usize = 4 << 10;
/// A failure as one line, in bytes, with the names of fields and containers that it has: they are a
/// plugin's or an engine's choice. Room for several quoted texts.
pub(crate) const LINE: usize = 32 << 10;
/// A line in which the code of a message is searched, in bytes, and its parts between colons at which a message
/// may begin: the search takes 0.1 ms for a usual line and 1 ms at most.
pub(crate) const LINE_WITH_CODE: usize = 8 << 10;
pub(crate) const PARTS_WITH_CODE: usize = 32;
/// Part of an answer to an operator, in bytes; a longer answer is sent in parts. Below the frame.
pub(crate) const ADMIN_PART: usize = 1 << 20;
/// Pods and containers in one line of a recorded state, in bytes; a longer state has several lines.
pub(crate) const RECORDED_STATE: usize = 1 << 20;
/// Notes of commands that ran without the daemon, of some 4 KiB each: two for each container of a
/// large node. Beyond it the oldest go, and the next daemon searches for their containers.
pub(crate) const BYPASS_NOTES: usize = 2048;
/// Notes of commands that wrappers refused without the daemon: kubelet repeats them for ever.
pub(crate) const REFUSAL_NOTES: usize = 128;
/// One note of either kind, in bytes, and all notes of one kind: they are on a tmpfs. A request has some
/// 2 KiB, an `update` as much as its resources, which a longer note is written without.
pub(crate) const NOTE: usize = 1 << 20;
pub(crate) const NOTES: usize = 16 << 20;
/// Updates that may wait for a container to be created or started, and their bytes in its record. An update
/// has some 100 bytes.
pub(crate) const DEFERRED: usize = 200;
pub(crate) const DEFERRED_BYTES: usize = 1 << 20;
/// Events that may be queued for a plugin before it is synchronized, and their bytes as they are sent: some
/// 5 KiB each.
pub(crate) const EVENT_BACKLOG: usize = 10_000;
pub(crate) const EVENT_BACKLOG_BYTES: usize = 64 << 20;
/// Requests that may be queued for the reader of a recording, and the bytes of their lines.
pub(crate) const RECORDING_BACKLOG: usize = 1024;
pub(crate) const RECORDING_BACKLOG_BYTES: usize = 16 << 20;
/// Events that are kept for readers of `nri events`, and the bytes of their lines: some 600 bytes each, in
/// the daemon's memory.
pub(crate) const EVENTS: usize = 4000;
pub(crate) const EVENTS_BYTES: usize = 1 << 20;
/// Readers that follow events at once: each is a connection of the daemon.
pub(crate) const EVENT_READERS: usize = 16;
/// Bytes of events that one reader is sent before another task has its turn.
pub(crate) const EVENT_BATCH: usize = 64 << 10;
/// The labels of a pod that an event has, in bytes: an author may choose a megabyte, which would turn over
/// all that are kept.
pub(crate) const EVENT_LABELS: usize = 4 << 10;
/// Conditions and taints of a node for missing plugins, and letters of a plugin's name in their keys, which
/// Kubernetes limits to 63 with what stands before it.
pub(crate) const NODE_CONDITIONS: usize = 32;
pub(crate) const CONDITION_NAME: usize = 50;
/// Attempts to change a node that others change at the same time.
pub(crate) const CONFLICTS: usize = 5;
/// Events on pods at once, of one pod and of the node's: the API server keeps each for an hour.
pub(crate) const POD_EVENTS: u32 = 5;
pub(crate) const NODE_EVENTS: u32 = 50;
/// Pods whose Events are counted: some 100 bytes each.
pub(crate) const EVENT_PODS: usize = 1024;
/// A name in Kubernetes; how much of a pod's is in the name of its Event; the message of an Event, which
/// Kubernetes limits to 1024 bytes. The rest is for the number of those that were left out.
pub(crate) const KUBERNETES_NAME: usize = 253;
pub(crate) const EVENT_POD_NAME: usize = 200;
pub(crate) const EVENT_MESSAGE: usize = 900;
/// Lines of one record about refusals: an engine starts a container again and again.
pub(crate) const REFUSALS: usize = 20;
/// First and last entries of one list of a record: an engine repeats its requests for ever.
pub(crate) const ENDS: usize = 200;
/// Lines of the log about the entries of one list: the others are counted in one more line.
pub(crate) const LISTED: usize = 20;
/// Arguments of a process that `exec` starts, as the daemon receives them, in bytes: all of them, and
/// one. A path has 4096 at most.
pub(crate) const LATER_ARGS: usize = 16 << 10;
pub(crate) const LATER_ARG: usize = 4200;
/// The document of such a process that plugins are shown, in bytes: below the frame, and below what a request to a
/// plugin may have. A kernel takes some 2 MiB of arguments and environment.
pub(crate) const LATER_DOCUMENT: usize = 3 << 20;
/// Execs with changes of plugins that `explain` shows of one container, the latest ones.
pub(crate) const EXEC_CHANGES: usize = 20;

/// The largest files that are read whole, in bytes; a larger one is refused. Settings: the
/// configuration, CDI's files, classes, a plugin's own, which has to fit into a message.
pub(crate) const SETTINGS_FILE: usize = 4 << 20;
/// A file of the kernel: the mounts and the sockets of a large node are megabytes.
pub(crate) const KERNEL_FILE: usize = 64 << 20;
/// A file of a runtime or an engine about one container: its state, its exit code, its PID.
pub(crate) const CONTAINER_FILE: usize = 16 << 20;
/// The policy for users without privileges: one word.
pub(crate) const ROOTLESS_MARKER: usize = 64;
/// A file of the run directory: a record has what plugins and engines said of one container.
pub(crate) const OWN_FILE: usize = 64 << 20;
/// A program that is compared with this one.
pub(crate) const PROGRAM_FILE: usize = 256 << 20;
/// Names in one line; the others are counted.
pub(crate) const NAMES: usize = 8;

// Plugins
/// Connections to the plugin socket that may be registering at once (D11).
pub(crate) const REGISTERING: usize = 64;
/// Plugins that are gone and still shown, and the share of them that may be refused connections: a peer
/// chooses a new name each time, and must not displace the plugins that took part.
pub(crate) const DEPARTED: usize = 64;
pub(crate) const DEPARTED_REFUSED: usize = 16;
/// Plugins' places whose takeovers are remembered, and pods that are kept for one place.
pub(crate) const TAKEOVER_PLACES: usize = 1024;
pub(crate) const TAKEOVER_PODS: usize = 16;
/// Names of plugins with a row each in the metrics: a peer chooses a new one each time.
pub(crate) const METRIC_NAMES: usize = 128;
/// Unknown fields of one plugin that are logged, each once: random numbers must not flood the log.
pub(crate) const UNKNOWN_FIELDS: usize = 1000;
/// Plugins of the list in the run directory that are read, one a line: far more than take part at once.
pub(crate) const LISTED_PLUGINS: usize = 1000;
/// Notifications of the extension that may be on their way to one plugin at once, each a task with its message; the
/// others are dropped and counted. Some seconds of a busy node's execs.
pub(crate) const EXTENSION_NOTICES: usize = 256;
/// Failures in a row of one plugin's updates of one container that slow nothing down: a container that ends, or an
/// engine that is busy, makes one or two.
pub(crate) const FREE_FAILURES: u32 = 3;
/// Containers whose updates by a plugin fail again and again, each some 100 bytes: beyond that, further ones are not
/// slowed down until others have recovered.
pub(crate) const FAILING_UPDATES: usize = 4096;
/// Requests of one plugin that may wait for their turn, each in memory; the plugin is held back beyond that.
pub(crate) const PLUGIN_REQUESTS: usize = 32;
/// Requests with snapshots that are on their way to plugins at once, in bytes: each is in memory twice.
pub(crate) const SNAPSHOTS: usize = 64 << 20;
/// A line that a launched plugin prints, in bytes; a longer one is cut.
pub(crate) const PLUGIN_LINE: usize = 1000;
/// Lines of a launched plugin that are logged within 10 s; the others are counted.
pub(crate) const PLUGIN_LINES: u32 = 200;
/// Last lines of a launched plugin that are kept for error messages.
pub(crate) const PLUGIN_LAST_LINES: usize = 5;
/// Last lines of a launched plugin, and bytes of them, that `plugins --logs` shows.
pub(crate) const PLUGIN_TAIL_LINES: usize = 500;
pub(crate) const PLUGIN_TAIL_BYTES: usize = 128 << 10;

// Containers and pods
/// Changes of one creation that its record keeps for `explain`.
pub(crate) const CHANGES: usize = 2000;
/// Hits of rules in audit mode that one container's record has.
pub(crate) const RULE_HITS: usize = 100;
/// Removed or refused containers that `explain` still shows (D27), and the bytes of their records: some 3 KB
/// each.
pub(crate) const REMEMBERED: usize = 1000;
pub(crate) const REMEMBERED_BYTES: usize = 64 << 20;
/// Removed containers whose record stays on disk, a tmpfs, and the bytes of these: one may be created again
/// under its ID. The newest stays however long it is.
pub(crate) const KEPT_RECORDS: usize = 256;
pub(crate) const KEPT_RECORDS_BYTES: usize = 32 << 20;
/// Deleted containers that are kept for their engine; beyond it the oldest count as removed.
pub(crate) const UNTIL_REMOVED: usize = 1000;
/// Folders of CRI-O's pods that are awaited at once; further pods are announced with their first
/// container.
pub(crate) const AWAITED_FOLDERS: usize = 1000;
/// Containers of the plain runtime that plugins see, far more than a node has; state directories that are
/// watched for them, one for each namespace of an engine; folders in these that are looked at; and new folders
/// of one directory whose state is awaited at once, and those of them that are looked at beside each other.
pub(crate) const PLAIN_CONTAINERS: usize = 2000;
pub(crate) const RUNTIME_ROOTS: usize = 256;
pub(crate) const RUNTIME_FOLDERS: usize = 20_000;
pub(crate) const ARRIVING: usize = 1000;
pub(crate) const ARRIVALS_LOOKED_AT: usize = 16;
/// Looks at a new folder until its runtime has written the state, within some 25 s.
pub(crate) const ARRIVAL_LOOKS: u32 = 12;
/// Unadjusted containers that `status` names: after a time without the daemon all of a node may be.
pub(crate) const UNADJUSTED: usize = 100;
/// Containers with access to the plugin socket that are named; the others are counted: one mount in a template
/// gives it to all of a node.
pub(crate) const EXPOSED: usize = 20;
/// Failures that `status` shows, each in a line: they fit a screen, and the log has the others.
pub(crate) const FAILURES: usize = 20;
/// Different unreadable items that `status` shows, each in a line: their texts name files and errors of an
/// engine, which may differ each time.
pub(crate) const MISSING: usize = 64;
/// Contradictions that `status` shows, of all containers: tenants cause them, and each record has its own.
pub(crate) const CONTRADICTED: usize = 100;
/// A pod's ID, or a name that a key of ours gives a pod or container, in bytes; a longer one is not an
/// engine's, nor Kubernetes'.
pub(crate) const POD_ID: usize = 253;
/// A value that a line about a contradiction shows, in characters.
pub(crate) const CLAIM: usize = 80;
/// Threads that may be in other network namespaces at once; beyond it addresses stay unknown.
pub(crate) const NAMESPACE_THREADS: usize = 8;
/// Answers of the kernel about addresses, and bytes of one: a container may give itself millions of
/// addresses.
pub(crate) const ADDRESS_ANSWERS: usize = 8;
pub(crate) const ADDRESS_ANSWER: usize = 32 << 10;
/// Entries of the host's `/dev` that are compared with a container's devices; a node has hundreds.
pub(crate) const DEVICE_NODES: usize = 50_000;
/// Addresses of a pod that plugins receive.
pub(crate) const ADDRESSES: usize = 16;
/// Present cgroups that are looked at for the files that a kernel has.
pub(crate) const PRESENT_CGROUPS: usize = 8;
/// The name of a process as the kernel keeps it, in bytes.
pub(crate) const PROCESS_NAME: usize = 15;
/// Ancestors of a wrapper that an `exec` records.
pub(crate) const CALLERS: usize = 16;
/// A `tracestate` that is passed on, in bytes: its recommendation asks for 512 at least.
pub(crate) const TRACE_STATE: usize = 512;

/// Values that `drift` lists, some 300 bytes each: an answer is one part then.
pub(crate) const DRIFTS: usize = 2000;
/// Containers whose files do not answer, each within 10 s, until a look at all of them ends.
pub(crate) const DRIFT_UNANSWERED: usize = 3;
/// Values of containers that are put back within a minute, and those of one container within an hour: another
/// program may change them as often.
pub(crate) const DRIFT_WRITES: usize = 60;
pub(crate) const DRIFT_WRITES_OF_CONTAINER: usize = 10;

/// The last requests to plugins and their answers that the daemon keeps for `sysdump`, in bytes, and the longest
/// message of them; a creation has some 8 KiB.
pub(crate) const FLIGHT: usize = 1 << 20;
pub(crate) const FLIGHT_MESSAGE: usize = 16 << 10;

/// A line of a script or recording, in bytes: a node of 10,000 containers has some 50 MB in its first.
pub(crate) const SCRIPT_LINE: usize = 256 << 20;

/// A large part of a `sysdump`, in bytes, of which there are four, and the lines or rows of others: with the
/// small parts an archive has 20 MB at most, before it is compressed.
pub(crate) const SYSDUMP_PART: usize = 2 << 20;
pub(crate) const SYSDUMP_LINES: usize = 5000;

// Lines and texts
/// A line for the journal or syslog, in characters, whose datagrams have a limit; a longer one is cut.
pub(crate) const LOG_LINE: usize = 16 << 10;
/// Lines of one place of the program in a minute, more than the containers of a node that all start at
/// once, and those of them that are about one plugin.
pub(crate) const LOG_LINES: usize = 300;
pub(crate) const LOG_LINES_OF_PLUGIN: usize = 60;
/// Kinds of lines that are counted at once. Beyond it plugins share the lines of a place: a peer chooses
/// a name each time.
pub(crate) const LOG_KINDS: usize = 1000;
/// Lines about refused connections for one reason within a minute, as a peer can make thousands a second,
/// and about plugins that connect, or disconnect.
pub(crate) const REFUSED_LINES: usize = 10;
pub(crate) const CONNECTION_LINES: usize = 100;
/// A text and a value of an audit line, in bytes; a longer one is cut, so that eleven texts and two values
/// fit into a line.
pub(crate) const AUDIT_TEXT: usize = 1024;
pub(crate) const AUDIT_VALUE: usize = 4096;
/// An audit line, in bytes: each byte of a text or value may need six.
pub(crate) const AUDIT_LINE: usize = 128 << 10;
/// A field of a line of the journal, in characters; a longer one is cut.
pub(crate) const JOURNAL_FIELD: usize = 256;
/// A message of a runtime within one of our lines, in characters.
pub(crate) const RUNTIME_MESSAGE: usize = 500;
/// The last lines of a daemon that exited, as they are shown, in characters.
pub(crate) const LAST_WORDS: usize = 400;
/// The part of an ID that stands in the name of a record's file, in bytes.
pub(crate) const ID_IN_FILE_NAME: usize = 120;
/// The name of a rule, an injection or a promise, in characters.
pub(crate) const SECTION_NAME: usize = 100;
/// A word that is compared with the known ones, in characters; each key has fewer.
pub(crate) const SPELLED_WORD: usize = 200;
/// The first rules with which each later one is compared, and entries of their lists: every rule with
/// every other takes a minute where there are thousands.
pub(crate) const COMPARED_RULES: usize = 32;
/// Different changes that a comparison of two configurations lists; the others are counted.
pub(crate) const COMPARED_ROWS: usize = 1000;
/// The depth of a manifest below which its members are left out: what pods have is ten deep.
pub(crate) const MANIFEST_DEPTH: usize = 50;
/// A column of a table, in characters; a longer cell overflows it, as one cell must not widen all rows.
pub(crate) const COLUMN: usize = 256;
/// The characters to which a column of a table is shortened at most, so that the table fits the screen: fewer
/// name nothing.
pub(crate) const SHORTEST_COLUMN: usize = 12;
/// Rows of plugins, and lines of failures, that `top` shows, so that the pods have room on the same screen.
pub(crate) const TOP_PLUGINS: usize = 20;
pub(crate) const TOP_FAILURES: usize = 8;

// Queues and connections
/// Audit lines that wait for the disk, and their bytes; the next are lost and counted.
pub(crate) const AUDIT_QUEUE: usize = 4096;
pub(crate) const AUDIT_QUEUE_BYTES: usize = 4 << 20;
/// Log lines that wait for their reader, and their bytes; the next are lost and counted.
pub(crate) const LOG_QUEUE: usize = 1024;
pub(crate) const LOG_QUEUE_BYTES: usize = 1 << 20;
/// Connections to the metrics or probe port that are served at once.
pub(crate) const HTTP_CONNECTIONS: usize = 16;
/// The head of a request to such a port, in bytes.
pub(crate) const HTTP_HEAD: usize = 16 << 10;
/// A frame between a wrapper and the daemon, in bytes: Linux allows 6 MiB of arguments and environment.
pub(crate) const FRAME: u32 = 8 << 20;
/// Calls off the loop that have not returned, each with a thread; others wait until one returns.
pub(crate) const OFF_LOOP: usize = 64;
/// Those of one folder: one that hangs leaves threads for the others.
pub(crate) const OFF_LOOP_IN_FOLDER: usize = 8;

// Files and answers that are read
/// A `config.json`, or the document of an `exec`, in bytes. Engines write 4 to 300 KB.
pub(crate) const DOCUMENT: u64 = 16 << 20;
/// A document above this size, in bytes, is parsed and edited on another thread.
pub(crate) const LARGE_DOCUMENT: usize = 256 << 10;
/// The resources of an `update`, in bytes, from standard input or a file. They have some KB.
pub(crate) const RESOURCES: u64 = 16 << 20;
/// The state on the standard input of a hook, in bytes: it repeats the annotations.
pub(crate) const HOOK_STATE: usize = 4 << 20;
/// A container's mark, in bytes. Linux allows 6 MiB of arguments and environment.
pub(crate) const MARK: usize = 16 << 20;
/// The state that a daemon hands to the next program, in bytes: 100,000 containers need less.
pub(crate) const HANDOVER: u64 = 256 << 20;
/// The answer of the program that is to replace this one, in bytes.
pub(crate) const CANDIDATE_ANSWER: usize = 64 << 10;
/// A log file, in bytes: it is set aside then, and two are kept.
pub(crate) const LOG_FILE: u64 = 4 << 20;
/// The standard error of a runtime that the daemon starts, in bytes.
pub(crate) const RUNTIME_STDERR: u64 = 64 << 10;
/// The end of a runtime's log that is read, in bytes.
pub(crate) const RUNTIME_LOG_TAIL: u64 = 64 << 10;
/// The end of the file with a daemon's standard error that is read, in bytes: a panic fits.
pub(crate) const LAST_WORDS_TAIL: u64 = 4 << 10;
/// The output of a runtime that is asked for its features or version, in bytes.
pub(crate) const RUNTIME_ANSWER: u64 = 1 << 20;
/// An answer of Docker's API, in bytes; the usual one has 5 KB.
pub(crate) const DOCKER_ANSWER: u64 = 4 << 20;
/// An event of containerd, in bytes: a TaskExit has some 200. Exits that are kept until their container is
/// stopped, and containerds that are asked for them.
pub(crate) const TASK_EVENT: usize = 64 << 10;
pub(crate) const TASK_EXITS: usize = 4096;
pub(crate) const TASK_EXIT_SOURCES: usize = 16;
/// All responses of containerd to one request, or kubelet's list of the node's pods, in bytes; it is also the window that is opened for them.
pub(crate) const CONTAINERD_ANSWER: u32 = 16 << 20;
/// Pages, keys and rows, and each half KiB of a row, that one search in an engine's database visits: a
/// forged page may have ten thousands, each as large as the file.
pub(crate) const DATABASE_STEPS: usize = 500_000;
/// The depth that no tree of a database's pages exceeds.
pub(crate) const DATABASE_DEPTH: usize = 20;
/// A file that `install` reads, in bytes. Only Podman's database grows.
pub(crate) const INSTALL_FILE: u64 = 256 << 20;

/// Keeps the first `most` of these lines, and says how many more there are.
pub(crate) fn list_first(lines: &mut Vec<String>, most: usize) {
    let more = lines.len().saturating_sub(most);
    if more > 0 {
        lines.truncate(most);
        lines.push(format!("{more} more"));
    }
}

/// The first [`LISTED`] of these lines, and one that counts the others: `noun` in the singular, then `what`,
/// which fits any number.
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

/// Adds to a list of which the latest `most` are kept.
pub(crate) fn keep_latest<T>(list: &mut Vec<T>, next: T, most: usize) {
    list.push(next);
    list.drain(..list.len().saturating_sub(most));
}

/// Adds to a list of which the first and the last [`ENDS`] are kept.
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
    fn a_list_keeps_its_beginning_and_its_end() {
        let mut list = Vec::new();
        (0..1000).for_each(|number| keep_ends(&mut list, number));
        let (first, last) = list.split_at(ENDS);
        assert_eq!((first[0], first[ENDS - 1]), (0, ENDS - 1));
        assert_eq!((last[0], last.last()), (1000 - ENDS, Some(&999)));
        keep_latest(&mut list, 1000, 2);
        assert_eq!(list, [999, 1000]);
    }

    #[test]
    fn a_long_list_keeps_its_first_lines_and_their_number() {
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
