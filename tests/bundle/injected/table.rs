// SPDX-License-Identifier: Apache-2.0
//! All combinations: each area that can be injected; set by the container or not, by a plugin before or
//! after; yielding or always set; enforced or in audit mode.

use std::sync::{Arc, Mutex};

use nri_plugin::{Adjustment, Device, Mount, Resources, api};
use serde_json::{Value, json};
use test_support::{Script, TestHost, fails, succeeds, wait_until};

use crate::rules::pod_container;

/// One area: how it is injected, set by others and read.
struct Area {
    name: &'static str,
    /// The lines of the section.
    lines: &'static str,
    /// NRI's field.
    field: &'static str,
    /// Whether a container can lack it.
    has_absence: bool,
    /// Sets a value in the document.
    own: fn(&mut Value),
    /// The adjustment of a plugin.
    theirs: fn() -> Adjustment,
    /// Reads the value from a document.
    read: fn(&Value) -> Value,
    /// The values of the container, the injection and the plugin.
    values: [Value; 3],
}

/// The value before the injection's turn, or after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Own,
    EarlierPlugin,
    LaterPlugin,
}

const STATES: [Before; 4] =
    [Before::Nothing, Before::Own, Before::EarlierPlugin, Before::LaterPlugin];

struct Case<'a> {
    area: &'a Area,
    before: Before,
    is_always: bool,
    is_audit: bool,
}

fn variable(document: &Value, name: &str) -> Value {
    let env = document["process"]["env"].as_array().into_iter().flatten();
    let mut values = env.filter_map(Value::as_str).filter_map(|entry| entry.split_once('='));
    values.find(|(key, _)| *key == name).map_or(Value::Null, |(_, value)| value.into())
}

fn entry(list: &Value, key: &str, name: &str, member: &str) -> Value {
    let mut found = list.as_array().into_iter().flatten();
    found.find(|entry| entry[key] == name).map_or(Value::Null, |entry| entry[member].clone())
}

fn push(list: &mut Value, entry: Value) {
    match list.as_array_mut() {
        Some(list) => list.push(entry),
        None => *list = json!([entry]),
    }
}

#[expect(clippy::too_many_lines, reason = "a table, a row for each area")]
fn areas() -> Vec<Area> {
    vec![
        Area {
            name: "env",
            lines: "env = { X = \"mine\" }",
            field: "Env[X]",
            has_absence: true,
            own: |document| push(&mut document["process"]["env"], "X=own".into()),
            theirs: || Adjustment::new().env("X", "theirs"),
            read: |document| variable(document, "X"),
            values: [json!("own"), json!("mine"), json!("theirs")],
        },
        Area {
            name: "mounts",
            lines: "mounts = [{ destination = \"/d/\", type = \"tmpfs\", source = \"mine\" }]",
            field: "Mounts[/d]",
            has_absence: true,
            own: |document| {
                let mount = json!({"destination": "/d", "type": "tmpfs", "source": "own"});
                push(&mut document["mounts"], mount);
            },
            theirs: || Adjustment::new().mount(Mount::of("tmpfs", "theirs", "/d")),
            read: |document| {
                let at = |place| entry(&document["mounts"], "destination", place, "source");
                if at("/d").is_null() { at("/d/") } else { at("/d") }
            },
            values: [json!("own"), json!("mine"), json!("theirs")],
        },
        Area {
            name: "devices",
            lines: "devices = [{ path = \"/dev/x\", type = \"c\", major = 1, minor = 5 }]",
            field: "Devices[/dev/x]",
            has_absence: true,
            own: |document| {
                let device = json!({"path": "/dev/x", "type": "c", "major": 1, "minor": 3});
                push(&mut document["linux"]["devices"], device);
            },
            theirs: || Adjustment::new().device(Device::character("/dev/x", 1, 7)),
            read: |document| entry(&document["linux"]["devices"], "path", "/dev/x", "minor"),
            values: [json!(3), json!(5), json!(7)],
        },
        Area {
            name: "cdi",
            lines: "cdi = [\"corp.test/gpu=0\"]",
            field: "CdiDevices[corp.test/gpu=0]",
            has_absence: false,
            own: |document| push(&mut document["process"]["env"], "GPU=own".into()),
            theirs: || Adjustment::new().cdi_device("corp.test/gpu=0"),
            read: |document| variable(document, "GPU"),
            values: [json!("own"), json!("cdi"), json!("cdi")],
        },
        Area {
            name: "rlimits",
            lines: "rlimits = { nofile = { soft = 20, hard = 200 } }",
            field: "Rlimits[RLIMIT_NOFILE]",
            has_absence: true,
            own: |document| {
                let limit = json!({"type": "RLIMIT_NOFILE", "soft": 10, "hard": 100});
                push(&mut document["process"]["rlimits"], limit);
            },
            theirs: || Adjustment::new().rlimit("RLIMIT_NOFILE", 30, 300),
            read: |document| {
                entry(&document["process"]["rlimits"], "type", "RLIMIT_NOFILE", "soft")
            },
            values: [json!(10), json!(20), json!(30)],
        },
        Area {
            name: "annotations",
            lines: "annotations = { \"corp/x\" = \"mine\" }",
            field: "Annotations[corp/x]",
            has_absence: true,
            own: |document| document["annotations"]["corp/x"] = "own".into(),
            theirs: || Adjustment::new().annotation("corp/x", "theirs"),
            read: |document| document["annotations"]["corp/x"].clone(),
            values: [json!("own"), json!("mine"), json!("theirs")],
        },
        Area {
            name: "sysctl",
            lines: "sysctl = { \"net.core.somaxconn\" = \"2\" }",
            field: "Sysctl[net.core.somaxconn]",
            has_absence: true,
            own: |document| document["linux"]["sysctl"]["net.core.somaxconn"] = "1".into(),
            theirs: || Adjustment::new().sysctl("net.core.somaxconn", "3"),
            read: |document| document["linux"]["sysctl"]["net.core.somaxconn"].clone(),
            values: [json!("1"), json!("2"), json!("3")],
        },
        Area {
            name: "hooks",
            lines: "hooks = { poststop = [{ path = \"/bin/mine\" }] }",
            field: "OciHooks",
            has_absence: false,
            own: |document| document["hooks"]["poststop"] = json!([{"path": "/bin/own"}]),
            theirs: || {
                let hook = api::Hook { path: "/bin/theirs".into(), ..Default::default() };
                Adjustment::new().hooks(api::Hooks { poststop: vec![hook], ..Default::default() })
            },
            read: |document| {
                let hooks = document["hooks"]["poststop"].as_array();
                hooks.map_or(Value::Null, |all| {
                    all.iter().map(|hook| hook["path"].clone()).collect()
                })
            },
            values: [json!(["/bin/own"]), json!(["/bin/mine"]), json!(["/bin/theirs"])],
        },
        Area {
            name: "oom_score_adj",
            lines: "oom_score_adj = 2",
            field: "OomScoreAdj",
            has_absence: true,
            own: |document| document["process"]["oomScoreAdj"] = 1.into(),
            theirs: || Adjustment::new().oom_score_adj(3),
            read: |document| document["process"]["oomScoreAdj"].clone(),
            values: [json!(1), json!(2), json!(3)],
        },
        Area {
            name: "resources",
            lines: "resources = { pids = { limit = 20 } }",
            field: "PidsLimit",
            has_absence: true,
            own: |document| document["linux"]["resources"]["pids"] = json!({"limit": 10}),
            theirs: || Adjustment::new().resources(Resources::new().pids_limit(30)),
            read: |document| document["linux"]["resources"]["pids"]["limit"].clone(),
            values: [json!(10), json!(20), json!(30)],
        },
        Area {
            name: "unified",
            lines: "resources = { unified = { \"memory.high\" = \"2000000\" } }",
            field: "CgroupsUnified[memory.high]",
            has_absence: true,
            own: |document| {
                document["linux"]["resources"]["unified"] = json!({"memory.high": "1000000"});
            },
            theirs: || {
                Adjustment::new().resources(Resources::new().unified("memory.high", "3000000"))
            },
            read: |document| document["linux"]["resources"]["unified"]["memory.high"].clone(),
            values: [json!("1000000"), json!("2000000"), json!("3000000")],
        },
        Area {
            name: "seccomp",
            lines: "seccomp = \"DIR/seccomp.json\"",
            field: "SeccompPolicy",
            has_absence: false,
            own: |document| {
                document["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_LOG"});
            },
            theirs: || {
                Adjustment::new().edit(|adjust| {
                    let policy =
                        adjust.linux.mut_or_insert_default().seccomp_policy.mut_or_insert_default();
                    policy.default_action = "SCMP_ACT_KILL".to_owned();
                })
            },
            read: |document| document["linux"]["seccomp"]["defaultAction"].clone(),
            values: [json!("SCMP_ACT_LOG"), json!("SCMP_ACT_ALLOW"), json!("SCMP_ACT_KILL")],
        },
    ]
}

impl Case<'_> {
    fn section(&self, at: usize) -> String {
        let when = if self.is_always { "always" } else { "absent" };
        let mode = if self.is_audit { "audit" } else { "enforce" };
        format!(
            "[[inject]]\nname = \"case-{at}\"\nnamespaces = [\"n-{at}\"]\nindex = \"50\"\n\
             when = \"{when}\"\nmode = \"{mode}\"\n{}\n",
            self.area.lines
        )
    }

    /// Whether the create is refused: two sources that set the same value conflict, except for
    /// hooks, which are added up.
    fn is_refused(&self) -> bool {
        let by_plugin = matches!(self.before, Before::EarlierPlugin | Before::LaterPlugin);
        by_plugin && self.is_always && !self.is_audit && self.area.name != "hooks"
    }

    fn wanted(&self) -> Value {
        let [own, mine, theirs] = self.area.values.clone();
        let is_injected = !self.is_audit;
        let both = |a: &Value, b: &Value| -> Value {
            [a, b].into_iter().flat_map(|list| list.as_array().unwrap().clone()).collect()
        };
        match self.before {
            Before::Nothing => {
                if is_injected {
                    mine
                } else {
                    Value::Null
                }
            }
            Before::Own if is_injected && self.area.name == "hooks" => both(&own, &mine),
            Before::Own => {
                if is_injected && self.is_always {
                    mine
                } else {
                    own
                }
            }
            Before::EarlierPlugin if is_injected && self.area.name == "hooks" => {
                both(&theirs, &mine)
            }
            Before::LaterPlugin if is_injected && self.area.name == "hooks" => both(&mine, &theirs),
            Before::EarlierPlugin | Before::LaterPlugin => theirs,
        }
    }

    /// The owner of the value that the injection yielded to, as `explain` shows it; `None` if it
    /// did not yield.
    fn gave_way(&self) -> Option<Value> {
        if self.is_audit || self.is_always {
            return None;
        }
        match self.before {
            Before::Nothing => None,
            Before::Own => Some(Value::Null),
            Before::EarlierPlugin => Some(json!("10-before")),
            Before::LaterPlugin => Some(json!("90-after")),
        }
    }

    fn would_inject(&self) -> bool {
        self.is_audit && (self.is_always || self.before == Before::Nothing)
    }

    fn check(
        &self,
        host: &TestHost,
        at: usize,
        plugins: &[Arc<Mutex<api::ContainerAdjustment>>; 2],
    ) {
        let Self { area, before, is_always, is_audit } = self;
        let label = format!("{} {before:?} always={is_always} audit={is_audit}", area.name);
        let id = format!("c{at}");
        let bundle = pod_container(host, &format!("n-{at}"), &id);
        let file = format!("{bundle}/config.json");
        let mut document: Value = serde_json::from_str(&host.read(&file)).unwrap();
        document["linux"]["namespaces"] = json!([{"type": "network"}, {"type": "ipc"}]);
        if *before == Before::Own {
            (area.own)(&mut document);
        }
        host.write(&file, &document.to_string());
        let answers = [Before::EarlierPlugin, Before::LaterPlugin];
        for (plugin, state) in plugins.iter().zip(answers) {
            let answer = if *before == state { (area.theirs)() } else { Adjustment::new() };
            *plugin.lock().unwrap() = Script::from(answer).adjust;
        }
        let created = host.create_from(&bundle, &id);
        let owner = format!("inject:case-{at}");
        if self.is_refused() {
            return fails(&created, &["both tried to set", &owner]);
        }
        assert!(created.status.success(), "{label}: {}", String::from_utf8_lossy(&created.stderr));
        let seen = serde_json::from_str(&host.read(&format!("fake/seen-{id}.json"))).unwrap();
        assert_eq!((area.read)(&seen), self.wanted(), "{label}");
        let explained = host.admin(&["explain", &id]);
        let gave_way = explained["gave_way"].as_array().unwrap();
        let is_it = |row: &&Value| row["plugin"] == *owner && row["field"] == area.field;
        let to = gave_way.iter().find(is_it).map(|row| row["to"].clone());
        assert_eq!(to, self.gave_way(), "{label}: {explained}");
        let would = explained["would_inject"].as_array().unwrap();
        assert_eq!(
            would.iter().any(|row| is_it(&row)),
            self.would_inject(),
            "{label}: {explained}"
        );
        let owners = explained["owners"][area.field].as_str().unwrap_or_default();
        let is_owner = !is_audit && self.gave_way().is_none();
        assert_eq!(owners.split(',').any(|one| one == owner), is_owner, "{label}: {explained}");
        assert_eq!(explained["skipped"], json!([]), "{label}");
        succeeds(&host.verb(&["delete", "--force", &id]));
    }
}

#[test]
fn each_injectable_value_in_each_state_matches_the_table() {
    let areas = areas();
    let mut cases = Vec::new();
    for area in &areas {
        for before in STATES {
            for (is_always, is_audit) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                cases.push(Case { area, before, is_always, is_audit });
            }
        }
    }
    assert_eq!(cases.len(), 192);
    let mut host = TestHost::default();
    let dir = host.path("").display().to_string();
    let dir = dir.trim_end_matches('/');
    // In an area that every document sets, an injection that yields is a mistake.
    let (cases, mistakes): (Vec<Case<'_>>, Vec<Case<'_>>) =
        cases.into_iter().partition(|case| case.area.has_absence || case.is_always);
    for case in &mistakes {
        let problems = nri_runc::testing::config::problems(&case.section(0).replace("DIR", "/x"));
        assert!(problems.len() == 1 && problems[0].contains("it has no absence"), "{problems:?}");
    }
    let sections = cases.iter().enumerate().map(|(at, case)| case.section(at));
    let sections: String = sections.collect();
    std::fs::create_dir_all(host.path("node/sys/fs/cgroup")).unwrap();
    std::fs::create_dir_all(host.path("cdi")).unwrap();
    host.write("node/sys/fs/cgroup/cgroup.controllers", "cpu cpuset io memory pids\n");
    host.write("seccomp.json", "{\"defaultAction\": \"SCMP_ACT_ALLOW\"}");
    let edits = json!({"containerEdits": {"env": ["GPU=cdi"]}, "name": "0"});
    let spec = json!({"cdiVersion": "0.6.0", "kind": "corp.test/gpu", "devices": [edits]});
    host.write("cdi/corp.json", &spec.to_string());
    let more = format!(
        "[cdi]\nspec_dirs = [\"{dir}/cdi\"]\n[debug]\nnode_root = \"{dir}/node\"\n{}",
        sections.replace("DIR", dir)
    );
    host.configure(&host.path("fake/runc"), &more);
    host.start_daemon();
    let plugins: [Arc<Mutex<api::ContainerAdjustment>>; 2] = Default::default();
    let script = |at: usize| Script { next: Some(Arc::clone(&plugins[at])), ..Script::default() };
    let _before = host.plugin("10", "before", script(0));
    let _after = host.plugin("90", "after", script(1));
    wait_until("both take part", || host.admin(&["plugins"]).as_array().map(Vec::len) == Some(2));
    for (at, case) in cases.iter().enumerate() {
        case.check(&host, at, &plugins);
    }
}
