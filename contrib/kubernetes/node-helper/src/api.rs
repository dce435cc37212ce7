// SPDX-License-Identifier: Apache-2.0
//! The API server, as a pod with a service account reaches it. Only the cluster's own authority is
//! trusted; no proxy of the environment and no redirect is followed, so that the token goes nowhere else.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use ureq::http::Request;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

use crate::{Failure, Result};

/// The folder in which kubelet puts the token and the authority.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Time limit of connecting.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Time limit of a whole request, unless its caller has less time.
pub(crate) const REQUEST_WAIT: Duration = Duration::from_secs(30);
/// The largest response: a page of a list.
const ANSWER_LIMIT: u64 = 64 << 20;

/// A patch that merges lists of objects by their key, such as conditions by their type.
const STRATEGIC: &str = "STRATEGIC";

/// The server, and the account of the requests.
#[derive(Debug)]
pub(crate) struct ApiServer {
    agent: ureq::Agent,
    url: String,
    token: PathBuf,
}

impl ApiServer {
    /// Returns the API server that this pod's environment names; each request may take `within`.
    ///
    /// # Errors
    /// Fails outside of a pod, or if the authority's certificate cannot be read.
    pub(crate) fn of_pod(within: Duration) -> Result<Self> {
        let host = std::env::var("KUBERNETES_SERVICE_HOST").unwrap_or_default();
        if host.is_empty() {
            return Err(Failure::new(
                "KUBERNETES_SERVICE_HOST is not set: this is no pod of a cluster",
            ));
        }
        let port = std::env::var("KUBERNETES_SERVICE_PORT").unwrap_or_default();
        let port = if port.is_empty() { "443".to_owned() } else { port };
        let folder = std::env::var_os("NRI_RUNC_SERVICE_ACCOUNT");
        let folder = folder.map_or_else(|| PathBuf::from(SERVICE_ACCOUNT), PathBuf::from);
        let url = format!("https://{}:{port}", in_url(&host));
        Ok(Self { agent: agent(&folder.join("ca.crt"), within)?, url, token: folder.join("token") })
    }

    /// One request; the answer's body. `PATCH` is a merge patch, `STRATEGIC` one that knows the keys of lists.
    ///
    /// # Errors Fails with the exit code of the server's status.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let failed = |text: String| Failure::new(format!("{method} {path}: {text}"));
        if !path.starts_with('/') {
            return Err(failed("a path begins with /".to_owned()));
        }
        // kubelet replaces the file before the token expires.
        let token = std::fs::read_to_string(&self.token)
            .map_err(|error| failed(format!("{}: {error}", self.token.display())))?;
        let request = Request::builder()
            .method(if method == STRATEGIC { "PATCH" } else { method })
            .uri(format!("{}{path}", self.url))
            .header("Accept", "application/json")
            .header("Authorization", format!("Bearer {}", token.trim()));
        let sent = match body_type(method) {
            Some(kind) => request
                .header("Content-Type", kind)
                .body(body)
                .map(|request| self.agent.run(request)),
            None if method == "GET" => request.body(()).map(|request| self.agent.run(request)),
            None => {
                let known = "GET, PATCH, STRATEGIC, POST and DELETE are known";
                return Err(failed(format!("no such method: {known}")));
            }
        };
        let mut response = sent
            .map_err(|error| failed(error.to_string()))?
            .map_err(|error| failed(format!("{}: {error}", self.url)))?;
        let status = response.status().as_u16();
        let text = response.body_mut().with_config().limit(ANSWER_LIMIT).read_to_string();
        let text = text.map_err(|error| failed(error.to_string()))?;
        let code = match status {
            200..300 => return Ok(text),
            403 => Failure::FORBIDDEN,
            404 => Failure::NOT_FOUND,
            409 => Failure::CONFLICT,
            400 | 413 | 422 => Failure::INVALID,
            _ => return Err(failed(reason(status, &text))),
        };
        Err(Failure { code, ..failed(reason(status, &text)) })
    }

    /// An object, or a list of them.
    ///
    /// # Errors
    /// As [`ApiServer::request`]; fails also when the answer is not JSON.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        let text = self.request("GET", path, "")?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::new(format!("GET {path}: the answer is not JSON: {error}")))
    }
}

/// The content type of a method's body; `None` for `GET`.
pub(crate) fn body_type(method: &str) -> Option<&'static str> {
    match method {
        "PATCH" => Some("application/merge-patch+json"),
        STRATEGIC => Some("application/strategic-merge-patch+json"),
        "POST" | "DELETE" => Some("application/json"),
        _ => None,
    }
}

/// An IPv6 address is in brackets.
fn in_url(host: &str) -> String {
    let is_bare_v6 = host.contains(':') && !host.starts_with('[');
    if is_bare_v6 { format!("[{host}]") } else { host.to_owned() }
}

fn agent(authority: &Path, within: Duration) -> Result<ureq::Agent> {
    let at = authority.display();
    let pem = std::fs::read(authority).map_err(|error| Failure::new(format!("{at}: {error}")))?;
    let roots: Vec<Certificate<'static>> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            Ok(_) | Err(_) => None,
        })
        .collect();
    if roots.is_empty() {
        return Err(Failure::new(format!("{at} has no certificate")));
    }
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&roots))
        .build();
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .https_only(true)
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .user_agent(concat!("nri-runc-node-helper/", env!("CARGO_PKG_VERSION")))
        .timeout_connect(Some(CONNECT_WAIT.min(within)))
        .timeout_global(Some(within))
        .build();
    Ok(config.new_agent())
}

/// The server's reason of a refusal: the message of a Status.
fn reason(status: u16, text: &str) -> String {
    let document: Value = serde_json::from_str(text).unwrap_or_default();
    let message = document["message"].as_str().unwrap_or_default();
    if message.is_empty() {
        format!("the server answered {status}")
    } else {
        format!("{status}: {message}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_either_family_are_part_of_a_url() {
        assert_eq!(in_url("10.96.0.1"), "10.96.0.1");
        assert_eq!(in_url("fd00::1"), "[fd00::1]");
        assert_eq!(in_url("[fd00::1]"), "[fd00::1]");
        assert_eq!(in_url("api.example.org"), "api.example.org");
    }

    #[test]
    fn a_refusal_contains_the_servers_message_if_any() {
        assert_eq!(
            reason(409, r#"{"kind": "Status", "message": "it changed"}"#),
            "409: it changed"
        );
        assert_eq!(reason(502, "<html>"), "the server answered 502");
    }
}
