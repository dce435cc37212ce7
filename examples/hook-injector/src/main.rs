// SPDX-License-Identifier: Apache-2.0
//! A sample NRI plugin: OCI hooks from a folder of hook files, as Podman and CRI-O read them, for
//! every engine.
//!
//! ```text
//! cargo run -p hook-injector                                   # by hand, or installed:
//! cp target/debug/hook-injector /opt/nri/plugins/10-hook-injector
//! echo '{"folders": ["/etc/containers/oci/hooks.d"]}' >/etc/nri/conf.d/10-hook-injector.conf
//! ```
//!
//! Without a configuration it reads `/usr/share/containers/oci/hooks.d` and then
//! `/etc/containers/oci/hooks.d`, where a file replaces one of the same name. A file defines the
//! hook, its stages and its containers (oci-hooks(5), version 1.0.0):
//!
//! ```json
//! {"version": "1.0.0", "hook": {"path": "/usr/libexec/audit", "args": ["audit", "start"]},
//!  "when": {"annotations": {"^example\\.org/audit$": "^yes$"}}, "stages": ["createRuntime"]}
//! ```
//!
//! Every condition in the file must hold: `always`; `annotations`, each pattern of a key with that
//! of its value, by an annotation of the container or of its pod; `commands`, of which one matches
//! the program; `hasBindMounts`. The plugin reads the files when it is configured, and exits if one
//! is invalid: a hook that an operator relies on must not be missing silently.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nri_plugin::{Context, Event, Handler, api, async_trait};
use regex::Regex;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    #[serde(default = "usual_folders")]
    folders: Vec<PathBuf>,
}

fn usual_folders() -> Vec<PathBuf> {
    ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"].map(PathBuf::from).to_vec()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HookFile {
    version: String,
    hook: Hook,
    when: When,
    stages: Vec<Stage>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hook {
    path: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<String>,
    timeout: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct When {
    always: Option<bool>,
    annotations: BTreeMap<String, String>,
    commands: Vec<String>,
    has_bind_mounts: Option<bool>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Stage {
    Prestart,
    CreateRuntime,
    CreateContainer,
    StartContainer,
    Poststart,
    Poststop,
}

/// A file with its patterns compiled.
struct Rule {
    hook: api::Hook,
    stages: Vec<Stage>,
    always: Option<bool>,
    annotations: Vec<(Regex, Regex)>,
    commands: Vec<Regex>,
    has_bind_mounts: Option<bool>,
}

impl Rule {
    fn read(path: &Path) -> nri_plugin::Result<Self> {
        let said = |error: String| format!("{}: {error}", path.display());
        let text = std::fs::read(path).map_err(|error| said(error.to_string()))?;
        let file = serde_json::from_slice(&text).map_err(|error| said(error.to_string()))?;
        Self::of(file).map_err(|error| said(error.to_string()).into())
    }

    fn of(file: HookFile) -> nri_plugin::Result<Self> {
        let HookFile { version, hook, when, stages } = file;
        if version != "1.0.0" {
            return Err(format!("its version is {version:?}, not \"1.0.0\"").into());
        }
        if !hook.path.starts_with('/') {
            return Err(format!("the hook's path {:?} is not absolute", hook.path).into());
        }
        if stages.is_empty() {
            return Err("it names no stage".into());
        }
        let patterns = when.annotations.iter();
        let patterns = patterns.map(|(key, value)| Ok((Regex::new(key)?, Regex::new(value)?)));
        let commands = when.commands.iter().map(|pattern| Ok(Regex::new(pattern)?));
        let Hook { path, args, env, timeout } = hook;
        Ok(Self {
            hook: api::Hook {
                path,
                args,
                env,
                timeout: timeout.map(Into::into).into(),
                ..Default::default()
            },
            stages,
            always: when.always,
            annotations: patterns.collect::<nri_plugin::Result<_>>()?,
            commands: commands.collect::<nri_plugin::Result<_>>()?,
            has_bind_mounts: when.has_bind_mounts,
        })
    }

    /// Whether all its conditions hold, and it has at least one.
    fn matches(&self, pod: &api::PodSandbox, container: &api::Container) -> bool {
        let has = |(key, value): &(Regex, Regex)| {
            let all = container.annotations.iter().chain(&pod.annotations);
            all.into_iter().any(|(k, v)| key.is_match(k) && value.is_match(v))
        };
        let program = container.args.first().map(String::as_str).unwrap_or_default();
        let binds = |mount: &api::Mount| {
            let by_option =
                ["bind", "rbind"].iter().any(|word| mount.options.iter().any(|o| o == word));
            mount.type_ == "bind" || by_option
        };
        let conditions = [
            self.always,
            (!self.annotations.is_empty()).then(|| self.annotations.iter().all(has)),
            (!self.commands.is_empty())
                .then(|| self.commands.iter().any(|pattern| pattern.is_match(program))),
            self.has_bind_mounts.map(|wanted| container.mounts.iter().any(binds) == wanted),
        ];
        let mut given = conditions.iter().flatten().peekable();
        given.peek().is_some() && given.all(|holds| *holds)
    }

    fn add_to(&self, hooks: &mut api::Hooks) {
        for stage in &self.stages {
            let list = match stage {
                Stage::Prestart => &mut hooks.prestart,
                Stage::CreateRuntime => &mut hooks.create_runtime,
                Stage::CreateContainer => &mut hooks.create_container,
                Stage::StartContainer => &mut hooks.start_container,
                Stage::Poststart => &mut hooks.poststart,
                Stage::Poststop => &mut hooks.poststop,
            };
            list.push(self.hook.clone());
        }
    }
}

/// The rules of all folders, in the order of the files' names.
fn read_all(folders: &[PathBuf]) -> nri_plugin::Result<Vec<Rule>> {
    let mut files = BTreeMap::new();
    for folder in folders {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("{}: {error}", folder.display()).into()),
        };
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                files.insert(path.file_name().map(ToOwned::to_owned), path);
            }
        }
    }
    files.values().map(|path| Rule::read(path)).collect()
}

#[derive(Default)]
struct HookInjector {
    rules: Mutex<Vec<Rule>>,
}

#[async_trait]
impl Handler for HookInjector {
    fn events(&self) -> &[Event] {
        &[Event::CreateContainer]
    }

    async fn configure(
        &self,
        _: &Context,
        request: api::ConfigureRequest,
    ) -> nri_plugin::Result<()> {
        let text = Some(request.config).filter(|text| !text.trim().is_empty());
        let configuration: Configuration = serde_json::from_str(text.as_deref().unwrap_or("{}"))
            .map_err(|error| format!("its configuration: {error}"))?;
        let rules = read_all(&configuration.folders)?;
        if let Ok(mut slot) = self.rules.lock() {
            *slot = rules;
        }
        Ok(())
    }

    async fn create_container(
        &self,
        _: &Context,
        request: api::CreateContainerRequest,
    ) -> nri_plugin::Result<api::CreateContainerResponse> {
        let mut hooks = api::Hooks::default();
        if let Ok(rules) = self.rules.lock() {
            let matching =
                rules.iter().filter(|rule| rule.matches(&request.pod, &request.container));
            matching.for_each(|rule| rule.add_to(&mut hooks));
        }
        if hooks == api::Hooks::default() {
            return Ok(api::CreateContainerResponse::default());
        }
        let adjust = api::ContainerAdjustment { hooks: Some(hooks).into(), ..Default::default() };
        Ok(adjust.into())
    }
}

fn main() -> std::process::ExitCode {
    nri_plugin::main("10-hook-injector", HookInjector::default())
}
