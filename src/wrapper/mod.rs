// SPDX-License-Identifier: Apache-2.0
//! One process per verb: ask the daemon, put its answer in place, become the real runtime.
//!
//! It never forks (but to start the daemon, decision D6), never runs async code, never prints
//! where the real runtime will run, and every path that does not fail ends in `execve`.
//! Commands that do not involve plugins are passed through at once.

mod ask;
mod awaken;
mod bypass;
mod commit;
mod hook;
mod protection;
mod refusal;
mod report;
mod update;

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::argv::{self, Call, Verb};
use crate::config::{self, Config};
use crate::error::{Context, Error, Result};
use crate::host::{Host, Point};
use crate::link::{Attached, Proceed};
use crate::{files, runtime};

use ask::{Asked, Conversation};
pub use ask::{admin, admin_stream, is_listening, is_silent};
pub use awaken::start_daemon;
pub use hook::hook;

/// Exit code of our own failures on runtime verbs, as runc's.
const FAILED: u8 = 1;

/// Everything a verb's story needs.
struct Wrapper<'a> {
    argv: &'a [OsString],
    call: &'a Call,
    config: &'a Config,
    host: Host,
    runtime: PathBuf,
}

/// Runs a runtime verb; returns (with an exit code) only when it failed.
pub fn run(argv: &[OsString]) -> u8 {
    let call = argv::read(argv);
    let loaded = config::load_for_this_process();
    match become_the_runtime(argv, &call, &loaded.config) {
        Ok(never) => match never {},
        Err(error) => {
            report::failure(&call, &error);
            FAILED
        }
    }
}

fn become_the_runtime(argv: &[OsString], call: &Call, config: &Config) -> Result<Infallible> {
    let runtime = runtime::resolve(config, argv.first())?;
    if !is_our_business(call) || is_switched_off(config) || will_refuse_id(&runtime, call) {
        return runtime::replace_process(&runtime, argv);
    }
    let wrapper = Wrapper { argv, call, config, host: config.host(), runtime };
    let told = match call.verb {
        Verb::Create | Verb::Run | Verb::Restore => wrapper.create(),
        Verb::Update => wrapper.update(),
        Verb::Start => wrapper.tell(),
        // A `delete` never fails because of us.
        Verb::Delete => wrapper.tell().or_else(|_| wrapper.exec_unchanged()),
        Verb::Kill | Verb::Pause | Verb::Resume | Verb::Exec | Verb::State => {
            wrapper.exec_unchanged()
        }
        Verb::Nri | Verb::Other | Verb::None => wrapper.exec_unchanged(),
    };
    told.doing(|| wrapper.doing())
}

/// A verb that events hang on, with an id, that asks for more than its help text.
fn is_our_business(call: &Call) -> bool {
    let ours =
        call.verb.creates() || matches!(call.verb, Verb::Start | Verb::Update | Verb::Delete);
    // runc 1.6 prints help for the ids `help` and `h`, all others make containers of that name:
    // these are asked about, or a container could be named past every plugin.
    let is_help_by_name = call.id.as_deref().is_some_and(|id| id == "help" || id == "h");
    ours && call.id.is_some() && (is_help_by_name || !call.is_inert)
}

/// Whether the runtime refuses this id whatever else is asked: nobody need hear of it. Of runc it is
/// known which it refuses; another runtime, also one that is called runc by a link, may take more.
fn will_refuse_id(runtime: &Path, call: &Call) -> bool {
    let Some(id) = call.id.as_deref() else { return false };
    let is_runc = || {
        let real = std::fs::canonicalize(runtime).unwrap_or_default();
        real.file_name().is_some_and(|name| name == "runc")
    };
    argv::is_never_an_id(id) || (!argv::is_id_of_runc(id) && is_runc())
}

/// Pure pass-through by configuration, kill switch, or because we are not the host's root (D7).
fn is_switched_off(config: &Config) -> bool {
    config.disable
        || !nix::unistd::geteuid().is_root()
        || config.disabled_file().exists()
        || is_in_user_namespace()
}

fn is_in_user_namespace() -> bool {
    let map = files::read_small(Path::new("/proc/self/uid_map")).unwrap_or_default();
    let map = std::str::from_utf8(&map).unwrap_or_default();
    let mut numbers = map.split_whitespace();
    // The host maps all 2^32 - 1 ids onto themselves.
    !map.is_empty()
        && (numbers.next(), numbers.next(), numbers.next())
            != (Some("0"), Some("0"), Some("4294967295"))
}

impl Wrapper<'_> {
    /// `create`, `run`, `restore`: ask the plugins, put their answer in place, become the runtime.
    fn create(&self) -> Result<Infallible> {
        if self.is_odd_document() {
            // Names of documents are text everywhere, and crun takes any: nobody may be led past
            // the plugins by one.
            return self.bypass("the file name of --config is not UTF-8");
        }
        let Some(document) = self.document() else {
            // No such bundle or document: the runtime says so, in its own words.
            return self.exec_unchanged();
        };
        let bundle = (Attached::Bundle, &document.dir);
        let (proceed, mut conversation) = match self.ask(&document.name, &[bundle])? {
            Asked::Proceed(proceed, conversation) => (proceed, conversation),
            Asked::Away(why) => return self.bypass(&why),
        };
        self.host.point(Point::WrapperVerdict)?;

        // The only write of this process. From here on nothing can fail but exec itself.
        let committed = commit::put_in_place(&document, proceed.document.as_deref())?;
        self.host.point(Point::WrapperCommitted)?;
        if let Err(gone) = conversation.say_exec() {
            // The daemon died after its verdict: nobody would ever watch this container.
            committed.undo(&document);
            return self.bypass(&gone.to_string());
        }
        let error = self.exec(&proceed);
        committed.undo(&document);
        conversation.say_exec_failed(&error);
        Err(error)
    }

    /// `start`, `delete`: let the plugins know before the runtime runs.
    fn tell(&self) -> Result<Infallible> {
        let (proceed, mut conversation) = match self.ask("", &[])? {
            Asked::Proceed(proceed, conversation) => (proceed, conversation),
            Asked::Away(why) => return self.bypass(&why),
        };
        self.host.point(Point::WrapperVerdict)?;
        if let Err(gone) = conversation.say_exec() {
            return self.bypass(&gone.to_string());
        }
        let error = self.exec(&proceed);
        conversation.say_exec_failed(&error);
        Err(error)
    }

    /// One round trip to the daemon, which is started if it is not there and may be.
    fn ask(&self, document: &str, attached: &[(Attached, &OwnedFd)]) -> Result<Asked> {
        self.host.point(Point::WrapperAsk)?;
        Conversation::open(self, document, attached)
    }

    fn exec(&self, proceed: &Proceed) -> Error {
        let argv = proceed.argv.as_deref().unwrap_or(self.argv);
        let replaced = self.host.point(Point::WrapperExec);
        match replaced.and_then(|()| runtime::replace_process(&self.runtime, argv)) {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn exec_unchanged(&self) -> Result<Infallible> {
        runtime::replace_process(&self.runtime, self.argv)
    }

    /// The document that the runtime will read, if it is there: `config.json` in the
    /// bundle, or the file that crun's `--config` names.
    fn document(&self) -> Option<Document> {
        let bundle = self.call.bundle.as_deref().unwrap_or_default();
        let (dir, name) = match &self.call.config {
            None => (PathBuf::from(bundle), "config.json".to_owned()),
            Some(file) => {
                let file = PathBuf::from(file);
                let name = file.file_name()?.to_str()?.to_owned();
                (file.parent()?.to_owned(), name)
            }
        };
        let dir = files::open_dir(&dir).ok()?;
        files::inode_at(&dir, &name)?;
        Some(Document { dir, name })
    }

    /// Whether the runtime will read a file whose name we have no words for.
    fn is_odd_document(&self) -> bool {
        let file = self.call.config.as_deref().map(Path::new);
        let is_odd = |file: &Path| file.file_name().is_some_and(|name| name.to_str().is_none());
        file.is_some_and(|file| is_odd(file) && file.exists())
    }

    /// "cannot create 4f1c": what every failure of ours begins with.
    fn doing(&self) -> String {
        let id = self.call.id.as_deref().unwrap_or_default().to_string_lossy();
        format!("cannot {} {id}", self.call.verb.name())
    }
}

/// A document and the directory it lies in.
struct Document {
    dir: OwnedFd,
    name: String,
}
