// SPDX-License-Identifier: Apache-2.0
//! The limits of everything whose length a tenant, a plugin or an engine chooses (D54), each where
//! it enters. Beyond one, a text is cut and its length is stated; an identity, and a list that
//! protects, is refused. Limits of frames, documents and connections stand where these are read.

pub(crate) use nri_api::text::{cut, split};

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
/// Part of an answer to an operator, in bytes; a longer answer is sent in parts. Below the frame.
pub(crate) const ADMIN_PART: usize = 1 << 20;
/// Pods and containers in one line of a recorded state, in bytes; a longer state has several lines.
pub(crate) const RECORDED_STATE: usize = 1 << 20;
/// Notes of commands that ran without the daemon, of some 4 KiB each: two for each container of a
/// large node. Beyond it the oldest go, and the next daemon searches for their containers.
pub(crate) const BYPASS_NOTES: usize = 2048;
/// Notes of commands that wrappers refused without the daemon: kubelet repeats them for ever.
pub(crate) const REFUSAL_NOTES: usize = 128;
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

/// Keeps the first `most` of these lines, and says how many more there are.
pub(crate) fn list_first(lines: &mut Vec<String>, most: usize) {
    let more = lines.len().saturating_sub(most);
    if more > 0 {
        lines.truncate(most);
        lines.push(format!("{more} more"));
    }
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
}
