// SPDX-License-Identifier: Apache-2.0
//! `/healthz` and `/readyz` for kubelet's probes: alive as long as it answers, ready once the node is.
//! Whoever reaches it reads one line and changes nothing.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;

use super::log;
use crate::error::{Context, Result};

/// How long a probe's connection may last.
const CONNECTION: Duration = Duration::from_secs(10);

/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the node is not ready; `None` once it is.
type Unready = Arc<Mutex<Option<String>>>;

/// What the probes get.
#[derive(Debug)]
pub(super) struct Health {
    unready: Unready,
}

impl Health {
    /// Answers probes from now on, in a thread of its own; nobody without an address.
    ///
    /// # Errors
    /// Fails when the address cannot be listened at.
    pub(super) fn serve(at: Option<SocketAddr>) -> Result<Self> {
        let unready: Unready = Arc::new(Mutex::new(Some("not installed yet".to_owned())));
        if let Some(at) = at {
            let listener = TcpListener::bind(at).doing(|| format!("listening at {at}"))?;
            listener.set_nonblocking(true)?;
            log(&format!("probes are answered at {}", listener.local_addr()?));
            let shown = Arc::clone(&unready);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            std::thread::Builder::new()
                .name("probes".to_owned())
                .spawn(move || runtime.block_on(accept(listener, &shown)))?;
        }
        Ok(Self { unready })
    }

    /// The node can be used.
    pub(super) fn ready(&self) {
        *self.unready.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// It cannot, for this reason.
    pub(super) fn not_ready(&self, why: &str) {
        *self.unready.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    }
}

async fn accept(listener: TcpListener, unready: &Unready) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let unready = Arc::clone(unready);
        tokio::spawn(async move {
            let answer = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
                let response = respond(request.uri().path(), &unready);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.keep_alive(false);
            let served = http.serve_connection(TokioIo::new(stream), answer);
            let _ended_or_too_slow = tokio::time::timeout(CONNECTION, served).await;
        });
    }
}

fn respond(path: &str, unready: &Unready) -> Response<Full<Bytes>> {
    let why = unready.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (status, text) = match (path, why) {
        ("/healthz", _) | ("/readyz", None) => (StatusCode::OK, "ok".to_owned()),
        ("/readyz", Some(why)) => (StatusCode::SERVICE_UNAVAILABLE, why),
        _ => (StatusCode::NOT_FOUND, "there are /healthz and /readyz".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_the_node_and_healthy_is_the_process() {
        let health = Health::serve(None).unwrap();
        let status = |path| respond(path, &health.unready).status().as_u16();
        assert_eq!((status("/healthz"), status("/readyz"), status("/")), (200, 503, 404));
        health.ready();
        assert_eq!((status("/healthz"), status("/readyz")), (200, 200));
        health.not_ready("the engine is away");
        assert_eq!((status("/healthz"), status("/readyz")), (200, 503));
    }
}
