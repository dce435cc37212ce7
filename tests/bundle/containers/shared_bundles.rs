// SPDX-License-Identifier: Apache-2.0
//! Containers that share something: a bundle at the same time, or an ID in two runtime roots; and
//! IDs that no runtime accepts.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nri_plugin::{Adjustment, Device, Mount, Update};
use nri_runc::plugin::api;
use test_support::{BUNDLE, BUSY, Script, TestHost, wait_until};

use crate::{sets, started, succeeds};

fn names_in(host: &TestHost, folder: &str) -> usize {
    std::fs::read_dir(host.path(folder)).unwrap().count()
}

fn count_received(requests: &Mutex<Vec<String>>, event: &str) -> usize {
    requests.lock().unwrap().iter().filter(|received| *received == event).count()
}

#[test]
fn concurrent_creates_in_one_bundle_run_their_own_documents() {
    let host = started("");
    let one = host.plugin("10", "one", Script { only: Some("c1"), ..sets("ONE", "1") });
    let _two = host.plugin("20", "two", Script { only: Some("c2"), ..sets("TWO", "2") });
    host.write("fake/slow", "");
    let create = |id| host.spawn(&["create", "--bundle", "BUNDLE", id]);
    let mut first = create("c1");
    wait_until("the first is asked about", || count_received(&one, "CreateContainer c1") == 1);
    let mut others = [create("c2"), create("c3")];
    assert!(first.wait().unwrap().success());
    others.iter_mut().for_each(|other| assert!(other.wait().unwrap().success()));
    let seen = |id: &str| host.read(&format!("fake/seen-{id}.json"));
    assert!(seen("c1").contains("ONE=1") && !seen("c1").contains("TWO"), "{}", seen("c1"));
    assert!(seen("c2").contains("TWO=2") && !seen("c2").contains("ONE"), "{}", seen("c2"));
    assert_eq!(seen("c3"), BUNDLE);
    for id in ["c2", "c1", "c3"] {
        succeeds(&host.verb(&["delete", "--force", id]));
    }
    wait_until("they are gone", || host.admin(&["pods"]) == serde_json::json!([]));
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
    assert_eq!(names_in(&host, "bundle"), 2);
}

#[test]
fn plugins_receive_one_of_two_concurrent_creates_of_an_id() {
    let host = started("");
    let one = host.plugin("10", "one", sets("ONE", "1"));
    host.write("fake/slow", "");
    let create = || host.spawn(&["create", "--bundle", "BUNDLE", "c1"]);
    let mut first = create();
    wait_until("it is asked about", || count_received(&one, "CreateContainer c1") == 1);
    let mut second = create();
    assert!(first.wait().unwrap().success());
    second.wait().unwrap();
    assert_eq!(count_received(&one, "CreateContainer c1"), 1);
}

#[test]
fn one_id_below_two_roots_is_two_containers_to_every_plugin() {
    let host = started("");
    let requests = host.plugin("10", "witness", Script::default());
    let other = host.path("other").display().to_string();
    let bundle = host.path("bundle").display().to_string();
    let below_other = |words: &[&str]| host.call(&[&["--root", &other][..], words].concat());
    succeeds(&host.create("c1"));
    succeeds(&below_other(&["create", "--bundle", &bundle, "c1"]));
    succeeds(&host.verb(&["delete", "--force", "c1"]));
    wait_until("the first is gone", || count_received(&requests, "RemoveContainer c1") == 1);
    succeeds(&below_other(&["start", "c1"]));
    succeeds(&below_other(&["delete", "--force", "c1"]));
    wait_until("the second is gone", || count_received(&requests, "RemoveContainer c1") == 2);
    assert_eq!(count_received(&requests, "CreateContainer c1"), 2);
    assert_eq!(count_received(&requests, "StopContainer c1"), 2);
}

fn pids(id: &str) -> api::ContainerUpdate {
    Update::of(id).pids_limit(7).into()
}

#[test]
fn an_update_of_an_ambiguous_id_is_refused_with_both_roots() {
    let host = started("[plugin.both]\nevict = \"allow\"");
    let evict = api::ContainerEviction { container_id: "c1".to_owned(), ..Default::default() };
    let script = Script {
        only: Some("c2"),
        update: vec![pids("c1")],
        updates: vec![pids("c1")],
        evicts: vec![evict],
        ..Script::default()
    };
    let _both = host.plugin("10", "both", script);
    let other = host.path("other").display().to_string();
    let bundle = host.path("bundle").display().to_string();
    succeeds(&host.create("c1"));
    succeeds(&host.call(&["--root", &other, "create", "--bundle", &bundle, "c1"]));
    succeeds(&host.create("c2"));
    let root = host.path("root").display().to_string();
    let ambiguous =
        format!("several containers have this ID, in the runtime roots {other} and {root}");
    host.logs(&["c1: 10-both", &ambiguous], 1);
    // In a request about one of these containers the ID means that container.
    let update = host.call_with(
        &["--root", &other, "update", "--resources", "-", "c1"],
        r#"{"cpu": {"shares": 77}}"#,
    );
    succeeds(&update);
    assert!(host.read("fake/update.json").contains("77"), "{}", host.read("fake/update.json"));
    assert_eq!(host.logged(&["eviction", &ambiguous]), 0, "it is the subject's");
    succeeds(&host.call(&["--root", &other, "delete", "--force", "c1"]));
}

#[test]
fn ids_that_every_runtime_refuses_reach_it_unchanged() {
    let host = started("");
    let requests = host.plugin("10", "env", sets("HELLO", "there"));
    let odd = ["", ".", "..", "a/b", "./x", "a b", "a:b"];
    for id in odd {
        drop(host.verb(&[
            "create",
            "--bundle",
            &host.path("bundle").display().to_string(),
            "--",
            id,
        ]));
        assert_eq!(host.read("bundle/config.json"), BUNDLE, "{id:?}");
        drop(host.verb(&["delete", "--force", "--", id]));
    }
    assert_eq!(host.admin(&["pods"]), serde_json::json!([]), "no phantom is known");
    assert_eq!(*requests.lock().unwrap(), Vec::<String>::new());
    succeeds(&host.create("usual+id_1.2-3"));
    assert!(host.read("fake/seen.json").contains("HELLO=there"));
}

/// A plugin that sets thousands of mounts and devices of the container `huge`.
fn sets_thousands() -> Script {
    let script = (0..5000).fold(Adjustment::new(), |adjustment, i| {
        let mount = Mount::bind(&format!("/s{i}/{}", "x".repeat(200)), &format!("/d{i}"));
        let device = Device::character(&format!("/dev/d{i}"), 10, i);
        adjustment.mount(mount.read_only()).device(device)
    });
    Script { only: Some("huge"), ..script.into() }
}

/// Creates the container `huge`, and small ones until it is created. Returns the time that it took,
/// and for each small one the time and whether the plugin was asked.
fn create_beside_a_huge_one(
    host: &TestHost,
    requests: &Mutex<Vec<String>>,
) -> (Duration, Vec<(Duration, bool)>) {
    std::fs::create_dir_all(host.path("small")).unwrap();
    host.write("small/config.json", BUNDLE);
    let mut huge = host.spawn(&["create", "--bundle", "BUNDLE", "huge"]);
    wait_until("it is asked about", || count_received(requests, "CreateContainer huge") == 1);
    let start = Instant::now();
    let mut waits = Vec::new();
    loop {
        let (id, asked) = (format!("c{}", waits.len()), Instant::now());
        succeeds(&host.create_from("small", &id));
        waits.push((
            asked.elapsed(),
            count_received(requests, &format!("CreateContainer {id}")) == 1,
        ));
        if let Some(ended) = huge.try_wait().unwrap() {
            assert!(ended.success());
            return (start.elapsed(), waits);
        }
        assert!(start.elapsed() < Duration::from_secs(120), "the huge one does not end");
    }
}

/// Writing the records at the end may delay others for a while; editing the document is most of the
/// work, and must delay no other request.
#[test]
fn other_requests_are_served_while_a_huge_response_is_applied() {
    let host = started(BUSY);
    let requests = host.plugin("10", "huge", sets_thousands());
    let (whole, waits) = create_beside_a_huge_one(&host, &requests);
    let at_once = waits.iter().filter(|(wait, is_asked)| *is_asked && *wait < whole / 6);
    let at_once: Duration = at_once.map(|(wait, _)| *wait).sum();
    assert!(at_once > whole / 3, "others were held up most of {whole:?}: {waits:?}");
    let seen = host.read("fake/seen-huge.json");
    assert!(seen.contains("/dev/d4999"), "it went past the plugins");
    // On a shared processor the final writes may take longer than a wrapper waits, so one small
    // container may bypass the plugin.
    let bypassed = waits.iter().filter(|(_, is_asked)| !is_asked).count();
    assert!(bypassed <= 1, "{bypassed} of {} were created without the plugin", waits.len());
}

#[test]
fn removing_a_container_restores_no_document_of_its_successor() {
    let host = started("");
    // The first container is still being settled when the next one is created from an identical
    // document.
    let slow = |event: &str, _: &dyn protobuf::MessageDyn| {
        if event == "RemoveContainer" {
            std::thread::sleep(Duration::from_millis(60));
        }
    };
    let _slow =
        host.plugin("10", "slow", Script { on_request: Some(Arc::new(slow)), ..sets("A1", "1") });
    for number in 0..30 {
        let (first, next) = (format!("a{number}"), format!("b{number}"));
        succeeds(&host.create(&first));
        succeeds(&host.verb(&["delete", "--force", &first]));
        succeeds(&host.create(&next));
        assert!(host.read(&format!("fake/seen-{next}.json")).contains("A1=1"), "{next}");
        succeeds(&host.verb(&["delete", "--force", &next]));
    }
    wait_until("they are gone", || host.admin(&["pods"]) == serde_json::json!([]));
    assert_eq!(host.read("bundle/config.json"), BUNDLE);
}

/// crun keeps its state in the caller's `XDG_RUNTIME_DIR`, root's too; the daemon has another environment.
#[test]
fn the_daemon_finds_a_runtime_root_set_by_the_environment() {
    let mut host = TestHost::default();
    let fake = host.read("fake/runc");
    host.put_program("fake/crun", &fake.replace("=/run/runc", "=${XDG_RUNTIME_DIR:-/run}/crun"));
    let policy = "[plugin.space]\nevict = \"allow\"\n[eviction]\nsignal = \"KILL\"";
    host.configure(&host.path("fake/crun"), policy);
    host.start_daemon();
    let evict = api::ContainerEviction { container_id: "c1".to_owned(), ..Default::default() };
    let requests = host.plugin("10", "space", Script { evicts: vec![evict], ..Script::default() });
    let bundle = host.path("bundle").display().to_string();
    let xdg = ["env".to_owned(), format!("XDG_RUNTIME_DIR={}", host.path("xdg").display())];
    let call = |words: &[&str]| succeeds(&host.call_by(&xdg, words, r#"{"cpu": {"shares": 77}}"#));
    for id in ["c1", "c2"] {
        call(&["create", "--bundle", &bundle, id]);
        call(&["start", id]);
    }
    call(&["update", "--resources", "-", "c2"]);
    let kill = format!("--root\n{}\nkill\nc1\nKILL\n", host.path("xdg/crun").display());
    wait_until("the runtime kills it below that root", || host.read("fake/argv").contains(&kill));
    wait_until("it has ended", || count_received(&requests, "StopContainer c1") == 1);
    for id in ["c1", "c2"] {
        call(&["delete", "--force", id]);
    }
}
