// SPDX-License-Identifier: Apache-2.0
//! `/healthz` and `/readyz` for kubelet's probes: healthy while this process responds, ready while the
//! node is ready. A client reads one line and changes nothing; `src/http.rs` limits connections.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use tokio::task::LocalSet;

use super::log;
use crate::error::{Context, Result};
use crate::http;

/// The reason why the node is not ready; `None` once it is.
type Unready = Arc<Mutex<Option<String>>>;

/// The state that the probes report.
#[derive(Debug)]
pub(super) struct Health {
    unready: Unready,
}

impl Health {
    /// Starts a thread that serves probes; without an address, starts none.
    ///
    /// # Errors
    /// Fails when it cannot listen at the address.
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
                .spawn(move || LocalSet::new().block_on(&runtime, serve(listener, shown)))?;
        }
        Ok(Self { unready })
    }

    /// Marks the node as ready.
    pub(super) fn ready(&self) {
        *self.unready.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Marks the node as not ready, for this reason.
    pub(super) fn not_ready(&self, why: &str) {
        *self.unready.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    }
}

async fn serve(listener: TcpListener, unready: Unready) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let answer = move |request: &Request<Incoming>| respond(request.uri().path(), &unready);
    http::serve(async || Ok(listener.accept().await?.0), |_error| (), answer).await;
}

/// Parses an address with a port. The brackets of an IPv6 address may be missing: Kubernetes
/// inserts a pod's address without them.
///
/// # Errors
/// Fails for any other string.
pub(super) fn address(text: &str) -> std::result::Result<SocketAddr, String> {
    let without_brackets = || {
        let (ip, port) = text.rsplit_once(':')?;
        Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?))
    };
    let address = text.parse().ok().or_else(without_brackets);
    address.ok_or_else(|| "expected ADDRESS:PORT".to_owned())
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
    fn a_listen_address_needs_a_port_but_no_brackets() {
        for (text, wanted) in [
            ("10.0.0.7:9748", "10.0.0.7:9748"),
            ("[fd00::7]:9748", "[fd00::7]:9748"),
            ("fd00::7:9748", "[fd00::7]:9748"),
            ("::1:80", "[::1]:80"),
        ] {
            assert_eq!(address(text), Ok(wanted.parse().unwrap()), "{text}");
        }
        for wrong in
            ["", ":9748", "10.0.0.7", "fd00::", "fd00::7", "10.0.0.7:", "pod:9748", "1:99999"]
        {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn readyz_reports_the_node_and_healthz_the_process() {
        let health = Health::serve(None).unwrap();
        let status = |path| respond(path, &health.unready).status().as_u16();
        assert_eq!((status("/healthz"), status("/readyz"), status("/")), (200, 503, 404));
        health.ready();
        assert_eq!((status("/healthz"), status("/readyz")), (200, 200));
        health.not_ready("the engine is away");
        assert_eq!((status("/healthz"), status("/readyz")), (200, 503));
    }
}
