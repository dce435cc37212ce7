// SPDX-License-Identifier: Apache-2.0
//! Checks whether the real runtime honours plugins' requests.
//!
//! Runtimes ignore unknown members of config.json, and the plugin would believe in a change that never happened. So a
//! field is refused if runc or crun is known to lack it, according to its `features` or, if these cannot name it, its
//! version; for any other runtime, if its `features` do not name the field. If a runtime does not answer, no field is
//! refused. Reference: OCI runtime-spec `features-linux.md`; change logs of runc (1.2.0-rc.1: time namespaces,
//! scheduler, I/O priority, id-mapped mounts; 1.4.0-rc.1: network devices; 1.4.0-rc.2: memory policy, RDT schemata and
//! monitoring) and crun (1.8.4: time namespaces; 1.8.5: scheduler; 1.8.6: I/O priority and `features`; 1.9: ridmap;
//! 1.10: RDT; 1.22: network devices and RDT schemata; 1.24: memory policy and RDT monitoring; 1.25: deadlines again,
//! see [`What::Deadline`]). In crun's `features`, each release that has network devices and memory policy names them,
//! and none names RDT (up to 1.29.1).

use crate::error::quoted;
use crate::plugin::api;
use crate::runtime::RuntimeKind;
use crate::runtime::features::{Features, IntelRdt, Linux, Seccomp};
use crate::runtime::ignored::is_always_ignored;
use crate::spec::overlay::overlay_of;
use crate::spec::owned;
use crate::spec::patch::{Class, PatchError, Resolved, Result, mount_field};

/// Mount options that not every runtime interprets. Other options are accepted, except for bind mounts.
const GENERIC_OPTIONS: [&str; 26] = [
    "idmap",
    "ridmap",
    "nosymfollow",
    "symfollow",
    "tmpcopyup",
    "rro",
    "rrw",
    "rsuid",
    "rnosuid",
    "rdev",
    "rnodev",
    "rexec",
    "rnoexec",
    "ratime",
    "rnoatime",
    "rrelatime",
    "rnorelatime",
    "rstrictatime",
    "rnostrictatime",
    "rdiratime",
    "rnodiratime",
    "rsymfollow",
    "rnosymfollow",
    "lazytime",
    "nolazytime",
    "iversion",
];

/// Known options of bind mounts. The runtime must list any other option, because runc before 1.2 drops it.
const BIND_OPTIONS: [&str; 46] = [
    "acl",
    "async",
    "atime",
    "bind",
    "copy-symlink",
    "defaults",
    "dest-nofollow",
    "dev",
    "diratime",
    "dirsync",
    "exec",
    "loud",
    "mand",
    "noacl",
    "noatime",
    "nodev",
    "nodiratime",
    "noexec",
    "nomand",
    "norelatime",
    "nostrictatime",
    "nosuid",
    "private",
    "rbind",
    "relatime",
    "remount",
    "ro",
    "rprivate",
    "rshared",
    "rslave",
    "runbindable",
    "rw",
    "shared",
    "silent",
    "slave",
    "src-nofollow",
    "strictatime",
    "suid",
    "sync",
    "unbindable",
    "rnosymfollow",
    "rsymfollow",
    "rdiratime",
    "rnodiratime",
    "rro",
    "rrw",
];

/// A feature that a runtime may lack.
#[derive(Debug)]
struct Need {
    field: String,
    what: What,
}

#[derive(Debug)]
enum What {
    MountOption(String),
    /// An option that is not a known option of bind mounts.
    BindOption(String),
    Namespace(String),
    Seccomp(Filter),
    IntelRdt,
    RdtSchemata,
    RdtMonitoring,
    NetDevices,
    MemoryPolicy {
        mode: String,
        flags: Vec<String>,
    },
    Scheduler,
    /// `SCHED_DEADLINE`. From 1.9.2 on, crun resets the affinity of such a process with an empty
    /// mask, which the kernel refuses (EBUSY); from 1.25 on, with a full one.
    Deadline,
    IoPriority,
    /// A member of `linux.resources` that runc ignores.
    IgnoredByRunc(String),
}

#[derive(Debug, Default)]
struct Filter {
    actions: Vec<String>,
    operators: Vec<String>,
    archs: Vec<String>,
    flags: Vec<String>,
}

/// Whether the runtime's features must be known for this adjustment.
pub fn needs_runtime(adjustment: &api::ContainerAdjustment, resolved: &Resolved) -> bool {
    !needs(adjustment, resolved).is_empty()
}

/// The writer of a container's resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceWriter {
    /// The runtime, from its document.
    Runtime,
    /// The daemon: the runtime has read its document already.
    Daemon,
}

/// Refuses features that the runtime is known to lack.
///
/// # Errors
/// Fails with the NRI field, the runtime and the feature.
pub fn check_runtime(
    adjustment: &api::ContainerAdjustment,
    resolved: &Resolved,
    runtime: &Features,
    writer: ResourceWriter,
) -> Result<()> {
    let is_runtimes = |need: &Need| {
        writer == ResourceWriter::Runtime || !matches!(need.what, What::IgnoredByRunc(_))
    };
    for Need { field, what } in needs(adjustment, resolved).into_iter().filter(is_runtimes) {
        if let Some(lack) = what.lacking(runtime) {
            let problem = match must_name(runtime) {
                true => format!("{runtime} does not list {lack} in its features"),
                false => format!("{runtime} has no {lack}"),
            };
            let problem = quoted(&problem);
            return Err(PatchError::Invalid { field, problem });
        }
    }
    Ok(())
}

fn needs(adjustment: &api::ContainerAdjustment, resolved: &Resolved) -> Vec<Need> {
    // Every runtime supports the fields that are not used below.
    let api::ContainerAdjustment {
        mounts,
        linux,
        annotations: _,
        env: _,
        hooks: _,
        rlimits: _,
        CDI_devices: _,
        args: _,
        special_fields: _,
    } = adjustment;
    let mut needs = Vec::new();
    let mut add = |field: &str, what| needs.push(Need { field: field.to_owned(), what });
    let options = |mount: &api::Mount| {
        let is_bind = |option: &String| matches!(option.as_str(), "bind" | "rbind");
        let is_bind = mount.type_ == "bind" || mount.options.iter().any(is_bind);
        let what = mount.options.iter().filter_map(|option| match option.as_str() {
            known if GENERIC_OPTIONS.contains(&known) => Some(What::MountOption(option.clone())),
            known if !is_bind || BIND_OPTIONS.contains(&known) || known.starts_with("idmap=") => {
                None
            }
            _ => Some(What::BindOption(option.clone())),
        });
        what.collect::<Vec<What>>()
    };
    for mount in mounts.iter().filter(|mount| !mount.destination.starts_with('-')) {
        let field = mount_field(&mount.destination);
        options(mount).into_iter().for_each(|what| add(&field, what));
    }
    for device in &resolved.cdi {
        let field = format!("CdiDevices[{}]", device.name);
        device.mounts.iter().flat_map(options).for_each(|what| add(&field, what));
        if !device.net_devices.is_empty() {
            add(&field, What::NetDevices);
        }
        if let Some(rdt) = &device.intel_rdt {
            add(&field, What::IntelRdt);
            if rdt.get("schemata").is_some() {
                add(&field, What::RdtSchemata);
            }
            if rdt.get("enableMonitoring").is_some() {
                add(&field, What::RdtMonitoring);
            }
        }
    }
    if matches!(resolved.intel_rdt, Class::Set(_)) {
        add("RdtClass", What::IntelRdt);
    }
    if let Some(linux) = linux.as_ref() {
        list_needs_of_linux(linux, &mut add);
        if let Some(resources) = linux.resources.as_ref() {
            list_needs_of_resources(resources, resolved, &mut add);
        }
    }
    needs
}

fn list_needs_of_resources(
    resources: &api::LinuxResources,
    resolved: &Resolved,
    add: &mut impl FnMut(&str, What),
) {
    // The patch refuses values that no runtime accepts.
    let overlay = overlay_of(resources, resolved).unwrap_or_default();
    for (section, members) in &overlay {
        for (key, value) in members.as_object().into_iter().flatten() {
            if is_always_ignored(section, key) && !owned::holds_anyway(section, key, value) {
                let what = What::IgnoredByRunc(format!("linux.resources.{section}.{key}"));
                add(&owned::name(section, key), what);
            }
        }
    }
}

fn list_needs_of_linux(linux: &api::LinuxContainerAdjustment, add: &mut impl FnMut(&str, What)) {
    // Every runtime supports the fields that are not used below, or the caller examines them.
    let api::LinuxContainerAdjustment {
        io_priority,
        seccomp_policy,
        namespaces,
        net_devices,
        scheduler,
        rdt,
        memory_policy,
        devices: _,
        resources: _,
        cgroups_path: _,
        oom_score_adj: _,
        sysctl: _,
        special_fields: _,
    } = linux;
    for namespace in namespaces.iter().filter(|kind| !kind.type_.starts_with('-')) {
        let field = format!("Namespace[{}]", namespace.type_);
        add(&field, What::Namespace(namespace.type_.clone()));
    }
    if let Some(policy) = seccomp_policy.as_ref() {
        add("SeccompPolicy", What::Seccomp(Filter::of(policy)));
    }
    if let Some(rdt) = rdt.as_ref() {
        if rdt.clos_id.is_some() {
            add("RdtClosID", What::IntelRdt);
        }
        if rdt.schemata.is_some() {
            add("RdtSchemata", What::RdtSchemata);
        }
        if rdt.enable_monitoring.is_some() {
            add("RdtEnableMonitoring", What::RdtMonitoring);
        }
    }
    for name in net_devices.keys().filter(|name| !name.starts_with('-')) {
        add(&format!("LinuxNetDevices[{name}]"), What::NetDevices);
    }
    if let Some(policy) = memory_policy.as_ref() {
        let mode = policy.mode.enum_value().map(|mode| format!("{mode:?}"));
        let flags = policy.flags.iter().filter_map(|flag| flag.enum_value().ok());
        let flags = flags.map(|flag| format!("{flag:?}")).collect();
        add("MemoryPolicy", What::MemoryPolicy { mode: mode.unwrap_or_default(), flags });
    }
    // "None" removes a present value, which every runtime supports.
    let policy = scheduler.as_ref().map(|scheduler| scheduler.policy);
    if policy.is_some_and(|policy| policy != api::LinuxSchedulerPolicy::SCHED_NONE.into()) {
        add("LinuxSched", What::Scheduler);
    }
    if policy == Some(api::LinuxSchedulerPolicy::SCHED_DEADLINE.into()) {
        add("LinuxSched", What::Deadline);
    }
    let class = io_priority.as_ref().map(|priority| priority.class);
    if class.is_some_and(|class| class != api::IOPrioClass::IOPRIO_CLASS_NONE.into()) {
        add("IoPriority", What::IoPriority);
    }
}

impl Filter {
    fn of(policy: &api::LinuxSeccomp) -> Self {
        let mut filter = Self {
            actions: vec![policy.default_action.clone()],
            archs: policy.architectures.clone(),
            flags: policy.flags.clone(),
            ..Self::default()
        };
        for syscall in &policy.syscalls {
            filter.actions.push(syscall.action.clone());
            filter.operators.extend(syscall.args.iter().map(|arg| arg.op.clone()));
        }
        filter
    }

    fn lacking(&self, seccomp: &Seccomp, must_name: bool) -> Option<String> {
        if seccomp.enabled == Some(false) {
            return Some("seccomp".to_owned());
        }
        let flags = seccomp.supported_flags.as_ref().or(seccomp.known_flags.as_ref());
        for (kind, wanted, known) in [
            ("action", &self.actions, seccomp.actions.as_ref()),
            ("operator", &self.operators, seccomp.operators.as_ref()),
            ("architecture", &self.archs, seccomp.archs.as_ref()),
            ("flag", &self.flags, flags),
        ] {
            let is_named = |word: &String| known.map_or(!must_name, |known| known.contains(word));
            let lack = wanted.iter().find(|word| !word.is_empty() && !is_named(word));
            if let Some(lack) = lack {
                return Some(format!("seccomp {kind} {lack}"));
            }
        }
        None
    }
}

impl What {
    /// Returns the part of the need that the runtime is known to lack, if any.
    fn lacking(&self, runtime: &Features) -> Option<String> {
        let said = runtime.said.as_ref();
        let linux = said.and_then(|said| said.linux.as_ref());
        match self {
            Self::MountOption(option) => {
                let known = said.and_then(|said| said.mount_options.as_ref());
                let is_listed = known.map(|known| known.contains(option));
                lacks_option(option, is_listed, linux, runtime)
                    .then(|| format!("mount option {option}"))
            }
            Self::BindOption(option) => {
                let known = said.and_then(|said| said.mount_options.as_ref());
                let is_listed = known.is_some_and(|known| known.contains(option));
                let is_known = known.is_some() || !runtime.name.is_empty();
                (is_known && !is_listed).then(|| format!("option {option} of bind mounts"))
            }
            Self::Namespace(kind) => {
                let is_young = kind == "time" && before(runtime, (1, 2, 0), (1, 8, 4));
                // crun has time namespaces since 1.8.4, but none up to 1.29.1 lists them.
                let is_listed_by = kind != "time" || runtime.kind() != RuntimeKind::Crun;
                let known = linux.and_then(|linux| linux.namespaces.as_ref());
                known
                    .filter(|_| is_listed_by)
                    .map_or(must_name(runtime) || is_young, |known| !known.contains(kind))
                    .then(|| format!("{kind} namespaces"))
            }
            // These versions of runc refuse all flags, and `features` cannot show that.
            Self::Seccomp(filter)
                if !filter.flags.is_empty() && runtime.is_before(RuntimeKind::Runc, (1, 2, 0)) =>
            {
                Some("seccomp flags".to_owned())
            }
            Self::Seccomp(filter) => match linux.map(|linux| linux.seccomp.as_ref()) {
                Some(Some(seccomp)) => filter.lacking(seccomp, must_name(runtime)),
                // A runc whose `features` omit seccomp is built without it.
                Some(None) if runtime.kind() == RuntimeKind::Runc => Some("seccomp".to_owned()),
                _ => must_name(runtime).then(|| "seccomp".to_owned()),
            },
            Self::IntelRdt => {
                let enabled = linux.and_then(|linux| linux.intel_rdt.as_ref()?.enabled);
                lacks(enabled, runtime, (0, 0, 0), (1, 10, 0)).then(|| "linux.intelRdt".into())
            }
            Self::RdtSchemata => lacks_of_rdt(linux, runtime, (1, 22, 0), |rdt| rdt.schemata)
                .then(|| "linux.intelRdt.schemata".into()),
            Self::RdtMonitoring => lacks_of_rdt(linux, runtime, (1, 24, 0), |rdt| rdt.monitoring)
                .then(|| "linux.intelRdt.enableMonitoring".into()),
            Self::NetDevices => {
                let enabled = linux.and_then(|linux| linux.net_devices.as_ref()?.enabled);
                lacks_unless_named(enabled, runtime).then(|| "linux.netDevices".into())
            }
            Self::MemoryPolicy { mode, flags } => lacks_policy(mode, flags, linux, runtime),
            Self::Scheduler => {
                before(runtime, (1, 2, 0), (1, 8, 5)).then(|| "process.scheduler".into())
            }
            Self::Deadline => {
                fails_at_deadlines(runtime).then(|| "support of SCHED_DEADLINE".into())
            }
            Self::IgnoredByRunc(member) => {
                (runtime.kind() == RuntimeKind::Runc).then(|| member.clone())
            }
            Self::IoPriority => {
                before(runtime, (1, 2, 0), (1, 8, 6)).then(|| "process.ioPriority".into())
            }
        }
    }
}

/// Whether the runtime supports only the features that its `features` name: it answered, and there
/// is no table of its versions here.
fn must_name(runtime: &Features) -> bool {
    !runtime.name.is_empty() && matches!(runtime.kind(), RuntimeKind::Youki | RuntimeKind::Other)
}

/// Whether the runtime lacks a feature that `features` cannot name: runc and crun before the first
/// version that has it, and each runtime that [`must_name`] its features.
fn before(runtime: &Features, runc: (u32, u32, u32), crun: (u32, u32, u32)) -> bool {
    let is_old = |kind, version| runtime.is_before(kind, version);
    must_name(runtime) || is_old(RuntimeKind::Runc, runc) || is_old(RuntimeKind::Crun, crun)
}

/// Whether the runtime fails to start a process with a deadline, see [`What::Deadline`].
fn fails_at_deadlines(runtime: &Features) -> bool {
    let is_before = |version| runtime.is_before(RuntimeKind::Crun, version);
    is_before((1, 25, 0)) && !is_before((1, 9, 2))
}

/// Whether the runtime lacks a feature: by its `features` if they name it, else by [`before`].
fn lacks(
    enabled: Option<bool>,
    runtime: &Features,
    runc: (u32, u32, u32),
    crun: (u32, u32, u32),
) -> bool {
    enabled.map_or_else(|| before(runtime, runc, crun), |enabled| !enabled)
}

/// Whether the runtime lacks network devices or memory policies. Every crun that has them names them.
fn lacks_unless_named(enabled: Option<bool>, runtime: &Features) -> bool {
    lacks(enabled, runtime, (1, 4, 0), (u32::MAX, 0, 0))
}

fn lacks_of_rdt(
    linux: Option<&Linux>,
    runtime: &Features,
    crun: (u32, u32, u32),
    member: fn(&IntelRdt) -> Option<bool>,
) -> bool {
    let rdt = linux.and_then(|linux| linux.intel_rdt.as_ref());
    rdt.is_some_and(|rdt| rdt.enabled == Some(false))
        || lacks(rdt.and_then(member), runtime, (1, 4, 0), crun)
}

fn lacks_option(
    option: &str,
    is_listed: Option<bool>,
    linux: Option<&Linux>,
    runtime: &Features,
) -> bool {
    let extensions = linux.and_then(|linux| linux.mount_extensions.as_ref());
    let idmap = extensions.and_then(|extensions| extensions.idmap.as_ref()?.enabled);
    match option {
        // The runtime reports these two outside of the list of options.
        "idmap" | "ridmap" if idmap == Some(false) => true,
        "idmap" | "ridmap" if must_name(runtime) => idmap.is_none(),
        "idmap" => runtime.is_before(RuntimeKind::Runc, (1, 2, 0)),
        "ridmap" => before(runtime, (1, 2, 0), (1, 9, 0)),
        _ => !is_listed.unwrap_or(!must_name(runtime)),
    }
}

fn lacks_policy(
    mode: &str,
    flags: &[String],
    linux: Option<&Linux>,
    runtime: &Features,
) -> Option<String> {
    let Some(policy) = linux.and_then(|linux| linux.memory_policy.as_ref()) else {
        return lacks_unless_named(None, runtime).then(|| "linux.memoryPolicy".into());
    };
    if policy.modes.as_ref().is_some_and(|modes| !modes.iter().any(|known| known == mode)) {
        return Some(format!("memory policy {mode}"));
    }
    let known = policy.flags.as_ref()?;
    let lack = flags.iter().find(|flag| !known.contains(flag))?;
    Some(format!("memory policy flag {lack}"))
}
