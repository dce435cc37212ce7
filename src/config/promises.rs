// SPDX-License-Identifier: Apache-2.0
//! `[[require]]`, called a promise: containers of certain pods, or with certain devices, resources,
//! annotations or images, are not created without the named plugin (decisions D52, D61). The table
//! has each key with its default, meaning and parser; `docs/config.md` is generated from it.
//!
//! Promises protect, so after a start with a mistake in one, creates fail until the file is fixed.
//! Nothing here reads a file or applies a promise.

use std::time::Duration;

use toml_edit::Value;

use super::duration::parse as parse_duration;
use super::rules::{INJECTIONS, RuleMode, read_mode};
use super::selectors::{Mistake, PodSelectors, excluded, read_name, read_patterns, read_text};
use super::settings::Config;
use super::tables::{ListKey, ListedSection, list_keys};
use crate::glob;

/// One `[[require]]` as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromiseSection {
    /// The promise's name, else `FILE:LINE` of its header.
    pub name: String,
    /// The pods that the promise selects.
    pub pods: PodSelectors,
    /// Patterns of DRA drivers.
    pub claims: Vec<String>,
    /// Patterns of CDI devices.
    pub cdi: Vec<String>,
    /// Patterns of paths: of device nodes, and of sources and destinations of mounts.
    pub devices: Vec<String>,
    /// Patterns of extended resources.
    pub resources: Vec<String>,
    /// Patterns of annotations, each of a key or of `KEY=VALUE`.
    pub annotations: Vec<String>,
    /// Patterns of images.
    pub images: Vec<String>,
    /// The required plugin, as `name` or `NN-name`.
    pub plugin: String,
    /// Time that a container waits for the plugin; `None` means the value of `[plugin.NAME] wait`.
    pub wait: Option<Duration>,
    /// Whether the promise is enforced.
    pub mode: RuleMode,
}

impl PromiseSection {
    /// Returns the lists by which the promise selects containers, with their keys: one of the lists
    /// must match, and an empty list matches nothing.
    pub(crate) fn of_devices(&self) -> [(&'static str, &[String]); 6] {
        [
            ("claims", &self.claims),
            ("cdi", &self.cdi),
            ("devices", &self.devices),
            ("resources", &self.resources),
            ("annotations", &self.annotations),
            ("images", &self.images),
        ]
    }

    /// Whether a list of [`of_devices`](Self::of_devices) has entries; otherwise the promise applies to
    /// all containers of its pods.
    pub(crate) fn selects_devices(&self) -> bool {
        self.of_devices().iter().any(|(_, list)| !list.is_empty())
    }

    /// Whether the promise selects containers by kubelet's data about them.
    pub(crate) fn needs_kubelet(&self) -> bool {
        !self.claims.is_empty() || !self.resources.is_empty()
    }

    /// Whether the promise refuses containers.
    pub(crate) fn refuses(&self) -> bool {
        self.mode == RuleMode::Enforce
    }
}

impl ListedSection for PromiseSection {
    const LIST: &'static str = "require";
    const KEYS: &'static [ListKey<Self>] = PROMISE_KEYS;

    fn list(config: &mut Config) -> &mut Vec<Self> {
        &mut config.promises
    }

    fn head(&mut self) -> (&mut String, &mut PodSelectors) {
        (&mut self.name, &mut self.pods)
    }

    fn check(&self) -> Result<(), Mistake> {
        if self.plugin.is_empty() {
            return Err("the promise has no plugin".into());
        }
        if !self.selects_devices() && self.pods == PodSelectors::default() {
            let hint =
                "for a plugin that every container needs, set required = true in [plugin.NAME]";
            return Err(format!("the promise selects nothing; {hint}").into());
        }
        Ok(())
    }
}

list_keys! {
    PROMISE_KEYS: PromiseSection;
    "name" = "", "Name of the promise in messages, `explain`, the audit log and metrics. It must be unique. Without it: `FILE:LINE`.", |p, v| p.name = read_name(v)?;
    "namespaces" = "[]", "Pods in one of these namespaces. `\"!NAME\"` excludes. Empty = any.", |p, v| p.pods.set("namespaces", v)?;
    "labels" = "[]", "Pods that have all of these labels, as in a [rule](#keys-of-a-rule). Pod authors write labels, and can omit one.", |p, v| p.pods.set("labels", v)?;
    "engines" = "[]", "Pods of one of these engines, as in a rule. Empty = any.", |p, v| p.pods.set("engines", v)?;
    "handlers" = "[]", "Pods with one of these runtime handlers; the default handler is `\"\"`. Empty = any.", |p, v| p.pods.set("handlers", v)?;
    "claims" = "[]", "Containers with a claim that one of these DRA drivers serves, as kubelet reports it. The pod is refused as a whole.", |p, v| p.claims = read_items(v, "the name of a DRA driver", |item| !item.contains(['/', '=']))?;
    "cdi" = "[]", "Containers with one of these CDI devices.", |p, v| p.cdi = read_items(v, "VENDOR/CLASS=NAME", is_cdi)?;
    "devices" = "[]", "Containers with a device node at one of these paths, or a mount with one as its source or destination. A node of the host also matches by its device number.", |p, v| p.devices = read_items(v, "an absolute path without //, . and ..", is_clean_path)?;
    "resources" = "[]", "Containers with one of these extended resources (`vendor.com/gpu`), as kubelet reports them. The pod is refused as a whole.", |p, v| p.resources = read_items(v, "DOMAIN/NAME", |item| item.contains('/'))?;
    "annotations" = "[]", "Pods and containers with one of these annotations: `\"KEY\"`, or `\"KEY=VALUE\"`.", |p, v| p.annotations = read_items(v, "KEY or KEY=VALUE", |item| !item.starts_with('='))?;
    "images" = "[]", "Containers of one of these images, by the engine's name for it.", |p, v| p.images = read_items(v, "the name of an image", |_| true)?;
    "plugin" = "", "Plugin (`name` or `NN-name`) without which these containers are not created. Mandatory.", |p, v| p.plugin = read_plugin(v)?;
    "wait" = "", "How long a pod or container waits for the plugin before it is refused. Without it: `plugin.NAME.wait`.", |p, v| p.wait = Some(read_wait(v)?);
    "mode" = "\"enforce\"", "`enforce`: refuse containers without the plugin. `audit`: create and log them.", |p, v| p.mode = read_mode(v)?;
}

/// Parses patterns of names; `is_name` checks an entry without wildcards.
fn read_items(
    value: &Value,
    form: &str,
    is_name: fn(&str) -> bool,
) -> Result<Vec<String>, Mistake> {
    let patterns = read_patterns(value)?;
    if patterns.is_empty() {
        return Err("is empty: leave the key out".into());
    }
    for entry in &patterns {
        let pattern = excluded(entry).unwrap_or(entry);
        if pattern.is_empty() || !glob::is_pattern(pattern) && !is_name(pattern) {
            return Err(format!("{pattern:?} can match nothing: expected {form}").into());
        }
    }
    Ok(patterns)
}

fn is_cdi(name: &str) -> bool {
    let parts =
        name.split_once('/').and_then(|(vendor, rest)| Some((vendor, rest.split_once('=')?)));
    parts.is_some_and(|(vendor, (class, device))| {
        [vendor, class, device].iter().all(|part| !part.is_empty())
    })
}

fn is_clean_path(path: &str) -> bool {
    let parts = path.strip_prefix('/').map(|rest| rest.split('/'));
    parts.is_some_and(|mut parts| parts.all(|part| !matches!(part, "" | "." | "..")))
}

fn read_plugin(value: &Value) -> Result<String, Mistake> {
    let name = read_name(value)?;
    if name.starts_with(INJECTIONS) || name.contains('/') || glob::is_pattern(&name) {
        return Err(format!("{name:?} is not the name of a plugin, such as foo or 10-foo").into());
    }
    Ok(name)
}

fn read_wait(value: &Value) -> Result<Duration, Mistake> {
    parse_duration(read_text(value)?).ok_or_else(|| "expected a duration such as \"2s\"".into())
}

/// Returns the table as `docs/config.md` shows it.
pub(super) fn markdown() -> String {
    PromiseSection::markdown(
        "## Keys of a promise\n\nPromises are written as `[[require]]`, any number of them; \
         [Promises to devices](promises.md) explains them. A name in a list may have `*`, `?` and `[a-z]`. \
         Of `claims`, `cdi`, `devices`, `resources`, `annotations` and `images` one is enough.",
    )
}

#[cfg(test)]
mod tests {
    use super::super::settings::{Consequence, Problem};
    use super::*;

    fn read(text: &str) -> (Vec<PromiseSection>, Vec<String>) {
        let (config, problems) = Config::read(text);
        let is_refused = |problem: &Problem| problem.consequence == Consequence::RefusesCreates;
        assert!(problems.iter().all(is_refused), "{problems:?}");
        (config.promises, problems.into_iter().map(|problem| problem.text).collect())
    }

    #[test]
    fn every_key_of_a_promise_is_read_and_promises_keep_their_order() {
        let (promises, problems) = read(
            "[[require]]\nname = \"gpu\"\nnamespaces = [\"ml-*\"]\nlabels = { app = \"a\" }\n\
             engines = [\"docker\"]\nhandlers = [\"\"]\nclaims = [\"dra.net\"]\n\
             cdi = [\"nvidia.com/gpu=0\", \"!*=none\"]\ndevices = [\"/dev/nvidia*\"]\n\
             resources = [\"nvidia.com/gpu\"]\nannotations = [\"a\", \"b=*\"]\nimages = [\"x*\"]\n\
             plugin = \"10-gpu\"\nwait = \"5s\"\nmode = \"audit\"\n\
             [[require]]\nhandlers = [\"kata\"]\nplugin = \"kata\"\n",
        );
        assert_eq!(problems, [""; 0]);
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let first = PromiseSection {
            name: "gpu".to_owned(),
            pods: PodSelectors {
                namespaces: texts(&["ml-*"]),
                labels: vec![("app".to_owned(), "a".to_owned())],
                engines: texts(&["docker"]),
                handlers: texts(&[""]),
                ..PodSelectors::default()
            },
            claims: texts(&["dra.net"]),
            cdi: texts(&["nvidia.com/gpu=0", "!*=none"]),
            devices: texts(&["/dev/nvidia*"]),
            resources: texts(&["nvidia.com/gpu"]),
            annotations: texts(&["a", "b=*"]),
            images: texts(&["x*"]),
            plugin: "10-gpu".to_owned(),
            wait: Some(Duration::from_secs(5)),
            mode: RuleMode::Audit,
        };
        let second = PromiseSection {
            name: "f:16".to_owned(),
            pods: PodSelectors { handlers: texts(&["kata"]), ..PodSelectors::default() },
            plugin: "kata".to_owned(),
            ..PromiseSection::default()
        };
        assert_eq!(promises, [first, second]);
    }

    #[test]
    fn a_promise_with_a_mistake_refuses_and_names_its_place() {
        for (lines, wanted) in [
            ("plugins = [\"a\"]", "f:3:1: unknown key require.plugins (did you mean plugin?)"),
            ("claim = [\"a\"]", "f:3:1: unknown key require.claim (did you mean claims?)"),
            ("claims = \"a\"", "f:3:10: require.claims: expected a list of strings"),
            ("claims = []", "f:3:10: require.claims: is empty: leave the key out"),
            ("claims = [\"a.com/b\"]", "f:3:10: require.claims: \"a.com/b\" can match nothing"),
            ("cdi = [\"nvidia.com/gpu\"]", "f:3:7: require.cdi: \"nvidia.com/gpu\" can match no"),
            ("cdi = [\"gpu=0\"]", "f:3:7: require.cdi: \"gpu=0\" can match nothing: expected V"),
            ("cdi = [\"a/=0\"]", "f:3:7: require.cdi: \"a/=0\" can match nothing"),
            ("devices = [\"nvidia0\"]", "f:3:11: require.devices: \"nvidia0\" can match nothing"),
            ("devices = [\"!/dev/../x\"]", "f:3:11: require.devices: \"/dev/../x\" can match"),
            ("devices = [\"/dev/\"]", "f:3:11: require.devices: \"/dev/\" can match nothing"),
            ("devices = [\"/dev/[\"]", "f:3:11: require.devices: the pattern \"/dev/[\""),
            ("resources = [\"cpu\"]", "f:3:13: require.resources: \"cpu\" can match nothing"),
            ("annotations = [\"=a\"]", "f:3:15: require.annotations: \"=a\" can match nothing"),
            ("images = [\"\"]", "f:3:10: require.images: \"\" can match nothing"),
            ("images = [\"!*\"]", "f:3:10: require.images: \"!*\" excludes everything"),
            ("engines = [\"crio\"]", "f:3:11: require.engines: \"crio\" is not the name of"),
            ("wait = 5", "f:3:8: require.wait: expected a string in quotes"),
            ("wait = \"5\"", "f:3:8: require.wait: expected a duration"),
            ("mode = \"warn\"", "f:3:8: require.mode: must be one of: enforce, audit"),
            ("[require.cdi]\nx = 1", "f:3:1: require.cdi: expected a value, not a table"),
        ] {
            let (promises, problems) = read(&format!("[[require]]\nplugin = \"a\"\n{lines}\n"));
            let [problem] = &problems[..] else { panic!("{lines}: {problems:?}") };
            assert!(problem.starts_with(wanted), "{problem}");
            assert_eq!(promises, [PromiseSection::closed("f:1")], "{lines}");
        }
    }

    #[test]
    fn a_promise_without_plugin_or_selector_is_a_mistake() {
        for (lines, wanted) in [
            ("", "f:1:1: the promise has no plugin"),
            ("cdi = [\"*\"]", "f:1:1: the promise has no plugin"),
            ("cdi = [\"*\"]\nplugin = \"\"", "f:3:10: require.plugin: expected a name of 1 to"),
            ("cdi = [\"*\"]\nplugin = \"g*\"", "f:3:10: require.plugin: \"g*\" is not the name"),
            ("cdi = [\"*\"]\nplugin = \"inject:a\"", "f:3:10: require.plugin: \"inject:a\" is no"),
            ("plugin = \"a\"", "f:1:1: the promise selects nothing; for a plugin that every"),
        ] {
            let (promises, problems) = read(&format!("[[require]]\n{lines}\n"));
            let [problem] = &problems[..] else { panic!("{lines}: {problems:?}") };
            assert!(problem.starts_with(wanted), "{problem}");
            assert_eq!(promises, [PromiseSection::closed("f:1")], "{lines}");
        }
        let same = "[[require]]\nname = \"a\"\ncdi = [\"*\"]\nplugin = \"a\"\n";
        let (promises, problems) = read(&same.repeat(2));
        assert_eq!((promises.len(), problems.len()), (2, 1));
        assert!(problems[0].contains("another require has the name \"a\""), "{problems:?}");
    }
}
