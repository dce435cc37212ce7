// SPDX-License-Identifier: Apache-2.0
//! Serves metrics and health over HTTP, for Prometheus and for probes: `/metrics`, `/healthz`, `/readyz`.
//!
//! A client can change nothing and delays no container: `src/http.rs` limits connections.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tracing::info;

use crate::config::MetricsListener;
use crate::daemon::process::handover;
use crate::daemon::process::sockets::asynchronous;
use crate::daemon::server::{holdings, report_unaccepted};
use crate::daemon::shared::Daemon;
use crate::error::{Context, Error, Result};
use crate::plugin::socket::{self, SocketFile};

/// Mode of the socket: only the daemon's user, and root, may read the metrics.
const SOCKET_MODE: u32 = 0o600;

/// Maximum age of a metrics page that is sent again, so that frequent requests cost the event loop little.
const PAGE_AGE: Duration = Duration::from_millis(100);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// The listener that serves metrics, and its task.
#[derive(Debug, Default)]
pub(crate) struct MetricsServer {
    task: Option<JoinHandle<()>>,
    file: Option<(PathBuf, SocketFile)>,
    /// The listener's descriptor, which the task owns, and its address.
    listener: Option<(RawFd, MetricsListener)>,
}

/// The listener, saved for the next program.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedMetrics {
    pub(crate) descriptor: RawFd,
    at: String,
}

/// An open listener that is not served yet.
#[derive(Debug)]
pub(crate) enum OpenListener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl MetricsServer {
    /// Serves metrics if configured. If the listener cannot be opened, that is reported and nothing
    /// else fails.
    pub(crate) async fn start(daemon: &Rc<Daemon>) -> Self {
        let mut server = Self::default();
        match open(daemon.config().metrics_listen.as_ref()).await {
            Ok(listener) => server.serve(daemon, listener),
            Err(error) => {
                daemon.report.note_failure(&format!("metrics cannot be served: {error}"), "");
            }
        }
        server
    }

    /// Returns the listener for the next program, if there is one.
    pub(crate) fn save(&self) -> Option<SavedMetrics> {
        let (descriptor, at) = self.listener.as_ref()?;
        Some(SavedMetrics { descriptor: *descriptor, at: format!("{at:?}") })
    }

    /// Resumes the listener of the previous program; opens one if that fails or the configured address has changed.
    pub(crate) async fn resume(daemon: &Rc<Daemon>, saved: Option<SavedMetrics>) -> Self {
        let wanted = daemon.config().metrics_listen.clone();
        let saved = saved.and_then(|saved| Some((saved.at, handover::own(saved.descriptor).ok()?)));
        let resumed = match (saved, wanted) {
            (Some((at, descriptor)), Some(wanted)) if at == format!("{wanted:?}") => {
                OpenListener::resume(descriptor, &wanted).ok()
            }
            _ => None,
        };
        if resumed.is_none() {
            return Self::start(daemon).await;
        }
        let mut server = Self::default();
        server.serve(daemon, resumed);
        server
    }

    /// Serves metrics on this listener in place of the previous one; `None` stops serving them.
    pub(crate) fn serve(&mut self, daemon: &Rc<Daemon>, listener: Option<OpenListener>) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        if let Some((path, file)) = self.file.take() {
            file.remove(&path);
        }
        self.listener = listener.as_ref().and_then(|listener| {
            Some((listener.number(), daemon.config().metrics_listen.clone()?))
        });
        if let Some(OpenListener::Unix(_, path)) = &listener {
            self.file = SocketFile::of(path).ok().map(|file| (path.clone(), file));
        }
        let daemon = Rc::clone(daemon);
        self.task = listener.map(|listener| {
            tokio::task::spawn_local(async move { accept(&daemon, listener).await })
        });
    }
}

impl OpenListener {
    fn number(&self) -> RawFd {
        match self {
            Self::Tcp(listener) => listener.as_raw_fd(),
            Self::Unix(listener, _) => listener.as_raw_fd(),
        }
    }

    fn resume(descriptor: OwnedFd, at: &MetricsListener) -> Result<Self> {
        Ok(match at {
            MetricsListener::Tcp(_) => {
                let listener = std::net::TcpListener::from(descriptor);
                listener.set_nonblocking(true)?;
                Self::Tcp(TcpListener::from_std(listener)?)
            }
            MetricsListener::Unix(path) => {
                Self::Unix(asynchronous(descriptor.into())?, path.clone())
            }
        })
    }
}

/// Opens a listener, without serving it.
///
/// # Errors
/// Fails when the address cannot be used, for instance because another process listens there.
pub(crate) async fn open(at: Option<&MetricsListener>) -> Result<Option<OpenListener>> {
    Ok(match at {
        None => None,
        Some(MetricsListener::Tcp(address)) => {
            let listener = TcpListener::bind(address).await;
            Some(OpenListener::Tcp(listener.doing(|| format!("listening at {address}"))?))
        }
        Some(MetricsListener::Unix(path)) => {
            Some(OpenListener::Unix(bind(path).await?, path.clone()))
        }
    })
}

/// Serves connections. Never ends.
async fn accept(daemon: &Rc<Daemon>, listener: OpenListener) {
    let metrics = Rc::new(RefCell::new(None));
    let answer = {
        let daemon = Rc::clone(daemon);
        move |request: &Request<Incoming>| respond(&daemon, &metrics, request)
    };
    let failed = |error: &_| report_unaccepted(&daemon.report, "the metrics listener", error);
    match listener {
        OpenListener::Tcp(listener) => {
            let address = listener.local_addr().map(|address| address.to_string());
            info!("metrics are served at http://{}/metrics", address.unwrap_or_default());
            crate::http::serve(async || Ok(listener.accept().await?.0), failed, answer).await;
        }
        OpenListener::Unix(listener, path) => {
            info!("metrics are served at {}", path.display());
            crate::http::serve(async || Ok(listener.accept().await?.0), failed, answer).await;
        }
    }
}

/// Binds a socket to which only the daemon's user and root can connect. It replaces an old socket
/// without a listener, and no other file.
async fn bind(path: &Path) -> Result<UnixListener> {
    let doing = || format!("listening at {}", path.display());
    if let Ok(there) = std::fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(
                Error::new("a file that is not a socket exists at this path").doing(doing())
            );
        }
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
            Ok(_) | Err(_) => {
                return Err(Error::new("another process listens at this path").doing(doing()));
            }
        }
    }
    asynchronous(socket::bind(path, SOCKET_MODE, None)?.listener)
}

/// The last page of metrics, and when it was made.
type MetricsPage = RefCell<Option<(Instant, Bytes)>>;

fn metrics_page(daemon: &Daemon, last: &MetricsPage) -> Bytes {
    let mut last = last.borrow_mut();
    match last.as_ref().filter(|(made, _)| made.elapsed() < PAGE_AGE) {
        Some((_, page)) => page.clone(),
        None => last.insert((Instant::now(), holdings::metrics_text(daemon).into())).1.clone(),
    }
}

fn respond(
    daemon: &Daemon,
    metrics: &MetricsPage,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return page(StatusCode::METHOD_NOT_ALLOWED, PLAIN_TEXT, "only GET\n".to_owned());
    }
    match request.uri().path() {
        "/metrics" => page(StatusCode::OK, OPEN_METRICS, metrics_page(daemon, metrics)),
        "/healthz" => page(StatusCode::OK, PLAIN_TEXT, "ok\n".to_owned()),
        "/readyz" => match holdings::unready(daemon).as_slice() {
            [] => page(StatusCode::OK, PLAIN_TEXT, "ok\n".to_owned()),
            why => {
                page(StatusCode::SERVICE_UNAVAILABLE, PLAIN_TEXT, format!("{}\n", why.join("\n")))
            }
        },
        _ => {
            let pages = "there are /metrics, /healthz and /readyz\n".to_owned();
            page(StatusCode::NOT_FOUND, PLAIN_TEXT, pages)
        }
    }
}

fn page(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}
