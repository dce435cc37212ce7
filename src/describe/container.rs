// SPDX-License-Identifier: Apache-2.0
//! A container as NRI plugins see it. Every field of the message is named here, so that a new
//! one breaks the build instead of being forgotten.

use protobuf::MessageField;

use crate::engine::{Facts, Image, SeccompProfile};
use crate::plugin::api;

use super::view::{Device, Hook, Hooks, Mount, Namespace, Rdt, Scheduler, Seccomp, Spec};

/// Describes a container.
pub fn container(facts: &Facts, spec: &Spec) -> api::Container {
    let told = &facts.container;
    let annotations = spec.annotations.iter().chain(&told.annotations);
    let class = |name: &Option<String>| {
        let value = name.clone()?;
        Some(api::OptionalString { value, special_fields: Default::default() })
    };
    let resources = api::LinuxResources {
        rdt_class: class(&told.rdt_class).into(),
        blockio_class: class(&told.blockio_class).into(),
        ..Default::default()
    };
    let linux = api::LinuxContainer {
        resources: Some(resources).into(),
        seccomp_profile: told.seccomp.as_ref().map(seccomp_profile).into(),
        ..Default::default()
    };
    let of_engine = api::Container {
        id: told.id.clone(),
        pod_sandbox_id: facts.pod.id.clone(),
        name: told.name.clone(),
        labels: told.labels.clone().into_iter().collect(),
        annotations: annotations.map(|(key, value)| (key.clone(), value.clone())).collect(),
        linux: Some(linux).into(),
        CDI_devices: told.cdi_devices.iter().map(|name| cdi_device(name)).collect(),
        image: told.image.as_ref().map(image).into(),
        ..Default::default()
    };
    in_document(of_engine, spec)
}

/// Describes a container by its document; what no document has, or not all of, is as in `known`.
pub(crate) fn in_document(known: api::Container, spec: &Spec) -> api::Container {
    let process = &spec.process;
    let rlimits = process.rlimits.iter().map(|limit| api::POSIXRlimit {
        type_: limit.kind.clone(),
        hard: limit.hard,
        soft: limit.soft,
        special_fields: Default::default(),
    });
    api::Container {
        id: known.id,
        pod_sandbox_id: known.pod_sandbox_id,
        name: known.name,
        state: known.state,
        labels: known.labels,
        annotations: known.annotations,
        args: owned(&process.args),
        env: owned(&process.env),
        mounts: spec.mounts.iter().map(mount).collect(),
        hooks: hooks(&spec.hooks).into(),
        linux: Some(linux(known.linux.into_option().unwrap_or_default(), spec)).into(),
        pid: known.pid,
        rlimits: rlimits.collect(),
        created_at: known.created_at,
        started_at: known.started_at,
        finished_at: known.finished_at,
        exit_code: known.exit_code,
        status_reason: known.status_reason,
        status_message: known.status_message,
        CDI_devices: known.CDI_devices,
        user: Some(user(spec)).into(),
        image: known.image,
        special_fields: Default::default(),
    }
}

fn owned(list: &[String]) -> Vec<String> {
    list.to_vec()
}

fn cdi_device(name: &str) -> api::CDIDevice {
    api::CDIDevice { name: name.to_owned(), special_fields: Default::default() }
}

fn image(image: &Image) -> api::Image {
    api::Image {
        name: image.name.clone(),
        digest: image.digest.clone(),
        config_digest: image.config_digest.clone(),
        special_fields: Default::default(),
    }
}

fn seccomp_profile(profile: &SeccompProfile) -> api::SecurityProfile {
    use api::security_profile::ProfileType;
    let (profile_type, file) = match profile {
        SeccompProfile::RuntimeDefault => (ProfileType::RUNTIME_DEFAULT, ""),
        SeccompProfile::Unconfined => (ProfileType::UNCONFINED, ""),
        SeccompProfile::Localhost(file) => (ProfileType::LOCALHOST, file.as_str()),
    };
    api::SecurityProfile {
        profile_type: profile_type.into(),
        localhost_ref: file.to_owned(),
        special_fields: Default::default(),
    }
}

fn user(spec: &Spec) -> api::User {
    let user = &spec.process.user;
    api::User {
        uid: user.uid,
        gid: user.gid,
        additional_gids: user.additional_gids.clone(),
        special_fields: Default::default(),
    }
}

fn mount(mount: &Mount) -> api::Mount {
    api::Mount {
        destination: mount.destination.clone(),
        type_: mount.kind.clone(),
        source: mount.source.clone(),
        options: owned(&mount.options),
        special_fields: Default::default(),
    }
}

fn hooks(hooks: &Hooks) -> Option<api::Hooks> {
    let list = |hooks: &[Hook]| hooks.iter().map(hook).collect::<Vec<_>>();
    let all = api::Hooks {
        prestart: list(&hooks.prestart),
        create_runtime: list(&hooks.create_runtime),
        create_container: list(&hooks.create_container),
        start_container: list(&hooks.start_container),
        poststart: list(&hooks.poststart),
        poststop: list(&hooks.poststop),
        special_fields: Default::default(),
    };
    (all != api::Hooks::default()).then_some(all)
}

fn hook(hook: &Hook) -> api::Hook {
    let seconds = |value| api::OptionalInt { value, special_fields: Default::default() };
    api::Hook {
        path: hook.path.clone(),
        args: owned(&hook.args),
        env: owned(&hook.env),
        timeout: hook.timeout.map(seconds).into(),
        special_fields: Default::default(),
    }
}

fn linux(known: api::LinuxContainer, spec: &Spec) -> api::LinuxContainer {
    let linux = &spec.linux;
    let classes = known.resources.into_option().unwrap_or_default();
    let resources = api::LinuxResources {
        rdt_class: classes.rdt_class,
        blockio_class: classes.blockio_class,
        ..super::resources(spec)
    };
    let net_devices = linux.net_devices.iter().map(|(host, device)| {
        let name = device.name.clone();
        (host.clone(), api::LinuxNetDevice { name, special_fields: Default::default() })
    });
    let adj = |value| api::OptionalInt { value, special_fields: Default::default() };
    api::LinuxContainer {
        namespaces: linux.namespaces.iter().map(namespace).collect(),
        devices: linux.devices.iter().map(device).collect(),
        resources: Some(resources).into(),
        oom_score_adj: spec.process.oom_score_adj.map(adj).into(),
        cgroups_path: linux.cgroups_path.clone(),
        io_priority: io_priority(spec),
        seccomp_profile: known.seccomp_profile,
        seccomp_policy: linux.seccomp.as_ref().map(seccomp).into(),
        sysctl: linux.sysctl.clone().into_iter().collect(),
        net_devices: net_devices.collect(),
        scheduler: spec.process.scheduler.as_ref().map(scheduler).into(),
        rdt: linux.rdt.as_ref().map(rdt).into(),
        special_fields: Default::default(),
    }
}

/// Also used for pods.
pub(super) fn namespace(namespace: &Namespace) -> api::LinuxNamespace {
    api::LinuxNamespace {
        type_: namespace.kind.clone(),
        path: namespace.path.clone(),
        special_fields: Default::default(),
    }
}

fn device(device: &Device) -> api::LinuxDevice {
    let number = |value| api::OptionalUInt32 { value, special_fields: Default::default() };
    let mode = |value| api::OptionalFileMode { value, special_fields: Default::default() };
    api::LinuxDevice {
        path: device.path.clone(),
        type_: device.kind.clone(),
        major: device.major,
        minor: device.minor,
        file_mode: device.file_mode.map(mode).into(),
        uid: device.uid.map(number).into(),
        gid: device.gid.map(number).into(),
        special_fields: Default::default(),
    }
}

/// The number behind a protobuf enumeration's name; unknown names are 0.
fn named<E: protobuf::EnumFull>(name: &str) -> protobuf::EnumOrUnknown<E> {
    let value = E::enum_descriptor().value_by_name(name).map_or(0, |value| value.value());
    protobuf::EnumOrUnknown::from_i32(value)
}

fn io_priority(spec: &Spec) -> MessageField<api::LinuxIOPriority> {
    let told = spec.process.io_priority.as_ref().map(|io| api::LinuxIOPriority {
        class: named(&io.class),
        priority: io.priority,
        special_fields: Default::default(),
    });
    told.into()
}

fn scheduler(scheduler: &Scheduler) -> api::LinuxScheduler {
    api::LinuxScheduler {
        policy: named(&scheduler.policy),
        nice: scheduler.nice,
        priority: scheduler.priority,
        flags: scheduler.flags.iter().map(|flag| named(flag)).collect(),
        runtime: scheduler.runtime,
        deadline: scheduler.deadline,
        period: scheduler.period,
        special_fields: Default::default(),
    }
}

fn rdt(rdt: &Rdt) -> api::LinuxRdt {
    let text = |value| api::OptionalString { value, special_fields: Default::default() };
    let texts = |value| api::OptionalRepeatedString { value, special_fields: Default::default() };
    let truth = |value| api::OptionalBool { value, special_fields: Default::default() };
    api::LinuxRdt {
        clos_id: Some(text(rdt.clos_id.clone())).into(),
        schemata: Some(texts(owned(&rdt.schemata))).into(),
        enable_monitoring: Some(truth(rdt.enable_monitoring)).into(),
        remove: false,
        special_fields: Default::default(),
    }
}

fn seccomp(policy: &Seccomp) -> api::LinuxSeccomp {
    let errno = |value| api::OptionalUInt32 { value, special_fields: Default::default() };
    let syscalls = policy.syscalls.iter().map(|syscall| {
        let args = syscall.args.iter().map(|arg| api::LinuxSeccompArg {
            index: arg.index,
            value: arg.value,
            value_two: arg.value_two,
            op: arg.op.clone(),
            special_fields: Default::default(),
        });
        api::LinuxSyscall {
            names: owned(&syscall.names),
            action: syscall.action.clone(),
            errno_ret: syscall.errno_ret.map(errno).into(),
            args: args.collect(),
            special_fields: Default::default(),
        }
    });
    api::LinuxSeccomp {
        default_action: policy.default_action.clone(),
        default_errno: policy.default_errno.map(errno).into(),
        architectures: owned(&policy.architectures),
        flags: owned(&policy.flags),
        listener_path: policy.listener_path.clone(),
        listener_metadata: policy.listener_metadata.clone(),
        syscalls: syscalls.collect(),
        special_fields: Default::default(),
    }
}
