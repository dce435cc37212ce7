// SPDX-License-Identifier: Apache-2.0
//! HTTP responses for probes and Prometheus. Each connection serves one request, with limits for
//! the length of its head and for its time. If too many connections are open, the oldest is closed,
//! so that slow clients do not exclude others.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

use crate::accept;
use crate::limits;

/// Time limit for a connection: one request and its response.
const CONNECTION: Duration = Duration::from_secs(10);

/// Serves every connection of a listener; `answer` renders the response to a request. Never ends.
pub(crate) async fn serve<S, A>(
    mut accept: impl AsyncFnMut() -> io::Result<S>,
    mut failed: impl FnMut(&io::Error),
    answer: A,
) where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    A: Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Clone + 'static,
{
    let connections = Connections::default();
    loop {
        let stream = accept::next(&mut accept, &mut failed).await;
        connections.serve(stream, answer.clone()).await;
    }
}

/// The open connections, the oldest first.
#[derive(Debug, Default)]
struct Connections(RefCell<VecDeque<JoinHandle<()>>>);

impl Connections {
    async fn serve<S, A>(&self, stream: S, answer: A)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
        A: Fn(&Request<Incoming>) -> Response<Full<Bytes>> + 'static,
    {
        let task = tokio::task::spawn_local(async move {
            let service = service_fn(|request| {
                let response = answer(&request);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.keep_alive(false).max_buf_size(limits::HTTP_HEAD);
            let served = http.serve_connection(TokioIo::new(stream), service);
            let _ended_or_too_slow = tokio::time::timeout(CONNECTION, served).await;
        });
        self.make_room();
        self.0.borrow_mut().push_back(task);
        // A request that has arrived is answered before new connections can displace it.
        tokio::task::yield_now().await;
    }

    fn make_room(&self) {
        let mut open = self.0.borrow_mut();
        open.retain(|task| !task.is_finished());
        while open.len() >= limits::HTTP_CONNECTIONS {
            let Some(oldest) = open.pop_front() else { return };
            oldest.abort();
        }
    }
}
