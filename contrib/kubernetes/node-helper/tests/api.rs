// SPDX-License-Identifier: Apache-2.0
//! `api` and `remove`: the helper with a test API server, over TLS with a test authority. The requests,
//! the exit code of each response, and the servers that it does not trust.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::disallowed_methods,
    reason = "programs under test, and files that nobody else reads"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A received request: its first line, its headers, its body.
#[derive(Debug, Clone)]
struct Asked {
    line: String,
    headers: BTreeMap<String, String>,
    body: String,
}

/// The answer to a request, by its status and body.
type Answer = Arc<dyn Fn(&Asked) -> (u16, String) + Send + Sync>;

struct Server {
    temp: tempfile::TempDir,
    host: String,
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    fn new(answer: impl Fn(&Asked) -> (u16, String) + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1", Arc::new(answer)).unwrap()
    }

    /// `None` if this machine has no such address.
    fn at(host: &str, answer: Answer) -> Option<Self> {
        let listener = TcpListener::bind((host, 0)).ok()?;
        let temp = tempfile::tempdir().unwrap();
        let config = certificates(host, temp.path());
        std::fs::write(temp.path().join("token"), "first\n").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _gone = serve(stream, &config, &answer, &noted);
            }
        });
        Some(Self { temp, host: host.to_owned(), port, asked })
    }

    fn helper(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nri-runc-node-helper"));
        command.env_clear().args(words);
        command.env("KUBERNETES_SERVICE_HOST", &self.host);
        command.env("KUBERNETES_SERVICE_PORT", self.port.to_string());
        command.env("NRI_RUNC_SERVICE_ACCOUNT", self.temp.path());
        command
    }

    fn asks(&self, words: &[&str], body: &str) -> Output {
        output(&mut self.helper(words), body)
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn output(command: &mut Command, body: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let _it_need_not_read = child.stdin.take().unwrap().write_all(body.as_bytes());
    child.wait_with_output().unwrap()
}

/// An authority, whose certificate goes into the folder, and a server's certificate of it.
fn certificates(host: &str, folder: &Path) -> Arc<ServerConfig> {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(folder.join("ca.crt"), authority.pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let its =
        CertificateParams::new(vec![host.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config =
        config.unwrap().with_no_client_auth().with_single_cert(vec![its.der().clone()], key);
    Arc::new(config.unwrap())
}

fn serve(
    stream: TcpStream,
    config: &Arc<ServerConfig>,
    answer: &Answer,
    noted: &Mutex<Vec<Asked>>,
) -> std::io::Result<()> {
    let tls = ServerConnection::new(Arc::clone(config)).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(tls, stream));
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        stream.read_line(&mut header)?;
        let Some((key, value)) = header.trim().split_once(": ") else { break };
        headers.insert(key.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let line = line.trim().trim_end_matches(" HTTP/1.1").to_owned();
    let asked = Asked { line, headers, body: String::from_utf8_lossy(&body).into_owned() };
    let (status, text) = answer(&asked);
    noted.lock().unwrap().push(asked);
    let answer = format!(
        "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nLocation: /elsewhere\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    stream.get_mut().write_all(answer.as_bytes())?;
    stream.get_mut().conn.send_close_notify();
    stream.get_mut().flush()
}

#[track_caller]
fn failed(output: &Output, code: i32) -> String {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("nri-runc-node-helper: ") && output.stdout.is_empty(), "{line}");
    line
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn status(code: u16, message: &str) -> (u16, String) {
    (code, format!(r#"{{"kind": "Status", "message": "{message}"}}"#))
}

const NODE: &str = "/api/v1/nodes/one";

#[test]
fn each_request_uses_the_current_token() {
    let server = Server::new(|_| (200, "{\"kind\": \"Node\"}".to_owned()));
    assert_eq!(succeeded(&server.asks(&["api", "GET", NODE], "")), "{\"kind\": \"Node\"}");
    std::fs::write(server.temp.path().join("token"), "second").unwrap();
    succeeded(&server.asks(&["api", "GET", NODE], ""));
    let asked = server.asked();
    assert_eq!(asked[0].line, format!("GET {NODE}"));
    let tokens: Vec<&str> = asked.iter().map(|one| one.headers["authorization"].as_str()).collect();
    assert_eq!(tokens, ["Bearer first", "Bearer second"]);
}

#[test]
fn a_patch_is_a_merge_patch_and_its_body_comes_from_stdin() {
    let server = Server::new(|_| (200, "{}".to_owned()));
    succeeded(&server.asks(&["api", "PATCH", NODE], "{\"metadata\":{\"labels\":{\"a\":null}}}"));
    let asked = server.asked();
    assert_eq!(asked[0].body, "{\"metadata\":{\"labels\":{\"a\":null}}}");
    assert_eq!(asked[0].headers["content-type"], "application/merge-patch+json");
}

#[test]
fn conditions_are_merged_by_their_key_and_an_event_is_created() {
    let server = Server::new(|_| (200, "{}".to_owned()));
    let status = format!("{NODE}/status");
    succeeded(&server.asks(&["api", "STRATEGIC", &status, "5"], "{\"status\":{}}"));
    let events = "/api/v1/namespaces/shop/events";
    succeeded(&server.asks(&["api", "POST", events], "{\"kind\":\"Event\"}"));
    let asked = server.asked();
    assert_eq!(asked[0].line, format!("PATCH {status}"));
    assert_eq!(asked[0].headers["content-type"], "application/strategic-merge-patch+json");
    assert_eq!((asked[0].body.as_str(), asked.len()), ("{\"status\":{}}", 2));
    assert_eq!(asked[1].line, format!("POST {events}"));
    assert_eq!(asked[1].headers["content-type"], "application/json");
}

#[test]
fn a_slow_server_delays_no_longer_than_the_callers_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (server, port) =
        (Server::new(|_| (200, String::new())), listener.local_addr().unwrap().port());
    let mut slow = server.helper(&["api", "GET", NODE, "1"]);
    slow.env("KUBERNETES_SERVICE_PORT", port.to_string());
    let line = failed(&output(&mut slow, ""), 1);
    assert!(line.contains("timeout"), "{line}");
    assert_eq!(server.asks(&["api", "GET", NODE, "soon"], "").status.code(), Some(2));
}

#[test]
fn a_server_with_an_ipv6_address_is_reached() {
    let answer: Answer = Arc::new(|_| (200, "{}".to_owned()));
    let Some(server) = Server::at("::1", answer) else {
        println!("skipped: this machine has no IPv6 loopback");
        return;
    };
    succeeded(&server.asks(&["api", "GET", NODE], ""));
    assert_eq!(server.asked()[0].headers["host"], format!("[::1]:{}", server.port));
}

#[test]
fn each_refusal_has_its_exit_code_and_the_servers_message() {
    for (answer, code) in
        [(403, 3), (404, 4), (409, 5), (400, 6), (422, 6), (401, 1), (429, 1), (500, 1)]
    {
        let server = Server::new(move |_| status(answer, "it says why"));
        let line = failed(&server.asks(&["api", "GET", NODE], ""), code);
        assert!(line.contains(&format!("GET {NODE}: {answer}: it says why")), "{line}");
    }
    let server = Server::new(|_| (502, "<html>\n<p>bad</p>".to_owned()));
    assert!(failed(&server.asks(&["api", "GET", NODE], ""), 1).contains("the server answered 502"));
}

#[test]
fn a_redirect_and_a_proxy_do_not_get_the_token() {
    let server = Server::new(|asked| {
        if asked.line.contains("elsewhere") { (200, "{}".to_owned()) } else { (307, String::new()) }
    });
    failed(&server.asks(&["api", "GET", NODE], ""), 1);
    assert_eq!(server.asked().len(), 1, "the redirect was followed");
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let server = Server::new(|_| (200, "{}".to_owned()));
    let mut command = server.helper(&["api", "GET", NODE]);
    command.env("HTTPS_PROXY", &address).env("https_proxy", &address).env("ALL_PROXY", &address);
    succeeded(&output(&mut command, ""));
}

#[test]
fn an_api_server_with_a_wrong_certificate_gets_no_request() {
    let (one, other) =
        (Server::new(|_| (200, "{}".to_owned())), Server::new(|_| (200, "{}".to_owned())));
    std::fs::copy(other.temp.path().join("ca.crt"), one.temp.path().join("ca.crt")).unwrap();
    failed(&one.asks(&["api", "GET", NODE], ""), 1);
    assert!(one.asked().is_empty());
    let mut by_name = other.helper(&["api", "GET", NODE]);
    failed(&output(by_name.env("KUBERNETES_SERVICE_HOST", "localhost"), ""), 1);
    assert!(other.asked().is_empty());
}

#[test]
fn invalid_calls_and_missing_credentials_send_no_request() {
    let server = Server::new(|_| (200, "{}".to_owned()));
    let mut outside = server.helper(&["api", "GET", NODE]);
    let line = failed(&output(outside.env_remove("KUBERNETES_SERVICE_HOST"), ""), 1);
    assert!(line.contains("this is no pod of a cluster"), "{line}");
    assert!(failed(&server.asks(&["api", "GET", "nodes"], ""), 1).contains("begins with /"));
    assert!(failed(&server.asks(&["api", "PUT", NODE], ""), 1).contains("no such method"));
    std::fs::remove_file(server.temp.path().join("token")).unwrap();
    assert!(failed(&server.asks(&["api", "GET", NODE], ""), 1).contains("/token: "));
    std::fs::write(server.temp.path().join("ca.crt"), "nothing").unwrap();
    assert!(failed(&server.asks(&["api", "GET", NODE], ""), 1).contains("has no certificate"));
    assert!(server.asked().is_empty());
    assert_eq!(server.asks(&["api"], "").status.code(), Some(2));
    assert_eq!(server.asks(&["remove", "x", "y", "z", "1"], "").status.code(), Some(2));
}

/// A cluster with these lists, whose DaemonSet is gone after `questions` requests.
fn cluster(pods: &'static str, nodes: &'static str, questions: usize) -> Server {
    let left = Mutex::new(questions);
    Server::new(move |asked| {
        let list = |items: &str| (200, format!(r#"{{"metadata": {{}}, "items": [{items}]}}"#));
        if asked.line.starts_with("DELETE") {
            return (200, "{}".to_owned());
        }
        if asked.line.contains("/daemonsets/") {
            let mut left = left.lock().unwrap();
            *left = left.saturating_sub(1);
            return if *left == 0 { status(404, "gone") } else { (200, "{}".to_owned()) };
        }
        match asked.line.as_str() {
            line if line.contains("/nodes?") => list(nodes),
            line if line.contains("/namespaces/kube-system/pods") => list(
                r#"{"metadata": {"namespace": "kube-system", "name": "nri-runc-7", "ownerReferences": [{"kind": "DaemonSet", "name": "nri-runc"}]}, "spec": {"nodeName": "two"}}"#,
            ),
            // The second page of two.
            line if line.contains("continue=more%2B") => list(pods),
            _ => (200, r#"{"metadata": {"continue": "more+"}, "items": []}"#.to_owned()),
        }
    })
}

fn remove(seconds: &str) -> [&str; 5] {
    ["remove", "kube-system/nri-runc", "nri-runc", "nri-runc.dev/ready", seconds]
}

#[test]
fn a_removal_deletes_the_daemonset_and_waits_for_its_last_pod() {
    let server = cluster("", "", 3);
    let said = succeeded(&server.asks(&remove("30"), ""));
    assert!(said.contains("waiting for kube-system/nri-runc-7 on two"), "{said}");
    assert!(said.ends_with("nri-runc is removed from all nodes\n"), "{said}");
    let asked = server.asked();
    let deletion = asked.iter().find(|one| one.line.starts_with("DELETE")).unwrap();
    assert!(deletion.body.contains("\"Foreground\""), "{deletion:?}");
    assert!(asked.iter().any(|one| one.line.contains("labelSelector=nri-runc.dev%2Fready")));
}

#[test]
fn nothing_is_removed_while_a_pod_uses_the_runtimeclass() {
    let server = cluster(
        r#"{"metadata": {"namespace": "shop", "name": "web"}, "spec": {"runtimeClassName": "nri-runc"}, "status": {"phase": "Running"}}"#,
        "",
        1,
    );
    let line = failed(&server.asks(&remove("30"), ""), 1);
    assert!(
        line.contains("nothing was removed: the RuntimeClass nri-runc is in use by shop/web"),
        "{line}"
    );
    assert!(!server.asked().iter().any(|one| one.line.starts_with("DELETE")));
}

#[test]
fn a_removal_that_times_out_names_the_remaining_pod_or_node() {
    let server = cluster("", "", usize::MAX);
    let output = server.asks(&remove("1"), "");
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(
        line.contains("not removed within 1 s: waiting for kube-system/nri-runc-7 on two"),
        "{line}"
    );
    let server = cluster("", r#"{"metadata": {"name": "three"}}"#, 1);
    let output = server.asks(&remove("30"), "");
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && line.contains("nri-runc stays on three"), "{line}");
}

#[test]
fn a_forbidden_removal_is_reported() {
    let server = Server::new(|_| status(403, "no"));
    failed(&server.asks(&remove("5"), ""), 3);
}
