// SPDX-License-Identifier: Apache-2.0
//! The table of keys: name, default, meaning, and setter. Parsing, `docs/config.md` and the
//! suggestions for unknown keys are derived from it. Nothing here reads a file.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml_edit::Value;

use super::duration::parse as parse_duration;
use super::fields::{check_field, check_resource};
use super::lists::LISTS;
use super::settings::{
    ANY_PLUGIN, AuditTarget, Config, MetricsListener, PluginOrigin, PluginSection,
};
use super::size;
use super::spelling::did_you_mean;
use crate::named::{Named, named};

/// The description of a wrong value.
type Mistake = std::borrow::Cow<'static, str>;

/// Sets a key to a value; `name` is what the file has in place of the key's `*`.
type SetKey = fn(&mut Config, name: &str, value: &Value) -> Result<(), Mistake>;

named! {
    /// The step that makes a changed value take effect.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "lowercase")]
    pub(crate) enum Effect {
        /// None, because wrappers read it at every call.
        Call => "call",
        /// A reload of the daemon.
        #[default]
        Reload => "reload",
        /// A start of the daemon.
        Restart => "restart",
    }
}

/// One key of the configuration file.
#[derive(Debug)]
pub(crate) struct Key {
    /// Dotted path; one `*` stands for a name that the operator chooses.
    pub path: &'static str,
    /// Default as TOML; empty if there is none.
    pub default: &'static str,
    /// The step that makes a changed value take effect.
    pub effect: Effect,
    /// What the key does, for `docs/config.md`.
    pub meaning: &'static str,
    pub(super) set: SetKey,
}

impl Key {
    /// Returns the name in place of this key's `*` in `path` (empty without one); `None` when
    /// `path` is another key.
    pub(super) fn name_in<'p>(&self, path: &'p [String]) -> Option<&'p str> {
        let mut parts = self.path.split('.');
        let mut name = "";
        for word in path {
            match parts.next()? {
                "*" => name = word,
                part if part == word => {}
                _ => return None,
            }
        }
        parts.next().is_none().then_some(name)
    }
}

fn read_string(value: &Value) -> Result<String, Mistake> {
    value.as_str().map(str::to_owned).ok_or_else(|| "expected a string in quotes".into())
}

fn read_path(value: &Value) -> Result<PathBuf, Mistake> {
    let path = PathBuf::from(read_string(value)?);
    if path.is_absolute() { Ok(path) } else { Err("expected an absolute path".into()) }
}

fn read_list<T>(
    value: &Value,
    what: &'static str,
    read_item: fn(&Value) -> Result<T, Mistake>,
) -> Result<Vec<T>, Mistake> {
    let list =
        value.as_array().ok_or_else(|| Mistake::from(format!("expected a list of {what}")))?;
    list.iter().map(read_item).collect()
}

fn read_paths(value: &Value) -> Result<Vec<PathBuf>, Mistake> {
    read_list(value, "absolute paths", read_path)
}

fn read_bool(value: &Value) -> Result<bool, Mistake> {
    value.as_bool().ok_or_else(|| "expected true or false".into())
}

fn read_strings(value: &Value) -> Result<Vec<String>, Mistake> {
    read_list(value, "strings", read_string)
}

/// Parses the one list that may also be a single string, because an operator often has one runtime.
fn read_runtimes(value: &Value) -> Result<Vec<String>, Mistake> {
    if let Some(runtime) = value.as_str() {
        return Ok(vec![runtime.to_owned()]);
    }
    read_list(value, "strings, or a string", read_string)
}

/// Parses names of fields that plugins can set. A mistyped name is refused, because `deny` would
/// not forbid the intended field.
fn read_fields(value: &Value) -> Result<Vec<String>, Mistake> {
    read_list(value, "strings", |value| {
        let name = read_string(value)?;
        check_field(&name).map(|()| name)
    })
}

/// Parses names of resources that can be restored.
fn read_resources(value: &Value) -> Result<Vec<String>, Mistake> {
    read_list(value, "strings", |value| {
        let name = read_string(value)?;
        check_resource(&name).map(|()| name)
    })
}

fn read_interval(value: &Value) -> Result<std::time::Duration, Mistake> {
    let interval = read_duration(value)?;
    let is_long = interval >= std::time::Duration::from_secs(1);
    is_long.then_some(interval).ok_or_else(|| "expected a duration of at least \"1s\"".into())
}

fn read_number(value: &Value) -> Result<u32, Mistake> {
    let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| "expected a number, 0 or more".into())
}

fn read_numbers(value: &Value) -> Result<Vec<u32>, Mistake> {
    read_list(value, "numbers", read_number)
}

fn read_duration(value: &Value) -> Result<std::time::Duration, Mistake> {
    let duration = value.as_str().and_then(parse_duration);
    duration.ok_or_else(|| "expected a duration such as \"2s\"".into())
}

fn read_mode(value: &Value) -> Result<u32, Mistake> {
    let mode = value.as_str().and_then(|digits| u32::from_str_radix(digits, 8).ok());
    let mode = mode.filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected an octal string such as \"0600\"".into())
}

fn read_one_of(value: &Value, names: &[&str]) -> Result<String, Mistake> {
    let is_one = |text: &&str| names.contains(text);
    let found = value.as_str().filter(is_one).map(str::to_owned);
    found.ok_or_else(|| format!("must be one of: {}", names.join(", ")).into())
}

fn read_named<T: Named>(value: &Value) -> Result<T, Mistake> {
    value.as_str().and_then(T::named).ok_or_else(|| {
        format!("must be one of: {}", T::names().collect::<Vec<_>>().join(", ")).into()
    })
}

fn read_listener(value: &Value) -> Result<Option<MetricsListener>, Mistake> {
    let text = read_string(value)?;
    let listener = match text.strip_prefix("unix:") {
        Some(path) if path.starts_with('/') => Some(MetricsListener::Unix(PathBuf::from(path))),
        Some(_) => None,
        None if text.is_empty() => return Ok(None),
        None => text.parse().ok().map(MetricsListener::Tcp),
    };
    listener.map(Some).ok_or_else(|| "expected \"unix:/PATH\" or \"ADDRESS:PORT\"".into())
}

fn read_audit_target(value: &Value) -> Result<Option<AuditTarget>, Mistake> {
    if read_string(value)?.is_empty() { Ok(None) } else { read_named(value).map(Some) }
}

/// The minimum of `audit.max_size`, in bytes; any line fits into a file of this size.
const LEAST_AUDIT_FILE: u64 = 256 << 10;

fn read_audit_size(value: &Value) -> Result<u64, Mistake> {
    let size = value.as_str().and_then(size::parse).filter(|size| *size >= LEAST_AUDIT_FILE);
    size.ok_or_else(|| "expected a size of at least \"256Ki\", such as \"64Mi\"".into())
}

fn read_audit_files(value: &Value) -> Result<u32, Mistake> {
    let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (1..=1000).contains(number));
    number.ok_or_else(|| "expected a number from 1 to 1000".into())
}

/// Parses `required`; `true` needs a plugin's name in the section's header.
fn read_required(name: &str, value: &Value) -> Result<Option<bool>, Mistake> {
    match read_bool(value)? {
        true if name == ANY_PLUGIN => {
            Err("name the plugin that is required, as in [plugin.foo]".into())
        }
        required => Ok(Some(required)),
    }
}

/// Parses names of programs, or their full paths.
fn read_programs(value: &Value) -> Result<Vec<String>, Mistake> {
    read_list(value, "strings", |value| {
        let program = read_string(value)?;
        let is_one = !program.is_empty() && (program.starts_with('/') || !program.contains('/'));
        is_one.then_some(program).ok_or_else(|| "expected a name or an absolute path".into())
    })
}

fn read_patterns(value: &Value) -> Result<Vec<String>, Mistake> {
    read_list(value, "strings", |value| {
        let text = read_string(value)?;
        let wrong = |why| Err(format!("the pattern {text:?} {why}").into());
        crate::glob::mistake(&text).map_or_else(|| Ok(text.clone()), wrong)
    })
}

fn read_origins(value: &Value) -> Result<Vec<PluginOrigin>, Mistake> {
    read_list(value, "strings", |value| {
        let text = read_string(value)?;
        let wrong = || Mistake::from("expected \"pod:NAMESPACE/NAME\" or \"exe:/PATH\"");
        if let Some(why) = crate::glob::mistake(&text) {
            return Err(format!("the pattern {text:?} {why}").into());
        }
        if let Some(path) = text.strip_prefix("exe:").filter(|path| path.starts_with('/')) {
            return Ok(PluginOrigin::Program(path.to_owned()));
        }
        let pod = text.strip_prefix("pod:").and_then(|pod| pod.split_once('/'));
        let (namespace, name) = pod.ok_or_else(wrong)?;
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err(wrong());
        }
        Ok(PluginOrigin::Pod { namespace: namespace.to_owned(), name: name.to_owned() })
    })
}

fn section<'c>(config: &'c mut Config, name: &str) -> &'c mut PluginSection {
    config.plugins.entry(name.to_owned()).or_default()
}

macro_rules! keys {
    ($($(#[$condition:meta])? $path:literal = $default:literal, $effect:ident, $meaning:literal, |$config:ident, $name:pat_param, $value:ident| $set:expr;)*) => {
        pub(crate) static KEYS: &[Key] = &[$($(#[$condition])? Key {
            path: $path,
            default: $default,
            effect: Effect::$effect,
            meaning: $meaning,
            set: |$config, $name, $value| { $set; Ok(()) },
        }),*];
    };
}

keys! {
    "runtime" = "[\"runc\", \"crun\", \"youki\"]", Call, "Real runtimes by name or absolute path, as a list or a single string. The first one that exists and is not nri-runc itself is used. nri-runc searches for a name in PATH, in the usual directories and in `/usr/libexec/crio`.", |c, _, v| c.runtime = read_runtimes(v)?;
    "on_daemon_failure" = "\"continue\"", Call, "What create, run, restore, start and update do if the daemon cannot be reached, does not respond or takes too long: `continue` without plugins, or `fail`. delete never fails for this reason. If anything protects containers (`required`, `on_failure = \"refuse\"`, `[[require]]`, an enabled validator, an error in a key that protects), create, run and restore are refused under `continue` too, except for pods in `exempt_namespaces`.", |c, _, v| c.on_daemon_failure = read_named(v)?;
    "on_rootless" = "", Reload, "What create, run and restore do for unprivileged users and in user namespaces, where root's plugins are not reachable: `pass` or `refuse`. Without it: `refuse` if the configuration protects containers, else `pass` ([Rootless containers](rootless.md)).", |c, _, v| c.on_rootless = Some(read_named(v)?);
    "autostart" = "true", Call, "Start the daemon on demand, with the first container. Set to false if a service manager runs it.", |c, _, v| c.autostart = read_bool(v)?;
    "exempt_namespaces" = "[\"kube-system\"]", Reload, "Pods in these namespaces are created even if a required plugin is missing or the daemon is unavailable.", |c, _, v| c.exempt_namespaces = read_strings(v)?;
    "exempt_by_annotation" = "false", Reload, "Let annotations and labels place a pod in one of `exempt_namespaces`: `nri-runc.dev/pod-namespace` on engines without pods, Kubernetes annotations on unknown engines. Anyone who can set them can then exempt a pod.", |c, _, v| c.exempt_by_annotation = read_bool(v)?;
    "defaults.namespace" = "\"\"", Reload, "Namespace of pods on engines without namespaces (Docker, Podman, ctr, plain bundles), as plugins see it. Empty = the engine's name. It never exempts a pod (`exempt_namespaces`).", |c, _, v| c.default_namespace = read_string(v)?;
    "run_dir" = "\"/run/nri-runc\"", Restart, "Directory for the daemon socket, its lock and its state.", |c, _, v| c.run_dir = read_path(v)?;
    "runtime_roots" = "[]", Restart, "Runtime state directories (`*` matches part of a name) in which nri-runc created every container. If the run directory is lost, all containers in them are recovered, not only those whose engine names nri-runc as their runtime.", |c, _, v| c.runtime_roots = read_paths(v)?;
    "runtime_name" = "\"nri-runc\"", Reload, "Runtime name reported to plugins.", |c, _, v| c.runtime_name = read_string(v)?;
    "instance.*.path" = "", Call, "Real runtime when nri-runc is called by this name (a symbolic link to it); overrides `runtime`.", |c, n, v| { let path = read_string(v)?; c.instances.insert(n.to_owned(), path) };
    "nri.disable" = "false", Call, "Disable plugins: every command goes straight to the runtime.", |c, _, v| c.disable = read_bool(v)?;
    "nri.socket_path" = "\"/var/run/nri/nri.sock\"", Reload, "Socket that plugins connect to.", |c, _, v| c.socket_path = read_path(v)?;
    "nri.plugin_path" = "\"/opt/nri/plugins\"", Reload, "Directory of pre-installed plugins: executables named `NN-name`.", |c, _, v| c.plugin_path = read_path(v)?;
    "nri.plugin_config_path" = "\"/etc/nri/conf.d\"", Reload, "Directory of the configuration files of pre-installed plugins: `NN-name.conf` or `name.conf`.", |c, _, v| c.plugin_config_path = read_path(v)?;
    "nri.plugin_registration_timeout" = "\"5s\"", Reload, "Time limit for a plugin to register; also how long creates wait for expected plugins after a daemon start.", |c, _, v| c.registration_timeout = read_duration(v)?;
    "nri.plugin_request_timeout" = "\"2s\"", Reload, "Time limit for a plugin to respond to a request.", |c, _, v| c.request_timeout = read_duration(v)?;
    "nri.disable_connections" = "false", Reload, "Do not open the plugin socket: only pre-installed plugins connect. Plugins already connected stay until they disconnect.", |c, _, v| c.disable_connections = read_bool(v)?;
    "nri.wait_for" = "[]", Reload, "Plugins (`NN-name`) that creates wait for after a daemon start, or after a reload that adds them, at most for the registration time-out.", |c, _, v| c.wait_for = read_strings(v)?;
    "nri.scope" = "\"handler\"", Reload, "Containers that plugins see: `handler`, those that nri-runc creates, or `node`, also those that the plain runtime created, before the installation or for another handler ([Plugins see the whole node](plugins.md#plugins-see-the-whole-node)). A reload disconnects plugins; they are synchronized again when they reconnect.", |c, _, v| c.scope = read_named(v)?;
    "nri.run_pod_after" = "\"create\"", Reload, "Command of the pod's infrastructure container after which RunPodSandbox is sent: `create`. After `start` no runtime waits for plugins ([why](decisions/0008-run-pod-sandbox-before-the-start.md)), so this is the only value.", |_c, _, v| drop(read_one_of(v, &["create"])?);
    "nri.socket_mode" = "\"0600\"", Reload, "Mode of the plugin socket. A process that can connect can be a plugin, and thus root on this node ([Who may reach the socket](rules.md#who-may-reach-the-socket)).", |c, _, v| c.socket_mode = read_mode(v)?;
    "nri.socket_gid" = "", Reload, "Group of the plugin socket; its members can be plugins, and thus root, if `nri.allowed_uids` includes them.", |c, _, v| c.socket_gid = Some(read_number(v)?);
    "nri.allowed_uids" = "[0]", Reload, "Users whose processes may connect as plugins, which makes them root on this node. A reload disconnects plugins of removed users.", |c, _, v| c.allowed_uids = read_numbers(v)?;
    "nri.default_validator.enable" = "false", Reload, "Enable the built-in default validator.", |c, _, v| c.default_validator.enable = read_bool(v)?;
    "nri.default_validator.reject_oci_hook_adjustment" = "false", Reload, "Reject OCI hooks.", |c, _, v| c.default_validator.reject_oci_hook_adjustment = read_bool(v)?;
    "nri.default_validator.reject_runtime_default_seccomp_adjustment" = "false", Reload, "Reject a seccomp policy for a container with the engine's default profile ([Seccomp keys of the default validator](rules.md#seccomp-keys-of-the-default-validator)).", |c, _, v| c.default_validator.reject_runtime_default_seccomp_adjustment = read_bool(v)?;
    "nri.default_validator.reject_unconfined_seccomp_adjustment" = "false", Reload, "Reject a seccomp policy for a container without a profile.", |c, _, v| c.default_validator.reject_unconfined_seccomp_adjustment = read_bool(v)?;
    "nri.default_validator.reject_custom_seccomp_adjustment" = "false", Reload, "Reject a seccomp policy for a container with a profile of its own (localhost).", |c, _, v| c.default_validator.reject_custom_seccomp_adjustment = read_bool(v)?;
    "nri.default_validator.reject_namespace_adjustment" = "false", Reload, "Reject namespace changes, including removals.", |c, _, v| c.default_validator.reject_namespace_adjustment = read_bool(v)?;
    "nri.default_validator.reject_sysctl_adjustment" = "false", Reload, "Reject sysctl changes, including removals.", |c, _, v| c.default_validator.reject_sysctl_adjustment = read_bool(v)?;
    "nri.default_validator.required_plugins" = "[]", Reload, "Plugins (`name` or `NN-name`) without which no container is created. A pod can require more with its annotation `required-plugins.noderesource.dev`.", |c, _, v| c.default_validator.required_plugins = read_strings(v)?;
    "nri.default_validator.tolerate_missing_plugins_annotation" = "\"\"", Reload, "Key of the pod annotation that, if true, tolerates missing plugins, including those with `required` in `[plugin.NAME]` (even if `enable` is false). Empty = none.", |c, _, v| c.default_validator.tolerate_missing_plugins_annotation = read_string(v)?;
    "plugin.*.on_failure" = "", Reload, "`refuse` or `skip` the request if the plugin does not respond. Overrides what the plugin declares (if it declares nothing: skip).", |c, n, v| section(c, n).on_failure = Some(read_named(v)?);
    "plugin.*.request_timeout" = "", Reload, "Time limit for this plugin's response to a request.", |c, n, v| section(c, n).request_timeout = Some(read_duration(v)?);
    "plugin.*.sync_timeout" = "", Reload, "Time limit for this plugin's response to Synchronize, which has all pods and containers. Without it, `request_timeout` applies to each of its requests (one up to 4 MiB; a larger snapshot comes in requests of 256 KiB). Creates do not wait for it, unless the plugin is required and has `wait`.", |c, n, v| section(c, n).sync_timeout = Some(read_duration(v)?);
    "plugin.*.strikes" = "", Reload, "Consecutive time-outs after which the plugin is disconnected, 0 = never. Overrides what the plugin declares (if it declares nothing: 1).", |c, n, v| section(c, n).strikes = Some(read_number(v)?);
    "plugin.*.required" = "false", Reload, "Refuse pods and containers while this plugin is not connected, and containers of a pod whose RunPodSandbox it missed. Not allowed in `[plugin.\"*\"]`.", |c, n, v| section(c, n).required = read_required(n, v)?;
    "plugin.*.wait" = "\"0s\"", Reload, "How long a pod or a container waits for this plugin, if it is required and not connected, before it is refused; at most until shortly before the time limit of a create (90 s). Other pods do not wait meanwhile.", |c, n, v| section(c, n).wait = Some(read_duration(v)?);
    "plugin.*.concurrency" = "1", Reload, "Maximum number of concurrent requests, each about a different container. Use more than 1 only for plugins that are known to be re-entrant.", |c, n, v| section(c, n).concurrency = Some(read_number(v)?);
    "plugin.*.allow" = "[]", Reload, "Fields that the plugin may set, by NRI name (`Env`, `Mounts`, `OciHooks`, ...). Empty = all.", |c, n, v| section(c, n).allow = Some(read_fields(v)?);
    "plugin.*.deny" = "[]", Reload, "Fields that the plugin may not set; overrides `allow`.", |c, n, v| section(c, n).deny = Some(read_fields(v)?);
    "cdi.spec_dirs" = "[\"/etc/cdi\", \"/var/run/cdi\"]", Reload, "Directories with CDI spec files (`*.json`, `*.yaml`). If two files define the same device, the one in the later directory applies.", |c, _, v| c.cdi_spec_dirs = read_paths(v)?;
    "kubernetes.pod_resources" = "\"/var/lib/kubelet/pod-resources/kubelet.sock\"", Reload, "kubelet's PodResources socket, from which a [promise](promises.md) learns claims and extended resources. It is used only if a promise names `claims` or `resources`.", |c, _, v| c.pod_resources = read_path(v)?;
    "blockio.config_file" = "", Reload, "YAML file that defines block I/O classes, in the format of engines that use goresctrl. Without it, every class is refused.", |c, _, v| c.blockio_config_file = Some(read_path(v)?);
    "rdt.config_file" = "", Reload, "YAML file that defines RDT classes, in the format of engines that use goresctrl. If it is set, only its classes may be used, and `system/default` is the default group. The engine creates the groups in resctrl. Without it, every group in resctrl is a class.", |c, _, v| c.rdt_config_file = Some(read_path(v)?);
    "rdt.resctrl_path" = "\"/sys/fs/resctrl\"", Reload, "Mount point of resctrl, whose directories are the RDT classes.", |c, _, v| c.resctrl_path = read_path(v)?;
    "plugin.*.evict" = "\"allow\"", Reload, "Containers that the plugin may evict: `allow` = any, `deny` = none, `own-namespace` = those in the namespace of the pod that the plugin runs in.", |c, n, v| section(c, n).evict = Some(read_named(v)?);
    "plugin.*.from" = "[]", Reload, "Which processes may connect under this name: `pod:NAMESPACE/NAME` (in that pod, created by nri-runc) or `exe:/PATH` (a process of the host that executes that file). `*`, `?` and `[a-z]` match part of a name; of a path, part of one element. Empty = any. It does not apply to plugins that the daemon launches. A reload disconnects a plugin that no longer matches ([Who may connect under a name](rules.md#who-may-connect-under-a-name)).", |c, n, v| section(c, n).from = Some(read_origins(v)?);
    "plugin.*.displace" = "\"never\"", Reload, "Which processes may be this plugin while a file `NN-NAME` is in `nri.plugin_path`: `never` = only the one that the daemon starts from it, `any` = others as well ([Names of pre-installed plugins](rules.md#names-of-pre-installed-plugins)).", |c, n, v| section(c, n).displace = Some(read_named(v)?);
    "plugin.*.runtime_annotations" = "[]", Reload, "Annotations that the runtime acts on and that this plugin may set, as patterns: `org.systemd.property.*`, `run.oci.*`, `krun.*`, `org.criu.*`, `module.wasm.image/variant`, `io.kubernetes.cri.container-type`. Without it they are refused, since they can change more than the plugin's adjustment shows. `bundle`, runc's own key, stays refused.", |c, n, v| section(c, n).runtime_annotations = Some(read_patterns(v)?);
    "kubernetes.kubelet" = "[]", Reload, "More programs that count as kubelet, by name or absolute path, besides kubelet, k3s, RKE2, MicroK8s and k0s. Only kubelet's writes to a pod's cgroup are a resize of the pod.", |c, _, v| c.kubelet = read_programs(v)?;
    "drift.every" = "", Reload, "How often the daemon compares the values of plugins and injections with the kernel's ([Drift](drift.md)), at least `1s`. Absent = only when `nri-runc nri drift` asks.", |c, _, v| c.drift_every = Some(read_interval(v)?);
    "drift.reapply" = "[]", Reload, "Resources that the daemon writes again if it finds a difference, by NRI name (`CPUSetCPUs`, `MemLimit`, ...), within limits and with a line in the audit log. Empty = none.", |c, _, v| c.drift_reapply = read_resources(v)?;
    "eviction.signal" = "\"SIGTERM\"", Reload, "First signal sent to a container that a plugin evicts.", |c, _, v| c.eviction_signal = read_string(v)?;
    "eviction.grace" = "\"10s\"", Reload, "Time between the first signal and SIGKILL.", |c, _, v| c.eviction_grace = read_duration(v)?;
    "eviction.per_minute" = "10", Reload, "Maximum number of evictions per minute, for all plugins together; further ones are refused. 0 = none.", |c, _, v| c.eviction_per_minute = read_number(v)?;
    "eviction.sandboxes" = "false", Reload, "Allow evicting the infrastructure container of a pod.", |c, _, v| c.eviction_sandboxes = read_bool(v)?;
    "metrics.listen" = "\"\"", Reload, "Where the daemon serves `/metrics` (OpenMetrics, for Prometheus), `/healthz` and `/readyz` over HTTP: `unix:/PATH` (a socket for root) or `ADDRESS:PORT`. There is no authentication: anyone who can connect can read plugin names and counts. Empty = nowhere; `nri-runc nri metrics` prints them without it.", |c, _, v| c.metrics_listen = read_listener(v)?;
    "audit.target" = "\"\"", Reload, "Write an audit log: `file` or `journal`. One JSON line for each value that was changed, refused or not applied, and for each plugin that connects, disconnects or is rejected (docs/audit.md). Empty = none.", |c, _, v| c.audit_target = read_audit_target(v)?;
    "audit.path" = "\"/var/log/nri-runc/audit.log\"", Reload, "The file of the audit log. It is readable by root only.", |c, _, v| c.audit_path = read_path(v)?;
    "audit.max_size" = "\"64Mi\"", Reload, "Size at which the audit log file is renamed to `PATH.1`, at least `256Ki`.", |c, _, v| c.audit_max_size = read_audit_size(v)?;
    "audit.max_files" = "4", Reload, "Number of audit log files kept, including the current one (1 to 1000); the oldest is removed.", |c, _, v| c.audit_max_files = read_audit_files(v)?;
    "audit.exec" = "false", Reload, "Write a line for each process that `exec` starts in a container: user, program, terminal, caller, result ([Processes that `exec` starts](exec.md)). Nothing waits for it.", |c, _, v| c.audit_exec = read_bool(v)?;
    "audit.exec_args" = "\"first\"", Reload, "Arguments in the line of an `exec`: `first` = only the program, `all` = each, with the values of `KEY=VALUE` hidden, `none`.", |c, _, v| c.audit_exec_args = read_named(v)?;
    "log.target" = "\"auto\"", Reload, "`auto`, `journal`, `syslog`, `file` (RUN_DIR/daemon.log, size-limited) or `stderr` (in the foreground, else `file`).", |c, _, v| c.log_target = read_one_of(v, &["auto", "journal", "syslog", "file", "stderr"])?;
    "log.level" = "\"info\"", Reload, "`error`, `warn`, `info`, `debug` or `trace`.", |c, _, v| c.log_level = read_one_of(v, &["error", "warn", "info", "debug", "trace"])?;
    "log.format" = "\"text\"", Reload, "`text` or `json`.", |c, _, v| c.log_format = read_one_of(v, &["text", "json"])?;
    "debug.host_root" = "\"\"", Restart, "For tests: prefix of every host path that is read.", |c, _, v| c.debug_host_root = read_string(v)?;
    "debug.node_root" = "\"\"", Restart, "For tests: prefix of the host paths from which node capabilities are read.", |c, _, v| c.debug_node_root = read_string(v)?;
    #[cfg(feature = "faults")]
    "debug.fault" = "\"\"", Restart, "For tests: `POINT:kill`, `POINT:fail`, `POINT:stall`, `POINT:panic`, or `@FILE` that contains one of these.", |c, _, v| c.debug_fault = read_string(v)?;
    #[cfg(feature = "faults")]
    "debug.silence" = "\"3s\"", Call, "For tests: the time without a heartbeat after which the daemon counts as unresponsive.", |c, _, v| c.debug_silence = read_duration(v)?;
    "debug.state_version" = "", Restart, "For tests: the format version of the state that a re-executed daemon writes.", |c, _, v| c.seams.state_version = Some(read_number(v)?);
    "debug.protocol" = "", Call, "For tests: the version of the protocol between wrapper and daemon that this process speaks.", |c, _, v| c.seams.protocol = Some(read_number(v)?);
    "debug.create_cap" = "\"90s\"", Reload, "For tests: how long create, run and restore wait for the daemon.", |c, _, v| c.debug_create_cap = read_duration(v)?;
    "debug.runtime_roots" = "", Restart, "For tests: the state directories of runtimes, instead of the engines' usual ones.", |c, _, v| c.seams.runtime_roots = Some(read_paths(v)?);
    "debug.kernel_exits" = "true", Restart, "For tests: whether the daemon gets exit codes from the kernel (Linux 6.15 and later).", |c, _, v| c.seams.kernel_exits = read_bool(v)?;
    "debug.look_every" = "\"60s\"", Reload, "For tests: how often records are compared with the files behind them.", |c, _, v| c.debug_look_every = read_duration(v)?;
}

/// Returns ` (did you mean KEY?)` for the nearest key, or nothing if none is similar.
pub(super) fn hint_of_key(dotted: &str) -> String {
    did_you_mean(dotted, KEYS.iter().map(|key| key.path))
}

/// The keys that exist only in builds with the feature `faults`.
const OF_TESTS: [&str; 2] = ["debug.fault", "debug.silence"];

/// Headings of `docs/config.md`, with the prefixes of their keys. A key is below the first heading
/// with a matching prefix.
const GROUPS: [(&str, &[&str]); 12] = [
    ("The default validator: `[nri.default_validator]`", &["nri.default_validator."]),
    ("Plugin socket, directories and time-outs: `[nri]`", &["nri."]),
    ("One plugin: `[plugin.NAME]`", &["plugin."]),
    ("CDI devices and classes: `[cdi]`, `[blockio]`, `[rdt]`", &["cdi.", "blockio.", "rdt."]),
    ("Kubelet: `[kubernetes]`", &["kubernetes."]),
    ("Differences from plugin-owned values: `[drift]`", &["drift."]),
    ("Evictions: `[eviction]`", &["eviction."]),
    ("Metrics listener: `[metrics]`", &["metrics."]),
    ("Audit log: `[audit]`", &["audit."]),
    ("Log: `[log]`", &["log."]),
    ("For tests: `[debug]`", &["debug."]),
    ("Runtime, daemon and namespaces", &[""]),
];

/// Returns the table as `docs/config.md` shows it.
pub fn markdown() -> String {
    let mut page = String::from(include_str!("about.md"));
    page.push_str("\n## Keys\n");
    let [named @ .., general] = &GROUPS;
    for (title, prefixes) in std::iter::once(general).chain(named) {
        page.push_str(&format!(
            "\n### {title}\n\n| key | default | applied by | meaning |\n|---|---|---|---|\n"
        ));
        let shown = KEYS.iter().filter(|key| !OF_TESTS.contains(&key.path));
        for key in shown.filter(|key| prefixes_of(key.path) == *prefixes) {
            let default =
                if key.default.is_empty() { String::new() } else { format!("`{}`", key.default) };
            let effect = key.effect.name();
            page.push_str(&format!(
                "| `{}` | {default} | {effect} | {} |\n",
                key.path, key.meaning
            ));
        }
    }
    LISTS.iter().for_each(|list| page.push_str(&(list.markdown)()));
    page
}

/// Returns the prefixes of a key's group; the last group has the remaining keys.
fn prefixes_of(path: &str) -> &'static [&'static str] {
    let fits = |(_, prefixes): &&(&str, &[&str])| prefixes.iter().any(|one| path.starts_with(one));
    GROUPS.iter().find(fits).map_or(&[], |(_, prefixes)| prefixes)
}

#[cfg(test)]
mod tests {
    use nri_adaptation::DefaultValidator;

    use super::super::settings::Consequence;
    use super::*;

    #[test]
    fn every_default_in_the_table_is_the_real_default() {
        for key in KEYS.iter().filter(|key| !key.default.is_empty() && !key.path.contains('*')) {
            let (config, problems) = Config::read(&format!("{} = {}", key.path, key.default));
            assert_eq!(problems, [], "{}", key.path);
            assert_eq!(config, Config::default(), "{}", key.path);
        }
    }

    #[test]
    fn invalid_toml_drops_the_whole_file_and_names_its_line() {
        let (_, problems) = Config::read("a = 1\nb = = 2\n");
        assert_eq!(problems[0].consequence, Consequence::UsesNoFile);
        assert!(problems[0].text.starts_with("f:2:"), "{problems:?}");
    }

    #[test]
    fn a_relative_socket_path_is_refused() {
        let (config, problems) = Config::read("nri.socket_path = \"x\"");
        assert_eq!(config, Config::default());
        assert!(problems[0].text.contains("absolute"), "{problems:?}");
    }

    #[test]
    fn metrics_are_served_at_an_address_or_a_unix_socket_only() {
        let listener = |text: &str| {
            let (config, problems) = Config::read(&format!("metrics.listen = \"{text}\""));
            (config.metrics_listen, problems.len())
        };
        let tcp = "127.0.0.1:9100".parse().unwrap();
        assert_eq!(listener("127.0.0.1:9100"), (Some(MetricsListener::Tcp(tcp)), 0));
        let socket = MetricsListener::Unix("/run/m.sock".into());
        assert_eq!(listener("unix:/run/m.sock"), (Some(socket), 0));
        assert_eq!(listener(""), (None, 0));
        for wrong in ["unix:m.sock", "9100", "localhost:9100", "http://127.0.0.1:9100", "unix:"] {
            assert_eq!(listener(wrong), (None, 1), "{wrong}");
        }
    }

    #[test]
    fn an_origin_is_a_pod_or_an_absolute_path_and_nothing_else() {
        for wrong in [
            "pod:",
            "pod:a",
            "pod:a/",
            "pod:/b",
            "pod:a/b/c",
            "exe:",
            "exe:opt/x",
            "/opt/x",
            "",
            "uid:0",
            "pod:a[/b",
            "exe:/opt/[",
            "Pod:a/b",
        ] {
            let text = format!("[plugin.a]\nfrom = [\"{wrong}\"]\n");
            let (_, problems) = Config::read(&text);
            let [problem] = &problems[..] else { panic!("{wrong}: {problems:?}") };
            assert_eq!(problem.consequence, Consequence::RefusesCreates, "{wrong}");
            assert!(problem.text.starts_with("f:2:8: plugin.a.from: "), "{wrong}");
        }
    }

    #[test]
    fn a_mistyped_instance_key_rejects_the_whole_file() {
        let (_, problems) = Config::read("[instance.nri-crun]\npth = \"/x\"\n");
        let text = &problems[0].text;
        assert!(text.starts_with("f:2:1: unknown key instance.nri-crun.pth"), "{text}");
        assert_eq!(problems[0].consequence, Consequence::UsesNoFile);
    }

    /// The result of one line in `[nri.default_validator]`, and its mistakes.
    fn validator(line: &str) -> (DefaultValidator, Vec<String>) {
        let (mut config, problems) = Config::read(&format!("[nri.default_validator]\n{line}\n"));
        let validator = std::mem::take(&mut config.default_validator);
        assert_eq!(config, Config::default(), "{line} is about the validator only");
        (validator, problems.into_iter().map(|problem| problem.text).collect())
    }

    #[test]
    fn each_key_of_the_validator_sets_its_own_field() {
        type SetFlag = fn(&mut DefaultValidator);
        let cases: [(&str, SetFlag); 9] = [
            ("enable = true", |v| v.enable = true),
            ("reject_oci_hook_adjustment = true", |v| v.reject_oci_hook_adjustment = true),
            ("reject_runtime_default_seccomp_adjustment = true", |v| {
                v.reject_runtime_default_seccomp_adjustment = true;
            }),
            ("reject_unconfined_seccomp_adjustment = true", |v| {
                v.reject_unconfined_seccomp_adjustment = true;
            }),
            ("reject_custom_seccomp_adjustment = true", |v| {
                v.reject_custom_seccomp_adjustment = true;
            }),
            ("reject_namespace_adjustment = true", |v| v.reject_namespace_adjustment = true),
            ("reject_sysctl_adjustment = true", |v| v.reject_sysctl_adjustment = true),
            ("required_plugins = [\"a\", \"10-b\"]", |v| {
                v.required_plugins = vec!["a".to_owned(), "10-b".to_owned()];
            }),
            ("tolerate_missing_plugins_annotation = \"k\"", |v| {
                v.tolerate_missing_plugins_annotation = "k".to_owned();
            }),
        ];
        for (line, set) in cases {
            let mut wanted = DefaultValidator::default();
            set(&mut wanted);
            assert_eq!(validator(line), (wanted, Vec::new()), "{line}");
        }
    }

    #[test]
    fn a_wrong_validator_key_sets_nothing_and_names_the_right_one() {
        let cases = [
            ("enabled = true", "did you mean nri.default_validator.enable"),
            ("reject_oci_hooks_adjustment = true", "default_validator.reject_oci_hook_adjustment"),
            ("reject_sysctl = true", "did you mean nri.default_validator.reject_sysctl_adjustment"),
            ("rejectNamespaceAdjustment = true", "default_validator.reject_namespace_adjustment"),
            ("requiredPlugins = []", "did you mean nri.default_validator.required_plugins"),
            ("enable = \"true\"", "expected true or false"),
            ("reject_oci_hook_adjustment = 1", "expected true or false"),
            ("required_plugins = \"a\"", "expected a list of strings"),
            ("required_plugins = [1]", "expected a string in quotes"),
            ("tolerate_missing_plugins_annotation = true", "expected a string in quotes"),
        ];
        for (line, wanted) in cases {
            let (validator, problems) = validator(line);
            assert_eq!(validator, DefaultValidator::default(), "{line}");
            let [text] = &problems[..] else { panic!("{line}: {problems:?}") };
            assert!(text.starts_with("f:2:") && text.contains(wanted), "{text}");
        }
    }
}
