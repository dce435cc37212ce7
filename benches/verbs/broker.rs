// SPDX-License-Identifier: Apache-2.0
//! The adaptation of nri-runc alone, without containers: the counterpart of
//! `go-adaptation/main.go`. The same lines over stdin, the same request, plugins of the same
//! program.

use std::io::BufRead;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nri_adaptation::{Creation, DefaultValidator};
use nri_api::identity::PluginIdentity;
use nri_runc::plugin::api;
use nri_runc::testing::chain::{self, ChainedPlugin, Participants, RuleScope};
use nri_runc::testing::config::PluginSettings;
use nri_runc::testing::plugin::{self, EncodedSnapshot, Outcome, Settings};
use nri_transport::Upcalls;
use protobuf::Message;
use tokio::net::UnixListener;

struct Nothing;

#[async_trait::async_trait]
impl Upcalls for Nothing {
    async fn update_containers(
        &self,
        _: &PluginIdentity,
        _: api::UpdateContainersRequest,
    ) -> Result<api::UpdateContainersResponse, String> {
        Err("not here".to_owned())
    }
}

/// `broker SOCKET REQUEST-FILE`
pub(crate) fn main(words: &[String]) {
    let [socket, request] = words else { return };
    nri_runc::Allocator::keep_blocks_of_this_thread();
    let bytes = std::fs::read(request).unwrap();
    let request = api::CreateContainerRequest::parse_from_bytes(&bytes).unwrap();
    let runtime = tokio::runtime::LocalRuntime::new().unwrap();
    runtime.block_on(serve(socket, Rc::new(request)));
}

async fn serve(socket: &str, request: Rc<api::CreateContainerRequest>) {
    let listener = UnixListener::bind(socket).unwrap();
    let mut seats: Vec<Rc<ChainedPlugin>> = Vec::new();
    let (mut known, mut told) = (EncodedSnapshot::default(), Duration::ZERO);
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["plugins", count] => {
                while seats.len() < count.parse().unwrap() {
                    seats.push(Rc::new(seat(&listener, &known, &mut told).await));
                }
                seats.sort_by_key(|seat| seat.plugin.index().to_owned());
                println!("ok");
            }
            ["run", events, at] => {
                let (wall, cpu) =
                    run(&seats, &request, events.parse().unwrap(), at.parse().unwrap()).await;
                println!("{} {}", wall.as_nanos(), cpu.as_nanos());
            }
            ["state", count] => {
                // Encoded, as the daemon stores them.
                known = EncodedSnapshot::encode(&[], &containers(&request, count.parse().unwrap()));
                println!("ok");
            }
            ["synchronized"] => println!("{}", told.as_nanos()),
            _ => return,
        }
    }
}

/// The container of the request, `count` times.
fn containers(request: &api::CreateContainerRequest, count: usize) -> Vec<api::Container> {
    let one = |number| {
        let container = request.container.clone().unwrap_or_default();
        api::Container { id: format!("{number:064}"), ..container }
    };
    (0..count).map(one).collect()
}

async fn seat(
    listener: &UnixListener,
    known: &EncodedSnapshot,
    told: &mut Duration,
) -> ChainedPlugin {
    let (stream, _) = listener.accept().await.unwrap();
    let settings = Settings {
        registration_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(2),
        runtime_name: "bench".to_owned(),
        runtime_version: "v0".to_owned(),
        nri_version: "v0.12.5".to_owned(),
    };
    let plugin = plugin::handshake(stream, None, &settings, Arc::new(Nothing)).await.unwrap();
    let begun = Instant::now();
    assert!(matches!(plugin.synchronize_encoded(known).await, Outcome::Answered(_)));
    *told = begun.elapsed();
    ChainedPlugin::new(plugin, false, &PluginSettings::default())
}

async fn run(
    seats: &[Rc<ChainedPlugin>],
    request: &Rc<api::CreateContainerRequest>,
    events: usize,
    at: usize,
) -> (Duration, Duration) {
    let left = Rc::new(std::cell::Cell::new(events));
    let (cpu, begun) = (spent(), Instant::now());
    let workers: Vec<_> = (0..at)
        .map(|_| {
            let (seats, request, left) = (seats.to_vec(), Rc::clone(request), Rc::clone(&left));
            tokio::task::spawn_local(async move {
                let validator = DefaultValidator::default();
                while let Some(rest) = left.get().checked_sub(1) {
                    left.set(rest);
                    let (pod, container) = (request.pod.clone(), request.container.clone());
                    let creation =
                        Creation::new(pod.unwrap_or_default(), container.unwrap_or_default());
                    let table = Participants {
                        subscribers: &seats,
                        registered: &seats,
                        builtin: &validator,
                        scope: RuleScope::none(),
                        injections: &[],
                    };
                    let merged = chain::create(&table, creation, &()).await.unwrap();
                    assert!(merged.adjust.env.len() >= seats.len());
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    (begun.elapsed(), spent().saturating_sub(cpu))
}

/// The processor time of this process so far.
fn spent() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
    let total = micros(usage.user_time()) + micros(usage.system_time());
    Duration::from_micros(u64::try_from(total).unwrap_or(0))
}
