// SPDX-License-Identifier: Apache-2.0
//! A plugin as a program: launched by its runtime, or started from a shell with options. SIGTERM
//! and SIGINT end it after the answer in progress. The log goes to standard error.

use std::process::ExitCode;

use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

use crate::handler::Handler;
use crate::launched::inherited;
use crate::plugin::{DEFAULT_SOCKET, Plugin};
use crate::{HandlerError, Result};

const USAGE: &str = "\
Options (a plugin that its runtime launched ignores them):
  --socket PATH   The runtime's socket for plugins [default: /var/run/nri/nri.sock]
  --id NN-NAME    Register under this index and name
  --config FILE   The plugin's configuration, used if the runtime has none for it
  --reconnect     Wait for the runtime, and reconnect when the connection is lost
  --help          Print this
";

#[derive(Debug, Default, PartialEq)]
struct Options {
    socket: Option<String>,
    id: Option<String>,
    config: Option<String>,
    reconnect: bool,
    help: bool,
}

impl Options {
    fn read(words: impl IntoIterator<Item = String>) -> std::result::Result<Self, String> {
        let (mut options, mut words) = (Self::default(), words.into_iter());
        while let Some(word) = words.next() {
            let (name, mut value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            match name {
                "--reconnect" if value.is_none() => options.reconnect = true,
                "--help" | "-h" if value.is_none() => options.help = true,
                "--socket" | "--id" | "--config" => {
                    let value = value.take().or_else(|| words.next());
                    let value = value.ok_or_else(|| format!("{name} needs a value"))?;
                    match name {
                        "--socket" => options.socket = Some(value),
                        "--id" => options.id = Some(value),
                        _ => options.config = Some(value),
                    }
                }
                _ => return Err(format!("unexpected argument {word:?}; see --help")),
            }
        }
        Ok(options)
    }

    fn plugin(&self, id: &str, handler: impl Handler) -> Result<Plugin> {
        let config = self.config.as_ref().map(std::fs::read_to_string).transpose();
        let config = config.map_err(|error| format!("reading the configuration: {error}"))?;
        Ok(Plugin::new(self.id.as_deref().unwrap_or(id), handler)?
            .socket(self.socket.as_deref().unwrap_or(DEFAULT_SOCKET))
            .config(config.unwrap_or_default())
            .reconnect(self.reconnect))
    }
}

/// Runs the plugin `id` (`NN-name`) as a program, with options for a start from a shell; returns
/// the exit code of `main`. Wrap a [`BlockingHandler`](crate::BlockingHandler) in
/// [`Blocking`](crate::Blocking).
pub fn main(id: &str, handler: impl Handler) -> ExitCode {
    // Replaces bytes that are not UTF-8; an option whose name has any is refused as unknown.
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let options = match Options::read(words) {
        Ok(options) if options.help => {
            print(&format!("The NRI plugin {id}\n\n{USAGE}"));
            return ExitCode::SUCCESS;
        }
        Ok(options) => options,
        Err(why) => return fail(id, &why.into()),
    };
    let launched = match inherited() {
        Ok(launched) => launched,
        Err(error) => return fail(id, &error),
    };
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false);
    if let Err(error) = log.without_time().try_init() {
        return fail(id, &error);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(run(&options, id, handler, launched)),
        Err(error) => Err(error.into()),
    };
    ended.map_or_else(|error| fail(id, &error), |()| ExitCode::SUCCESS)
}

async fn run(
    options: &Options,
    id: &str,
    handler: impl Handler,
    launched: Option<std::os::unix::net::UnixStream>,
) -> Result<()> {
    let plugin = options.plugin(id, handler)?;
    let handle = plugin.handle();
    let mut running = Box::pin(async {
        match launched {
            Some(stream) => plugin.serve(UnixStream::from_std(stream)?).await,
            None => plugin.run().await,
        }
    });
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        ended = &mut running => return ended,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    handle.shut_down();
    running.await
}

#[expect(clippy::print_stdout, reason = "the help that was asked for")]
fn print(text: &str) {
    print!("{text}");
}

#[expect(clippy::print_stderr, reason = "the log may not be there")]
fn fail(id: &str, error: &HandlerError) -> ExitCode {
    eprintln!("{id}: {error}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> std::result::Result<Options, String> {
        Options::read(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn options_are_read_in_both_spellings() {
        let read = read(&["--socket", "/s", "--id=10-x", "--reconnect", "--config", "c"]).unwrap();
        assert_eq!((read.socket.as_deref(), read.id.as_deref()), (Some("/s"), Some("10-x")));
        assert!(read.reconnect && !read.help && read.config.as_deref() == Some("c"));
    }

    #[test]
    fn unknown_arguments_are_refused() {
        for (words, wanted) in [
            (&["--socket"][..], "--socket needs a value"),
            (&["--sockets", "x"], "unexpected argument \"--sockets\""),
            (&["file"], "unexpected argument \"file\""),
            (&["--reconnect=yes"], "unexpected argument"),
        ] {
            let why = read(words).unwrap_err();
            assert!(why.starts_with(wanted), "{why}");
        }
    }
}
