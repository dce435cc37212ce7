// SPDX-License-Identifier: Apache-2.0
//! Resolves CDI devices: names such as `vendor.com/gpu=0`, and the edits that spec files give them.
//!
//! The crate `container-device-interface` reads the files and makes the edits. It can edit only a
//! typed spec, so each device is applied to an empty spec, whose content is then used as plain data
//! (decision D26). This module decides which files are used: an invalid file does not hide devices
//! of other files, and is named when a device is missing. It also completes device nodes
//! (`device_nodes.rs`), because the crate sets no mode. Reference: CDI specification 1.1,
//! `SPEC.md`; BUG-G10 (docs/nri-differences.md).

use std::collections::{HashMap, HashSet};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use container_device_interface::container_edits::ContainerEdits;
use container_device_interface::device::Device;
use container_device_interface::spec::{Spec as CdiSpec, new_spec, parse_spec};
use oci_spec::runtime::{self as oci, Linux, LinuxResources, Process, Spec};

use super::device_nodes;
use crate::error::{in_our_words, quoted};
use crate::files;
use crate::host::Host;
use crate::limits;
use crate::plugin::api;
use crate::presence::{self, IfThere};
use crate::spec::patch::{CdiDevice, PatchError, Result, is_plain_path};

#[derive(Debug, Default)]
struct CdiRegistry {
    devices: HashMap<String, Vec<Entry>>,
    /// Files that could not be read or parsed, with the reason.
    broken: Vec<(PathBuf, String)>,
}

/// One definition of a device.
#[derive(Debug)]
struct Entry {
    priority: usize,
    file: PathBuf,
    device: Device,
}

/// Returns the edits of each wanted device, in order.
pub(super) fn devices(
    wanted: &[api::CDIDevice],
    spec_dirs: &[PathBuf],
    host: &Host,
) -> Result<Vec<CdiDevice>> {
    let registry = CdiRegistry::read(spec_dirs, host);
    let mut files_seen: HashSet<&Path> = HashSet::new();
    let mut found = Vec::with_capacity(wanted.len());
    for api::CDIDevice { name, special_fields: _ } in wanted {
        let failed = |problem: String| PatchError::Invalid {
            field: format!("CdiDevices[{name}]"),
            problem: quoted(&problem),
        };
        let entry = registry.find(name, spec_dirs).map_err(failed)?;
        // A file's edits for all of its devices are applied once.
        let is_first = files_seen.insert(&entry.file);
        let device = edits(name, entry, is_first, host)
            .map_err(|problem| failed(format!("{}: {problem}", entry.file.display())))?;
        found.push(device);
    }
    Ok(found)
}

impl CdiRegistry {
    fn read(spec_dirs: &[PathBuf], host: &Host) -> Self {
        let mut registry = Self::default();
        for (priority, dir) in spec_dirs.iter().enumerate() {
            let entries = presence::entries(&host.path(dir)).or_absent().into_iter().flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.sort();
            for name in names {
                let file = dir.join(&name);
                let extension = file.extension().and_then(|extension| extension.to_str());
                if matches!(extension, Some("json" | "yaml")) {
                    registry.read_file(priority, file, host);
                }
            }
        }
        registry
    }

    fn read_file(&mut self, priority: usize, file: PathBuf, host: &Host) {
        let path = host.path(&file);
        if presence::is_dir(&path).or_absent() == Some(true) {
            return;
        }
        let spec = match read_spec(&path, i32::try_from(priority).unwrap_or(i32::MAX)) {
            Ok(spec) => spec,
            Err(why) => {
                self.broken.push((file, why));
                return;
            }
        };
        for device in spec.get_devices().into_values() {
            let name = device.get_qualified_name();
            let entry = Entry { priority, file: file.clone(), device };
            self.devices.entry(name).or_default().push(entry);
        }
    }

    /// Finds the only definition of a device in the last folder that defines the device.
    fn find(&self, name: &str, spec_dirs: &[PathBuf]) -> Result<&Entry, String> {
        let is_qualified = name.split_once('=').is_some_and(|(kind, device)| {
            !device.is_empty()
                && kind.split_once('/').is_some_and(|(vendor, class)| {
                    !vendor.is_empty() && !class.is_empty() && !class.contains('/')
                })
        });
        if !is_qualified {
            return Err("a CDI device's name has the form vendor/class=name".to_owned());
        }
        let entries = self.devices.get(name).map(Vec::as_slice).unwrap_or_default();
        let Some(priority) = entries.iter().map(|entry| entry.priority).max() else {
            return Err(self.missing(spec_dirs));
        };
        let mut best = entries.iter().filter(|entry| entry.priority == priority);
        match (best.next(), best.next()) {
            (Some(only), None) => Ok(only),
            (Some(one), Some(other)) => {
                Err(format!("{} and {} both define it", one.file.display(), other.file.display()))
            }
            (None, _) => Err(self.missing(spec_dirs)),
        }
    }

    fn missing(&self, spec_dirs: &[PathBuf]) -> String {
        let dirs: Vec<String> = spec_dirs.iter().map(|dir| dir.display().to_string()).collect();
        let mut text = format!("no CDI spec file in {} defines it", dirs.join(", "));
        for (file, problem) in &self.broken {
            text.push_str(&format!("; {} is broken: {problem}", file.display()));
        }
        text
    }
}

/// Reads a spec file. Errors do not quote a file that is not a spec, because a link may have led to
/// a file with secrets.
fn read_spec(path: &Path, priority: i32) -> Result<CdiSpec, String> {
    let file = files::open_regular(path).map_err(|error| in_our_words(&error))?;
    let size = file.metadata().map_err(|error| in_our_words(&error))?.len();
    if usize::try_from(size).is_ok_and(|size| size > limits::SETTINGS_FILE) {
        return Err(format!("it has more than {} bytes", limits::SETTINGS_FILE));
    }
    // The crate opens a path; this path leads to the file that was checked.
    let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let raw = parse_spec(&opened).map_err(|error| {
        let why = error.root_cause().to_string();
        let place = why.rsplit_once(" at line ").map(|(_, place)| place);
        let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
        let place = place.filter(|place| place.split(" column ").all(is_number));
        match place {
            Some(place) => format!("it is not a CDI spec (line {place})"),
            None => "it is not a CDI spec".to_owned(),
        }
    })?;
    // The innermost cause describes the error; the outer ones describe the crate's steps.
    new_spec(&raw, &path.to_owned(), priority).map_err(|error| error.root_cause().to_string())
}

/// Returns the edits of one requested device. `with_file` adds those of its spec file, which apply only once, however
/// many devices of that file are requested.
fn edits(name: &str, entry: &Entry, with_file: bool, host: &Host) -> Result<CdiDevice, String> {
    let mut spec = empty_spec();
    let mut edits = ContainerEdits::new();
    let of_file = entry.device.get_spec().edits().filter(|_| with_file);
    let all = of_file.into_iter().chain([entry.device.edits()]);
    all.into_iter()
        .try_for_each(|more| edits.append(more))
        .map_err(|error| error.root_cause().to_string())?;
    for node in edits.container_edits.device_nodes.iter_mut().flatten() {
        device_nodes::fill_in(node, host)?;
    }
    edits.apply(&mut spec).map_err(|error| error.root_cause().to_string())?;
    let mut device = CdiDevice { name: name.to_owned(), ..CdiDevice::default() };
    if let Some(process) = spec.process() {
        for entry in process.env().iter().flatten() {
            device.env.push(variable(entry)?);
        }
        device.additional_gids = process.user().additional_gids().clone().unwrap_or_default();
    }
    if let Some(linux) = spec.linux() {
        take_linux(linux, &mut device)?;
    }
    for mount in spec.mounts().iter().flatten() {
        device.mounts.push(api::Mount {
            destination: plain(mount.destination())?,
            type_: mount.typ().clone().unwrap_or_default(),
            source: mount.source().as_deref().map(text).unwrap_or_default(),
            options: mount.options().clone().unwrap_or_default(),
            ..Default::default()
        });
    }
    if let Some(hooks) = spec.hooks() {
        device.hooks = take_hooks(hooks)?;
    }
    Ok(device)
}

/// Returns a spec with every part present and empty, because the crate would fill in defaults for missing parts.
fn empty_spec() -> Spec {
    let mut process = Process::default();
    process.set_env(Some(Vec::new()));
    let mut resources = LinuxResources::default();
    resources.set_devices(Some(Vec::new()));
    let mut linux = Linux::default();
    linux.set_resources(Some(resources)).set_devices(Some(Vec::new()));
    let mut spec = Spec::default();
    spec.set_process(Some(process))
        .set_linux(Some(linux))
        .set_mounts(Some(Vec::new()))
        .set_hooks(None)
        .set_annotations(None);
    spec
}

fn variable(entry: &str) -> Result<api::KeyValue, String> {
    match entry.split_once('=') {
        // In an adjustment, a name with a leading dash means removal.
        Some((name, value)) if !name.is_empty() && !name.starts_with('-') => Ok(api::KeyValue {
            key: name.to_owned(),
            value: value.to_owned(),
            ..Default::default()
        }),
        _ => Err(format!("\"{entry}\" is not a variable such as NAME=VALUE")),
    }
}

fn take_linux(linux: &Linux, device: &mut CdiDevice) -> Result<(), String> {
    let rules = linux.resources().as_ref().and_then(|resources| resources.devices().as_deref());
    let rules = rules.unwrap_or_default();
    for node in linux.devices().iter().flatten() {
        let access = rules.iter().rev().find(|rule| {
            rule.typ() == Some(node.typ())
                && (rule.major(), rule.minor()) == (Some(node.major()), Some(node.minor()))
        });
        let access = access.and_then(|rule| rule.access().clone()).unwrap_or_default();
        let message = api::LinuxDevice {
            path: plain(node.path())?,
            type_: node.typ().as_str().to_owned(),
            major: node.major(),
            minor: node.minor(),
            file_mode: node.file_mode().map(Into::into).into(),
            uid: node.uid().map(Into::into).into(),
            gid: node.gid().map(Into::into).into(),
            ..Default::default()
        };
        device.nodes.push((message, access));
    }
    for (host, inside) in linux.net_devices().iter().flatten() {
        let inside = inside.name().clone().unwrap_or_else(|| host.clone());
        device.net_devices.push((host.clone(), inside));
    }
    device.net_devices.sort();
    let rdt = linux.intel_rdt().as_ref().map(serde_json::to_value).transpose();
    device.intel_rdt = rdt.map_err(|error| error.to_string())?;
    Ok(())
}

fn take_hooks(hooks: &oci::Hooks) -> Result<api::Hooks, String> {
    let stage = |hooks: &Option<Vec<oci::Hook>>| -> Result<Vec<api::Hook>, String> {
        hooks.iter().flatten().map(take_hook).collect()
    };
    Ok(api::Hooks {
        prestart: stage(hooks.prestart())?,
        create_runtime: stage(hooks.create_runtime())?,
        create_container: stage(hooks.create_container())?,
        start_container: stage(hooks.start_container())?,
        poststart: stage(hooks.poststart())?,
        poststop: stage(hooks.poststop())?,
        ..Default::default()
    })
}

fn take_hook(hook: &oci::Hook) -> Result<api::Hook, String> {
    let timeout = hook.timeout().filter(|seconds| *seconds != 0);
    Ok(api::Hook {
        path: plain(hook.path())?,
        args: hook.args().clone().unwrap_or_default(),
        env: hook.env().clone().unwrap_or_default(),
        timeout: timeout.map(Into::into).into(),
        ..Default::default()
    })
}

fn plain(path: &Path) -> Result<String, String> {
    let path = text(path);
    if is_plain_path(&path) { Ok(path) } else { Err(format!("\"{path}\" is not an absolute path")) }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
