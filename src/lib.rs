// SPDX-License-Identifier: Apache-2.0
//! nri-runc: an OCI runtime wrapper that consults NRI plugins, then becomes the real runtime.
//!
//! The library exists for the nri-runc binary, sample plugins, tests and benches; its API is not
//! stable. Start reading at `ARCHITECTURE.md`.

mod accept;
/// `nri-runc nri VERB`, for operators.
pub(crate) mod admin;
/// The memory allocator.
mod allocator;
/// The requests of `nri` commands and the daemon's answers, as types.
pub(crate) mod answers;
/// Parses the command line of a runtime with tables of flags.
pub(crate) mod argv;
/// The audit log: plugins' changes, refusals and other actions, one per line.
pub(crate) mod audit;
/// Writes resources to cgroup files of running containers, as the runtimes would.
pub(crate) mod cgroup;
/// Asks several plugins in order and merges their answers.
pub(crate) mod chain;
/// The time of day, and the monotonic clock.
pub(crate) mod clock;
/// The settings: one table of keys, defaults and meanings.
pub(crate) mod config;
/// The resident process: one loop over wrappers, plugins and exits.
pub(crate) mod daemon;
/// Converts facts of bundles and engines to NRI messages.
pub(crate) mod describe;
/// Runs plugins or rules without a node: `replay`, `adjust`, `policy test`.
pub(crate) mod dry;
/// SIGTERM and SIGINT.
mod ends;
/// Detects the calling engine, and reads its files.
pub(crate) mod engine;
/// The error type: one line that an operator can act on.
pub(crate) mod error;
/// Reads files, and replaces them in one step.
pub(crate) mod files;
/// The FNV-1a hash.
mod fnv;
/// Formats of databases and messages, read from bytes.
mod formats;
/// Names with wildcards.
mod glob;
/// Access to host paths and side effects; tests can redirect both or make them fail.
pub(crate) mod host;
/// HTTP responses for probes and Prometheus.
mod http;
/// The operator's injections.
pub(crate) mod inject;
/// systemd's journal, for the log and the audit log.
mod journal;
/// The last output of a daemon that a wrapper started.
mod last_words;
/// Limits for lengths that other programs choose.
mod limits;
/// The protocol between wrapper and daemon.
pub(crate) mod link;
/// The daemon's log and where it goes.
pub(crate) mod log;
/// Facts about a container that `exec` and `kill` need without asking the daemon.
pub(crate) mod mark;
/// The codes of messages, printed at the end of their lines.
pub(crate) mod messages;
/// The daemon's counters, and their form for Prometheus.
pub(crate) mod metrics;
/// Faster routines for the static build only.
#[cfg(all(target_arch = "x86_64", any(test, target_env = "musl")))]
mod musl;
/// Enums whose variants have names.
pub(crate) mod named;
/// Lines of text, compressed together.
mod packed;
/// One plugin: its start, handshake, and requests with deadlines.
pub mod plugin;
/// Whether something exists; an unknown result is an error.
pub(crate) mod presence;
/// Facts of the kernel about a process.
mod procfs;
/// Resolves the names in an adjustment to this host's devices, classes and files.
pub(crate) mod resolve;
/// The operator's rules: what each plugin may do with which pods (pure).
pub(crate) mod rules;
/// The real runtime: finding it, its features, and executing it.
pub(crate) mod runtime;
/// Facts from engines' files and sockets, read with a deadline.
pub(crate) mod sources;
/// Edits `config.json` without losing a byte.
pub(crate) mod spec;
/// Known pods and containers, and their form on disk.
pub(crate) mod state;
/// Events for other programs: a bounded ring with cursors.
mod stream;
/// Tagged fields, the parts of frames and marks.
mod tagged;
/// Items for tests, benches and fuzz targets.
#[doc(hidden)]
pub mod testing;
/// Text for people: escapes, times, ages, short ids.
pub(crate) mod text;
/// The span of a caller's trace to which a request belongs.
mod trace;
/// One process per command: asks the daemon, puts the document in place, executes the runtime.
pub(crate) mod wrapper;

pub use admin::run as run_admin;
pub use allocator::Allocator;
pub use wrapper::run as run_wrapper;
