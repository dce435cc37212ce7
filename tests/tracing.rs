// SPDX-License-Identifier: Apache-2.0
//! Spans on their way to a collector, with a build that has the feature `otlp`: what arrives there,
//! how it hangs together with what plugins and callers see, and what happens without a collector.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use test_support::{Script, TestHost, wait_until};

type Spans = Arc<Mutex<Vec<Span>>>;

/// A collector on a port of its own that keeps every span, and answers with this status.
fn collector(status: &'static str) -> (String, Spans) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let spans = Spans::default();
    let kept = Arc::clone(&spans);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let kept = Arc::clone(&kept);
            std::thread::spawn(move || while take(&stream, &kept, status).is_some() {});
        }
    });
    (endpoint, spans)
}

/// One request of HTTP/1.1 with a length.
fn take(stream: &TcpStream, kept: &Spans, status: &str) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut length, mut line) = (0, String::new());
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    assert!(line.starts_with("POST /v1/traces "), "{line}");
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(bytes) = line.strip_prefix("content-length:") {
            length = bytes.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
    let scopes = request.resource_spans.into_iter().flat_map(|it| it.scope_spans);
    kept.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").ok()
}

fn host(more: &str) -> TestHost {
    let mut host = TestHost::new(&format!("---\n[tracing]\n{more}"));
    host.start_daemon();
    host
}

/// The spans with this name, once there are so many.
fn named(spans: &Spans, name: &str, count: usize) -> Vec<Span> {
    let found = || -> Vec<Span> {
        spans.lock().unwrap().iter().filter(|span| span.name == name).cloned().collect()
    };
    wait_until(&format!("{count} spans {name}"), || found().len() >= count);
    found()
}

fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|it| it.key == key);
    found.map(|it| format!("{:?}", it.value)).unwrap_or_default()
}

#[test]
fn a_verb_is_a_span_and_each_request_to_a_plugin_one_below_it() {
    let (endpoint, spans) = collector("200 OK");
    let host = host(&format!("endpoint = \"{endpoint}\"\n"));
    let _told = host.plugin("10", "first", Script::default());
    let _told = host.plugin("20", "second", Script::default());
    assert!(host.create("c1").status.success());
    let creates = named(&spans, "create", 1);
    assert_eq!(creates.len(), 1);
    let create = &creates[0];
    assert!(create.parent_span_id.is_empty() && create.end_time_unix_nano > 0);
    assert!(create.start_time_unix_nano <= create.end_time_unix_nano);
    assert!(attribute(create, "container.id").contains("c1"));
    let mut calls = named(&spans, "CreateContainer", 2);
    calls.sort_by_key(|span| span.start_time_unix_nano);
    for (call, plugin) in calls.iter().zip(["10-first", "20-second"]) {
        assert_eq!((&call.trace_id, &call.parent_span_id), (&create.trace_id, &create.span_id));
        assert!(attribute(call, "nri.plugin").contains(plugin), "{call:?}");
        assert!(create.start_time_unix_nano <= call.start_time_unix_nano);
        assert!(call.end_time_unix_nano <= create.end_time_unix_nano);
    }
    assert_eq!(calls.len(), 2);
}

#[test]
fn a_refused_verb_ends_with_its_reason() {
    let (endpoint, spans) = collector("200 OK");
    let host = host(&format!("endpoint = \"{endpoint}\"\n"));
    let script = Script { refuses: Some("no room here"), ..Script::default() };
    let _told = host.plugin("10", "strict", script);
    assert!(!host.create("c1").status.success());
    let create = named(&spans, "create", 1).remove(0);
    assert!(create.status.unwrap().message.contains("no room here"));
    let call = named(&spans, "CreateContainer", 1).remove(0);
    assert_eq!(call.status.unwrap().message, "unknown");
}

#[test]
fn what_is_not_sampled_is_not_exported() {
    let (endpoint, spans) = collector("200 OK");
    let host = host(&format!("endpoint = \"{endpoint}\"\nsample_per_million = 0\n"));
    let _told = host.plugin("10", "first", Script::default());
    assert!(host.create("c1").status.success());
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert!(spans.lock().unwrap().is_empty());
}

#[test]
fn a_collector_that_refuses_or_is_away_costs_a_line_and_no_container() {
    let (endpoint, spans) = collector("503 Service Unavailable");
    let refused = host(&format!("endpoint = \"{endpoint}\"\n"));
    let away = host("endpoint = \"http://127.0.0.1:9\"\n");
    for host in [&refused, &away] {
        let _told = host.plugin("10", "first", Script::default());
        for id in ["c1", "c2", "c3"] {
            assert!(host.create(id).status.success());
            std::thread::sleep(std::time::Duration::from_secs(3));
        }
        wait_until("the log says so", || host.logged(&["spans cannot be exported"]) > 0);
        host.logs(&["spans cannot be exported"], 1);
    }
    assert!(!spans.lock().unwrap().is_empty());
}
