// SPDX-License-Identifier: Apache-2.0
//! Handles an `exec` that involves the daemon (decision D51). If only the audit log needs it, the
//! daemon receives a one-way message; with exec rules, or with plugins that handle execs, the
//! daemon decides. The configuration and a file that the daemon maintains show which case applies.
//! Without a response this process itself applies the rules, to the facts in the container's mark, and
//! the policies for plugins that cannot be asked.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use oci_document::odd_document;
use serde_json::Value;

use crate::argv::{self, CommandLine, Verb};
use crate::config::{Config, DaemonPolicy, ExecRuleSection};
use crate::error::{Error, Result};
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::link::{EXECS_FOR_AUDIT, EXECS_FOR_PLUGINS, EXECS_PROTECTED, LaterProcess, Proceed};
use crate::mark::{ExecSubject, Mark};
use crate::presence::IfThere;
use crate::procfs;
use crate::rules::{RuledPod, exec_refusal, judge};

use super::invocation::Invocation;
use super::pass_through::acts_on_container;
use super::request::{DaemonSession, DaemonVerdict};
use super::{refusal, request};

/// Names of engines and of their processes that call the runtime, as the kernel truncates them; for
/// Podman's `exec`, conmon calls it. `tests/tidy.rs` compares this list with the names by which the
/// daemon finds the engine.
const SHIMS: [&str; 9] = [
    "containerd-shim",
    "conmon",
    "crio-conmon",
    "conmonrs",
    "crio-conmonrs",
    "isulad-shim",
    "dockerd",
    "crio",
    "isulad",
];

/// Time that an `exec` waits for the daemon's decision: a probe has little time.
const EXEC_CAP: Duration = Duration::from_secs(1);

/// The daemon's involvement in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExecInterest {
    /// None.
    Nothing,
    /// The daemon receives a one-way message, and the wrapper does not wait.
    Told,
    /// The daemon decides whether the process is permitted.
    Asked,
    /// The daemon decides, and plugins may change the process.
    Shown {
        /// Whether a plugin's policy refuses the process if plugins cannot be asked.
        protects: bool,
    },
}

impl ExecInterest {
    /// Whether the process waits for a verdict.
    pub(super) fn waits(self) -> bool {
        matches!(self, Self::Asked | Self::Shown { .. })
    }
}

/// Returns the daemon's involvement in this call; only an `exec` has one, if the audit log, exec
/// rules or plugins require it.
pub(super) fn interest(config: &Config, call: &CommandLine) -> ExecInterest {
    let has_id = call.id.as_deref().is_some_and(|id| !argv::is_never_an_id(id));
    if call.verb != Verb::Exec || !has_id || !acts_on_container(call) {
        return ExecInterest::Nothing;
    }
    let kept = files::read_own(&config.execs_file(), limits::OWN_FILE).if_there();
    match kept {
        Ok(Some(text)) if text == EXECS_FOR_PLUGINS => ExecInterest::Shown { protects: false },
        Ok(Some(text)) if text == EXECS_PROTECTED => ExecInterest::Shown { protects: true },
        // The unreadable file may say that plugins protect execs.
        Err(_) => ExecInterest::Shown { protects: true },
        _ if !config.exec_rules.is_empty() => ExecInterest::Asked,
        Ok(None) if !config.audits_execs() => ExecInterest::Nothing,
        Ok(None) => ExecInterest::Told,
        Ok(Some(text)) if text == EXECS_FOR_AUDIT => ExecInterest::Told,
        Ok(Some(_)) => ExecInterest::Asked,
    }
}

impl Invocation<'_> {
    /// Reports the process of this `exec` to the daemon, or asks whether it is permitted. The rules examine
    /// `document`; plugins receive the document that the runtime would read. Returns the plugins' changes.
    ///
    /// # Errors
    /// Fails when an exec rule or a plugin refuses the process, or a policy does without the daemon.
    pub(super) fn report_process(
        &mut self,
        interest: ExecInterest,
        document: Option<&[u8]>,
        shown: Option<&[u8]>,
        mark: Option<&Mark>,
    ) -> Result<Proceed> {
        let subject = mark.and_then(|mark| mark.subject.as_ref());
        let mut process = described(self.argv, self.call, document, subject);
        (process.caller, process.login_uid) = callers(&self.host);
        process.waits = interest.waits();
        self.shows_process = matches!(interest, ExecInterest::Shown { .. });
        // A longer document is not sent to plugins: the daemon applies their policies.
        let shown =
            shown.filter(|shown| self.shows_process && shown.len() <= limits::LATER_DOCUMENT);
        process.document = shown.map(<[u8]>::to_vec);
        self.later = Some(process);
        if interest == ExecInterest::Told {
            let _nothing_waits = DaemonSession::tell(self);
            return Ok(Proceed::default());
        }
        let verdict = DaemonSession::notify(self, Instant::now() + EXEC_CAP)?;
        // The record of a refusal does not contain the arguments.
        self.shows_process = false;
        match verdict {
            DaemonVerdict::Proceed(proceed, _) => Ok(proceed),
            DaemonVerdict::Away(why) => {
                self.judge_alone(subject, &why)?;
                self.judge_for_plugins(interest, subject, &why)?;
                Ok(Proceed::default())
            }
        }
    }

    /// Refuses a process that plugins could not examine, if a plugin's policy or `on_daemon_failure`
    /// requires that. Processes in exempt namespaces are not refused.
    fn judge_for_plugins(
        &self,
        interest: ExecInterest,
        subject: Option<&ExecSubject>,
        why: &str,
    ) -> Result<()> {
        let ExecInterest::Shown { protects } = interest else { return Ok(()) };
        let is_exempt = subject.is_some_and(|subject| subject.is_exempt);
        let fails = self.config.on_daemon_failure == DaemonPolicy::Fail;
        if is_exempt || !(protects || fails) {
            return Ok(());
        }
        let error = Error::new(format!("{why}, and plugins handle execs; no process was started"));
        let hint = "without the daemon, a plugin's policy or on_daemon_failure refuses; see: nri-runc nri plugins";
        let error = error.hint(hint);
        let question = request::build_question(self, "", &[]);
        refusal::write_record(self.config, self.call, &question, None, &error);
        Err(error)
    }

    /// Refuses a process by the rules that this process has read, and writes a record of the
    /// refusal. Without the daemon, processes in exempt namespaces are not refused.
    fn judge_alone(&self, subject: Option<&ExecSubject>, why: &str) -> Result<()> {
        let process = self.later.as_ref();
        let refused = process.and_then(|process| refused_alone(self.config, subject, process));
        let Some(rule) = refused else { return Ok(()) };
        let error =
            Error::new(format!("{why}, and {}; no process was started", exec_refusal(&rule.name)));
        let error =
            error.hint("without the daemon, the configured rules decide; see: nri-runc nri check");
        let question = request::build_question(self, "", &[]);
        refusal::write_record(self.config, self.call, &question, None, &error);
        Err(error)
    }
}

/// Returns the rule that refuses a process without the daemon.
fn refused_alone<'c>(
    config: &'c Config,
    subject: Option<&ExecSubject>,
    process: &LaterProcess,
) -> Option<&'c ExecRuleSection> {
    let pod = subject.map(|subject| RuledPod {
        namespace: subject.namespace.clone(),
        labels: subject.labels.clone(),
        lacks_labels: subject.lacks_labels,
        engine: subject.engine.clone(),
        handler: subject.handler.clone(),
        is_doubtful: subject.is_doubtful,
    });
    let is_exempt = subject.is_some_and(|subject| subject.is_exempt);
    judge(&config.exec_rules, pod.as_ref(), process).refused.filter(|_| !is_exempt)
}

/// Describes the process from its document or from the command line.
fn described(
    argv: &[OsString],
    call: &CommandLine,
    document: Option<&[u8]>,
    subject: Option<&ExecSubject>,
) -> LaterProcess {
    // After an unknown flag it is uncertain where the process's arguments begin, so it is not described.
    if call.id_may_be_value {
        return LaterProcess::default();
    }
    if argv::process_file(call).is_some() {
        return document.map(process_in).unwrap_or_default();
    }
    let words = call.id_index.and_then(|at| argv.get(at + 1..)).unwrap_or_default();
    let args = bounded(words.iter().map(|word| word.to_string_lossy().into_owned()));
    let named = call.user.as_deref().filter(|user| !user.is_empty());
    let of_bundle = || {
        let bundle = Path::new(&subject?.bundle);
        // An unreadable document is treated as a missing one.
        let dir = files::open_dir(bundle).or_absent()?;
        let document = read(&files::read_at(&dir, "config.json").or_absent()?.bytes)?;
        Some(of_document(document.get("process")?))
    };
    let user = named.map_or_else(|| of_bundle().unwrap_or_default(), of_flag);
    LaterProcess { args: Some(args), terminal: Some(call.tty), ..user }
}

/// Parses the user of `--user UID[:GID]`, as far as it is numeric.
fn of_flag(user: &OsStr) -> LaterProcess {
    let text = user.to_string_lossy();
    let (uid, gid) = text.split_once(':').map_or((&*text, None), |(uid, gid)| (uid, Some(gid)));
    // Runtimes keep 32 bits of the number, so a larger number may become root's.
    let number = |text: &str| {
        let number = text.parse::<i64>().ok().and_then(|number| u32::try_from(number).ok());
        number.map(|number| number.to_string())
    };
    LaterProcess { uid: number(uid), gid: gid.and_then(number), ..LaterProcess::default() }
}

/// Describes the process of a document; all members of an unreadable one are absent.
pub fn process_in(document: &[u8]) -> LaterProcess {
    read(document).map(|process| of_document(&process)).unwrap_or_default()
}

/// Parses a document as the runtime does.
fn read(bytes: &[u8]) -> Option<Value> {
    odd_document(bytes).ok()?.or_else(|| serde_json::from_slice(bytes).ok())
}

fn of_document(process: &Value) -> LaterProcess {
    let user = &process["user"];
    let words = process["args"].as_array().into_iter().flatten();
    let words = words.map(|word| word.as_str().unwrap_or_default().to_owned());
    // Every runtime reads a missing ID or flag as zero.
    let id = |value: &Value| {
        let number = if value.is_null() { Some(0) } else { value.as_u64() };
        number.map(|id| id.to_string())
    };
    let terminal = &process["terminal"];
    LaterProcess {
        args: Some(bounded(words)),
        uid: id(&user["uid"]),
        gid: id(&user["gid"]),
        username: user["username"].as_str().filter(|name| !name.is_empty()).map(str::to_owned),
        terminal: if terminal.is_null() { Some(false) } else { terminal.as_bool() },
        ..LaterProcess::default()
    }
}

/// Cuts each argument to [`limits::LATER_ARG`], and drops those beyond [`limits::LATER_ARGS`] in all.
fn bounded(words: impl Iterator<Item = String>) -> Vec<String> {
    let (mut kept, mut room) = (Vec::new(), limits::LATER_ARGS);
    for word in words {
        let word = limits::cut(&word, limits::LATER_ARG).into_owned();
        let Some(left) = room.checked_sub(word.len() + 1) else { break };
        room = left;
        kept.push(word);
    }
    kept
}

/// Returns the names of the processes above this one, up to the engine's shim, and the login user
/// of this process, if there is one.
fn callers(host: &Host) -> (Vec<String>, Option<u32>) {
    let mut names: Vec<String> = Vec::new();
    let mut pid = nix::unistd::getppid().as_raw().cast_unsigned();
    while pid > 1 && names.len() < limits::CALLERS {
        let Some((name, parent)) = procfs::name_and_parent(host, pid).or_absent().flatten() else {
            break;
        };
        let name = match is_of_descriptor(&name) {
            true => called_as(host, pid).unwrap_or(name),
            false => name,
        };
        let is_shim = SHIMS.contains(&name.as_str());
        names.push(name);
        if is_shim {
            break;
        }
        pid = parent;
    }
    (names, procfs::login_uid(host, std::process::id()).or_absent().flatten())
}

/// Whether the kernel named the process after the descriptor that it executed: by its number, or
/// since Linux 6.14 by the name of its memory file.
fn is_of_descriptor(name: &str) -> bool {
    name.starts_with("memfd:") || !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the name under which a program was started, truncated as the kernel does.
fn called_as(host: &Host, pid: u32) -> Option<String> {
    let words = procfs::command_line(host, pid).or_absent()?;
    let name = Path::new(OsStr::from_bytes(words.first()?)).file_name()?.to_string_lossy();
    Some(limits::split(&name, limits::PROCESS_NAME).0.to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_flags(line: &str) -> LaterProcess {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        described(&argv, &argv::read(&argv), None, None)
    }

    fn by_document(document: &str) -> LaterProcess {
        let argv = ["x", "exec", "--process", "f", "c"].map(OsString::from);
        described(&argv, &argv::read(&argv), Some(document.as_bytes()), None)
    }

    fn args(process: &LaterProcess) -> Vec<&str> {
        process.args.iter().flatten().map(String::as_str).collect()
    }

    #[test]
    fn a_process_is_described_by_the_command_line() {
        let process = by_flags("runc exec -t --user 7:8 c1 sh -c x --tty");
        assert_eq!(args(&process), ["sh", "-c", "x", "--tty"]);
        assert_eq!((process.uid.as_deref(), process.gid.as_deref()), (Some("7"), Some("8")));
        assert_eq!(process.terminal, Some(true));
        for (user, uid) in [("00", Some("0")), ("+0:1", Some("0")), ("root", None), (":1", None)] {
            assert_eq!(by_flags(&format!("runc exec --user {user} c1 sh")).uid.as_deref(), uid);
        }
        // `value` may belong to the unknown flag, so `-t` may be a flag or an argument.
        let line = "runc exec --of-tomorrow value -t c1 /bin/sh";
        assert_eq!(by_flags(line), LaterProcess::default());
        let plain = by_flags("runc exec --tty=false c1 sh");
        assert_eq!((plain.terminal, plain.uid), (Some(false), None), "its bundle is not known");
    }

    #[test]
    fn a_process_document_is_read_as_the_runtime_reads_it() {
        let process = by_document(
            r#"{"Terminal":true,"user":{"uid":1},"user":{"UID":3,"username":"x"},"args":["a","b"]}"#,
        );
        assert_eq!(args(&process), ["a", "b"]);
        assert_eq!((process.uid.as_deref(), process.gid.as_deref()), (Some("3"), Some("0")));
        assert_eq!((process.terminal, process.username.as_deref()), (Some(true), Some("x")));
        let least = by_document("{}");
        assert_eq!((least.uid.as_deref(), least.terminal), (Some("0"), Some(false)));
        assert_eq!(args(&least), [""; 0]);
    }

    #[test]
    fn an_invalid_document_has_no_facts() {
        for text in ["", "[]", "{", "null", "7"] {
            assert_eq!(by_document(text), LaterProcess::default(), "{text}");
        }
        let odd = by_document(r#"{"user":{"uid":1.5},"terminal":"yes","args":"sh"}"#);
        assert_eq!((odd.uid, odd.terminal), (None, None));
    }

    #[test]
    fn arguments_are_sent_up_to_a_limit_from_the_program_on() {
        let long = "x".repeat(3 * limits::LATER_ARGS);
        let process = by_flags(&format!("runc exec c1 /bin/sh {long} {long} {long} end"));
        let args = process.args.unwrap_or_default();
        assert_eq!(args[0], "/bin/sh");
        assert!(args.iter().map(String::len).sum::<usize>() <= limits::LATER_ARGS);
    }

    #[test]
    fn without_the_daemon_only_exempt_or_permitted_execs_pass() {
        let rule = |namespaces: &[&str]| ExecRuleSection {
            pods: crate::config::PodSelectors {
                namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
                ..Default::default()
            },
            terminal: Some(true),
            ..ExecRuleSection::default()
        };
        let config = |rule| Config { exec_rules: vec![rule], ..Config::default() };
        let subject = ExecSubject { namespace: "a".to_owned(), ..ExecSubject::default() };
        let exempt = ExecSubject { is_exempt: true, ..subject.clone() };
        let doubtful = ExecSubject { is_doubtful: true, ..subject.clone() };
        let shell = LaterProcess { terminal: Some(true), ..LaterProcess::default() };
        let probe = LaterProcess { terminal: Some(false), ..LaterProcess::default() };
        let unread = LaterProcess::default();
        for (namespaces, subject, process, is_refused) in [
            (&["a"][..], Some(&subject), &shell, true),
            (&["a"], Some(&subject), &unread, true),
            (&["a"], Some(&subject), &probe, false),
            (&["b"], Some(&subject), &shell, false),
            (&["b"], Some(&doubtful), &shell, true),
            (&["b"], None, &shell, true),
            (&["b"], None, &probe, false),
            (&["a"], Some(&exempt), &shell, false),
        ] {
            let config = config(rule(namespaces));
            let refused = refused_alone(&config, subject, process);
            assert_eq!(refused.is_some(), is_refused, "{namespaces:?} {subject:?} {process:?}");
        }
    }

    #[test]
    fn the_caller_chain_ends_at_the_shim_and_may_have_no_login() {
        let temp = tempfile::tempdir().unwrap();
        let parent = nix::unistd::getppid().as_raw().cast_unsigned();
        let own = std::process::id();
        for (pid, name, text) in [
            (parent, "stat", "9 (runc x) S 70001 1 1".to_owned()),
            (70001, "stat", "9 (conmon) S 70002 1 1".to_owned()),
            (70002, "stat", "9 (bash) S 1 1 1".to_owned()),
            (70001, "cmdline", "/usr/bin/conmon\0-b".to_owned()),
            (own, "loginuid", u32::MAX.to_string()),
        ] {
            let dir = temp.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&dir).unwrap();
            files::replace(&dir.join(name), text.as_bytes()).unwrap();
        }
        let host = Host::new(&temp.path().display().to_string(), "");
        assert_eq!(callers(&host), (vec!["runc x".to_owned(), "conmon".to_owned()], None));
        // A program executed from a descriptor is named by its argv[0].
        for name in ["6", "memfd:runc_clone"] {
            let stat = format!("9 ({name}) S 70002 1 1");
            files::replace(&temp.path().join("proc/70001/stat"), stat.as_bytes()).unwrap();
            assert_eq!(callers(&host).0, ["runc x", "conmon"], "{name}");
        }
        // Three names that the kernel keeps whole, and one that it truncates.
        for name in ["crio-conmon", "crio-conmonrs", "isulad-shim", "containerd-shim"] {
            let stat = format!("9 ({name}) S 70002 1 1");
            files::replace(&temp.path().join("proc/70001/stat"), stat.as_bytes()).unwrap();
            assert_eq!(callers(&host).0, ["runc x", name]);
        }
        let stat = b"9 (memfd:runc_clone) S 70002 1 1";
        files::replace(&temp.path().join("proc/70001/stat"), stat).unwrap();
        std::fs::remove_file(temp.path().join("proc/70001/cmdline")).unwrap();
        let unknown = ["runc x", "memfd:runc_clone", "bash"];
        assert_eq!(callers(&host).0, unknown, "the kernel's name, if there is no other");
        files::replace(&temp.path().join(format!("proc/{own}/loginuid")), b"1000").unwrap();
        assert_eq!(callers(&host).1, Some(1000));
    }
}
