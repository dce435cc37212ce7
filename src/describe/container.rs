// SPDX-License-Identifier: Apache-2.0
//! A container as plugins receive it. Every field of the message is named here, so that a new field
//! breaks the build.

use crate::engine::{Facts, Image, SeccompProfile};
use crate::plugin::api;

use super::view::{Rdt, Shown, Spec};

/// Describes a container.
pub fn container(facts: &Facts, spec: &Spec) -> api::Container {
    let given = &facts.container;
    let annotations = spec.annotations.iter().chain(&given.annotations);
    let resources = api::LinuxResources {
        rdt_class: given.rdt_class.shown(),
        blockio_class: given.blockio_class.shown(),
        ..Default::default()
    };
    let linux = api::LinuxContainer {
        resources: Some(resources).into(),
        seccomp_profile: given.seccomp.as_ref().map(seccomp_profile).into(),
        ..Default::default()
    };
    let of_engine = api::Container {
        id: given.id.clone(),
        pod_sandbox_id: facts.pod.id.clone(),
        name: given.name.clone(),
        labels: given.labels.clone().into_iter().collect(),
        annotations: annotations.map(|(key, value)| (key.clone(), value.clone())).collect(),
        linux: Some(linux).into(),
        CDI_devices: given.cdi_devices.iter().map(|name| cdi_device(name)).collect(),
        image: given.image.as_ref().map(image).into(),
        ..Default::default()
    };
    in_document(of_engine, spec)
}

/// Describes a container by its document. Annotations, and values for which no document has a
/// member, are taken from `known`.
pub(crate) fn in_document(known: api::Container, spec: &Spec) -> api::Container {
    let process = &spec.process;
    api::Container {
        id: known.id,
        pod_sandbox_id: known.pod_sandbox_id,
        name: known.name,
        state: known.state,
        labels: known.labels,
        annotations: known.annotations,
        args: process.args.clone(),
        env: process.env.clone(),
        mounts: spec.mounts.shown(),
        hooks: Some(spec.hooks.shown()).filter(|hooks| *hooks != api::Hooks::default()).into(),
        linux: Some(linux(known.linux.into_option().unwrap_or_default(), spec)).into(),
        pid: known.pid,
        rlimits: process.rlimits.shown(),
        created_at: known.created_at,
        started_at: known.started_at,
        finished_at: known.finished_at,
        exit_code: known.exit_code,
        status_reason: known.status_reason,
        status_message: known.status_message,
        CDI_devices: known.CDI_devices,
        user: Some(process.user.shown()).into(),
        image: known.image,
        special_fields: Default::default(),
    }
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

fn linux(known: api::LinuxContainer, spec: &Spec) -> api::LinuxContainer {
    let linux = &spec.linux;
    let classes = known.resources.into_option().unwrap_or_default();
    let resources = api::LinuxResources {
        rdt_class: classes.rdt_class,
        blockio_class: classes.blockio_class,
        ..super::resources(spec)
    };
    let net_devices = linux.net_devices.iter().map(|(host, device)| (host.clone(), device.shown()));
    api::LinuxContainer {
        namespaces: linux.namespaces.shown(),
        devices: linux.devices.shown(),
        resources: Some(resources).into(),
        oom_score_adj: spec.process.oom_score_adj.shown(),
        cgroups_path: linux.cgroups_path.clone(),
        io_priority: spec.process.io_priority.as_ref().map(Shown::shown).into(),
        seccomp_profile: known.seccomp_profile,
        seccomp_policy: linux.seccomp.as_ref().map(Shown::shown).into(),
        sysctl: linux.sysctl.clone().into_iter().collect(),
        net_devices: net_devices.collect(),
        scheduler: spec.process.scheduler.as_ref().map(Shown::shown).into(),
        rdt: linux.rdt.as_ref().map(rdt).into(),
        special_fields: Default::default(),
    }
}

fn rdt(rdt: &Rdt) -> api::LinuxRdt {
    let schemata =
        api::OptionalRepeatedString { value: rdt.schemata.clone(), ..Default::default() };
    api::LinuxRdt {
        clos_id: Some(rdt.clos_id.clone().into()).into(),
        schemata: Some(schemata).into(),
        enable_monitoring: Some(rdt.enable_monitoring.into()).into(),
        remove: false,
        special_fields: Default::default(),
    }
}
