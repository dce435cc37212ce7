// SPDX-License-Identifier: Apache-2.0
//! The life of a plugin: it connects over the runtime's socket, an inherited descriptor or a given
//! stream, reconnects under its identity, and ends gracefully.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nri_api as api;
use nri_api::identity::PluginIdentity;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::answers::UpdatesWithEvictions;
use crate::handler::{Blocking, BlockingHandler, Handler};
use crate::launched::inherited;
use crate::progress::{Phase, Progress, until};
use crate::stub::Stub;
use crate::{HandlerError, Result};

/// The socket on which runtimes listen for plugins.
pub const DEFAULT_SOCKET: &str = "/var/run/nri/nri.sock";

/// First pause between attempts to reach a runtime; the following pauses double. A random part, up to half, is
/// cut off each pause, so that a node's plugins do not all reconnect together.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between these attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A connection that lasted this long resets the pauses.
const STABLE: Duration = Duration::from_secs(5);
/// Time limit for open requests when the plugin ends: longer than a runtime waits for an answer by
/// default.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// Time limit for a probe to send its request and receive the answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A plugin that has not started yet.
pub struct Plugin {
    id: String,
    socket: PathBuf,
    config: String,
    reconnect: bool,
    handler: Arc<dyn Handler>,
    progress: Arc<Progress>,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Plugin {
    /// Creates a plugin with the identity `id`: two digits, a hyphen, and a name. Plugins are asked
    /// in the order of their digits.
    ///
    /// # Errors
    /// Fails when a runtime would refuse the identity.
    pub fn new(id: &str, handler: impl Handler) -> Result<Self> {
        let (index, name) = id.split_once('-').ok_or_else(|| {
            format!("invalid plugin ID {id:?}, must be two digits, a hyphen and a name")
        })?;
        let identity = PluginIdentity::checked(index, name, "")?;
        Ok(Self {
            id: identity.to_string(),
            socket: DEFAULT_SOCKET.into(),
            config: String::new(),
            reconnect: true,
            handler: Arc::new(handler),
            progress: Arc::default(),
        })
    }

    /// Like [`new`](Self::new), for blocking handlers.
    ///
    /// # Errors
    /// Fails when a runtime would refuse the identity.
    pub fn blocking(id: &str, handler: impl BlockingHandler) -> Result<Self> {
        Self::new(id, Blocking::new(handler))
    }

    /// Sets the runtime's socket; the default is [`DEFAULT_SOCKET`].
    #[must_use]
    pub fn socket(mut self, path: impl AsRef<Path>) -> Self {
        self.socket = path.as_ref().to_owned();
        self
    }

    /// Sets the configuration that the plugin receives if the runtime has none for it.
    #[must_use]
    pub fn config(mut self, text: impl Into<String>) -> Self {
        self.config = text.into();
        self
    }

    /// Sets whether the plugin waits for an unavailable runtime and reconnects (default: true).
    #[must_use]
    pub fn reconnect(mut self, reconnect: bool) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// Returns a handle, to be used while the plugin runs.
    #[must_use]
    pub fn handle(&self) -> PluginHandle {
        PluginHandle(Arc::clone(&self.progress))
    }

    /// Runs over the inherited socket if a runtime launched this process, else over the runtime's
    /// socket.
    ///
    /// # Errors
    /// Fails when `NRI_PLUGIN_SOCKET` is invalid, or the plugin refuses to be configured or
    /// synchronized. Without `reconnect`, or over an inherited socket, also when the runtime cannot
    /// be reached or refuses the registration.
    pub async fn run(self) -> Result<()> {
        if let Some(stream) = inherited()? {
            return self.serve(UnixStream::from_std(stream)?).await;
        }
        let mut pause = FIRST_PAUSE;
        loop {
            let begun = tokio::time::Instant::now();
            let why = match self.connect().await {
                Ok(stream) => self.serve_once(stream).await,
                Err(error) => Err(Ended::Connection(error)),
            };
            match why {
                Ok(()) => return Ok(()),
                Err(Ended::Refused(error)) => return Err(error),
                Err(Ended::Closed(_)) if !self.reconnect => return Ok(()),
                Err(Ended::Connection(error)) if !self.reconnect => return Err(error),
                Err(Ended::Closed(why)) => tracing::info!("{}: {why}; trying again", self.id),
                Err(Ended::Connection(why)) => tracing::info!("{}: {why}; trying again", self.id),
            }
            if begun.elapsed() >= STABLE {
                pause = FIRST_PAUSE;
            }
            tokio::select! {
                () = tokio::time::sleep(with_jitter(pause)) => {}
                () = self.ending() => return Ok(()),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Runs over a stream until it is closed.
    ///
    /// # Errors
    /// Fails when the runtime refuses the registration, or the plugin refuses to be configured or
    /// synchronized.
    pub async fn serve(self, stream: UnixStream) -> Result<()> {
        match self.serve_once(stream).await {
            Ok(()) | Err(Ended::Closed(_)) => Ok(()),
            Err(Ended::Refused(error) | Ended::Connection(error)) => Err(error),
        }
    }

    async fn connect(&self) -> Result<UnixStream> {
        let stream = UnixStream::connect(&self.socket).await;
        Ok(stream.map_err(|error| format!("connecting to {}: {error}", self.socket.display()))?)
    }

    /// Serves one connection; returns `Ok` if [`PluginHandle::shut_down`] ended it.
    async fn serve_once(&self, stream: UnixStream) -> std::result::Result<(), Ended> {
        let (handler, progress) = (Arc::clone(&self.handler), Arc::clone(&self.progress));
        let stub = Stub::serve_with(stream, &self.id, &self.config, handler, progress).await;
        let stub = stub.inspect_err(|_| {
            self.progress.phase.send_replace(Phase::Disconnected);
        });
        let stub = stub.map_err(Ended::Connection)?;
        tracing::info!("{}: registered", self.id);
        let closed = stub.closed();
        let ended = tokio::select! {
            why = closed => Err(Ended::Closed(why)),
            () = self.ending() => Ok(()),
        };
        self.progress.phase.send_replace(Phase::Disconnected);
        if ended.is_ok() {
            let answered = stub.idle();
            let _late_requests_are_dropped = tokio::time::timeout(SHUTDOWN_GRACE, answered).await;
            self.handler.shutdown().await;
            stub.close();
        }
        match stub.refusal() {
            Some(error) => Err(Ended::Refused(error)),
            None => ended,
        }
    }

    async fn ending(&self) {
        until(&self.progress.ending, |is_ending| *is_ending).await;
    }
}

/// Why one connection of a plugin ended.
enum Ended {
    /// The plugin refused to be configured or synchronized.
    Refused(HandlerError),
    /// The plugin could not connect or register.
    Connection(HandlerError),
    /// The connection was closed, for this reason.
    Closed(String),
}

/// Returns between half of the pause and all of it.
fn with_jitter(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0_u8) % 512;
    pause * u32::try_from(512 + random).unwrap_or(1024) / 1024
}

/// Access to a running plugin from outside its handlers; cheap to clone.
#[derive(Debug, Clone)]
pub struct PluginHandle(Arc<Progress>);

impl PluginHandle {
    /// Whether the plugin is registered, synchronized and responsive: the last request was answered
    /// in time, and no open one is past its deadline.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    /// Waits until the plugin is registered and synchronized.
    pub async fn ready(&self) {
        let is_synchronized = |phase: &Phase| matches!(phase, Phase::Synchronized(_));
        until(&self.0.phase, is_synchronized).await;
    }

    /// Updates containers unprompted over the current connection, and returns the updates that were
    /// not carried out.
    ///
    /// # Errors
    /// Fails when the plugin is not currently synchronized, or the runtime refuses all updates or
    /// does not answer in time.
    pub async fn update(
        &self,
        updates: impl Into<UpdatesWithEvictions>,
    ) -> Result<Vec<api::ContainerUpdate>> {
        let runtime = self.0.runtime().ok_or("the plugin is not connected to a runtime")?;
        runtime.update(updates).await
    }

    /// Ends the plugin: it answers its open requests, closes the connection and does not reconnect.
    pub fn shut_down(&self) {
        self.0.ending.send_replace(true);
    }

    /// Answers HTTP probes of kubelet and others on any path: 200 while the plugin is ready, else
    /// 503.
    ///
    /// # Errors
    /// Fails when accepting a connection fails.
    pub async fn serve_readiness(&self, listener: TcpListener) -> std::io::Result<()> {
        loop {
            let (stream, _peer) = listener.accept().await?;
            let handle = self.clone();
            tokio::spawn(async move {
                let _slow_or_gone =
                    tokio::time::timeout(PROBE_TIMEOUT, handle.answer(stream)).await;
            });
        }
    }

    async fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        // The request is not read to its end: a peer that sends more still gets its response.
        let _request = stream.read(&mut [0; 1024]).await?;
        let (status, text) = match self.is_ready() {
            true => ("200 OK", "ready\n"),
            false => ("503 Service Unavailable", "not ready\n"),
        };
        let length = text.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{text}"
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_shortens_a_pause_by_at_most_half() {
        let cut: Vec<_> = (0..100).map(|_| with_jitter(LONGEST_PAUSE)).collect();
        assert!(cut.iter().all(|pause| (LONGEST_PAUSE / 2..=LONGEST_PAUSE).contains(pause)));
        assert!(cut.iter().any(|pause| *pause != cut[0]), "all are {:?}", cut[0]);
    }

    struct Idle;

    impl BlockingHandler for Idle {
        fn events(&self) -> &[nri_api::event::Event] {
            &[]
        }
    }

    #[test]
    fn an_identity_that_runtimes_reject_is_refused() {
        for id in ["", "greeter", "1-greeter", "10-", "10-a b", "ab-greeter"] {
            let why = Plugin::blocking(id, Idle).map(|_| ()).unwrap_err().to_string();
            assert!(why.starts_with("invalid plugin"), "{id}: {why}");
        }
        assert_eq!(Plugin::blocking("10-greeter", Idle).unwrap().id, "10-greeter");
    }
}
