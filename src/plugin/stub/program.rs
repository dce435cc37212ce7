// SPDX-License-Identifier: Apache-2.0
//! A plugin as a program: launched by the runtime with a socket and three variables of
//! environment, or started by hand with options. Errors go to stderr, which a
//! launched plugin does not have.

use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::net::UnixStream;

use crate::error::in_our_words;

use super::{PluginHandler, Result, Stub};

/// Pauses between attempts to reach a runtime that is away.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How a plugin that was started by hand finds its runtime. A launched plugin ignores them.
#[derive(Debug, Clone, Parser)]
#[command(about = "An NRI plugin", long_about = None)]
pub struct ProgramOptions {
    /// The runtime's plugin socket
    #[arg(long, default_value = "/var/run/nri/nri.sock")]
    pub socket: PathBuf,
    /// Register as NN-name instead of the plugin's own choice
    #[arg(long)]
    pub id: Option<String>,
    /// A file with the plugin's configuration, used if the runtime has none for it
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Wait for the runtime, and come back when the connection is lost
    #[arg(long)]
    pub reconnect: bool,
}

/// The whole `main` of a plugin that calls itself `id` (`NN-name`).
pub fn main(id: &str, handler: impl PluginHandler) -> ExitCode {
    let options = ProgramOptions::parse();
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false);
    log.without_time().init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(run(id, &options, Arc::new(handler))),
        Err(error) => Err(error.into()),
    };
    if let Err(error) = ended {
        tracing::error!("{id}: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Serves until the connection is gone, or for ever if the options say so.
///
/// # Errors
/// Fails when the runtime cannot be reached, or either side refuses to start. With `reconnect`
/// only the plugin's own refusal ends it.
pub async fn run(
    id: &str,
    options: &ProgramOptions,
    handler: Arc<dyn PluginHandler>,
) -> Result<()> {
    if let Some(stream) = inherited()? {
        let stub = Stub::serve(stream, id, "", handler).await?;
        stub.closed().await;
        return stub.refused.get().map_or(Ok(()), |why| Err(why.as_str().into()));
    }
    let id = options.id.as_deref().unwrap_or(id);
    let config = options.config.as_ref().map(std::fs::read_to_string).transpose();
    let config = config.map_err(|error| format!("reading the configuration: {error}"))?;
    let config = config.unwrap_or_default();
    let mut pause = FIRST_PAUSE;
    loop {
        let why = match connect(id, options, &config, &handler).await {
            Ok(stub) => {
                pause = FIRST_PAUSE;
                let why = stub.closed().await;
                if let Some(why) = stub.refused.get() {
                    return Err(why.as_str().into());
                }
                why
            }
            Err(error) if !options.reconnect => return Err(error),
            Err(error) => error.to_string(),
        };
        if !options.reconnect {
            return Ok(());
        }
        tracing::info!("{id}: {why}; trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn connect(
    id: &str,
    options: &ProgramOptions,
    config: &str,
    handler: &Arc<dyn PluginHandler>,
) -> Result<Stub> {
    let stream = UnixStream::connect(&options.socket).await;
    let stream = stream.map_err(|error| {
        format!("connecting to {}: {}", options.socket.display(), in_our_words(&error))
    })?;
    Stub::serve(stream, id, config, Arc::clone(handler)).await
}

/// The socket of a launched plugin, by the number that its environment names.
fn inherited() -> Result<Option<UnixStream>> {
    let Some(number) = std::env::var_os("NRI_PLUGIN_SOCKET") else { return Ok(None) };
    let number = number.to_str().and_then(|number| number.parse::<i32>().ok());
    let number =
        number.filter(|number| *number > 2).ok_or("NRI_PLUGIN_SOCKET is not a descriptor")?;
    let is_socket = std::fs::metadata(format!("/proc/self/fd/{number}"))
        .is_ok_and(|meta| meta.file_type().is_socket());
    if !is_socket {
        return Err(format!("NRI_PLUGIN_SOCKET names {number}, which is not a socket").into());
    }
    let stream = std::os::unix::net::UnixStream::from(adopt(number));
    stream.set_nonblocking(true)?;
    // Programs that the plugin starts must not keep its connection open.
    nix::fcntl::fcntl(&stream, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
    Ok(Some(UnixStream::from_std(stream)?))
}

#[expect(unsafe_code, reason = "a descriptor passed by number")]
fn adopt(number: i32) -> OwnedFd {
    // SAFETY: the caller saw that it is open, and the runtime that launched this process made it for this.
    unsafe { OwnedFd::from_raw_fd(number) }
}
