// SPDX-License-Identifier: Apache-2.0
//! The kernel's behaviour for resctrl's files: groups as long as there are class IDs, schemata of
//! two caches and two memory controllers, threads by group, and the text of `info/last_cmd_status`
//! for each refusal. A test can make the next command of a kind fail. No cache is divided.
//! Reference: kernel `filesystems/resctrl.rst`; its errors are those of version 6.12.

use std::collections::{BTreeMap, BTreeSet};

use nix::errno::Errno;

use super::fuse::{Node, Tree};

/// Number of the cache's ways, the maximum bits of a mask.
const WAYS: u32 = 20;
/// Domains (sockets) of each resource.
const DOMAINS: [u32; 2] = [0, 1];
/// Percent of memory bandwidth, minimum and step.
const BANDWIDTH: u32 = 10;

/// A command that a test makes fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// A thread enters a group.
    Tasks,
    /// A group is created.
    Mkdir,
}

/// A control group, or a monitoring group in one.
#[derive(Debug, Clone)]
struct Group {
    /// The masks and the bandwidths by domain.
    masks: [u32; 2],
    bandwidths: [u32; 2],
    tasks: BTreeSet<u32>,
    /// The number of threads that were written into it.
    entered: usize,
}

impl Group {
    fn new() -> Self {
        let all = (1 << WAYS) - 1;
        Self { masks: [all; 2], bandwidths: [100; 2], tasks: BTreeSet::new(), entered: 0 }
    }

    fn schemata(&self) -> String {
        let ([a, b], [x, y]) = (self.masks, self.bandwidths);
        format!("    L3:0={a:05x};1={b:05x}\n    MB:0={x:4};1={y:4}\n")
    }
}

/// All of resctrl. Groups have their paths: `` is the default group, `gold/mon_groups/c1` monitors.
#[derive(Debug)]
pub struct Kernel {
    groups: BTreeMap<String, Group>,
    class_ids: usize,
    status: String,
    refused: Vec<(Command, usize, Errno, String)>,
}

impl Kernel {
    /// A resctrl whose processor has `class_ids` class IDs.
    pub(super) fn new(class_ids: usize) -> Self {
        let groups = BTreeMap::from([(String::new(), Group::new())]);
        Self { groups, class_ids, status: "ok".to_owned(), refused: Vec::new() }
    }

    /// Creates a group, as the host's administrator does.
    pub fn group(&mut self, path: &str) {
        self.mkdir(path).unwrap();
    }

    /// Removes a group, as the host's administrator does.
    pub fn remove(&mut self, path: &str) {
        self.rmdir(path).unwrap();
    }

    /// The groups below the default one, with their monitoring groups.
    pub fn groups(&self) -> Vec<String> {
        self.groups.keys().filter(|path| !path.is_empty()).cloned().collect()
    }

    /// The running threads that were written into a group and have not left it. The kernel's groups
    /// also have the threads that they start there.
    pub fn tasks(&self, group: &str) -> BTreeSet<u32> {
        let tasks = self.groups.get(group).map(|group| group.tasks.clone()).unwrap_or_default();
        tasks.into_iter().filter(|task| is_there(*task)).collect()
    }

    /// The number of threads that were written into a group.
    pub fn entered(&self, group: &str) -> usize {
        self.groups.get(group).map_or(0, |group| group.entered)
    }

    /// The group's schemata as its file shows them.
    pub fn schemata(&self, group: &str) -> String {
        self.groups[group].schemata()
    }

    /// Refuses a command of this kind, after the next `after` of them.
    pub fn refuse(&mut self, command: Command, after: usize, errno: Errno, status: &str) {
        self.refused.push((command, after, errno, status.to_owned()));
    }

    /// Makes a command fail with this text.
    fn fail<T>(&mut self, errno: Errno, status: impl Into<String>) -> Result<T, Errno> {
        self.status = status.into();
        Err(errno)
    }

    fn refuse_if_asked(&mut self, command: Command) -> Result<(), Errno> {
        "ok".clone_into(&mut self.status);
        let Some(at) = self.refused.iter().position(|refused| refused.0 == command) else {
            return Ok(());
        };
        if self.refused[at].1 > 0 {
            self.refused[at].1 -= 1;
            return Ok(());
        }
        let (_, _, errno, status) = self.refused.remove(at);
        self.fail(errno, status)
    }

    fn info(&self, path: &str) -> Option<Node> {
        let dir = |names: &[&str]| Some(Node::Dir(names.iter().map(|n| (*n).to_owned()).collect()));
        let file = |text: &str| Some(Node::File(format!("{text}\n")));
        match path {
            "info" => dir(&["last_cmd_status", "L3/", "MB/", "L3_MON/"]),
            "info/last_cmd_status" => file(&self.status),
            "info/L3" => dir(&["cbm_mask", "min_cbm_bits", "num_closids", "shareable_bits"]),
            "info/L3/cbm_mask" => file("fffff"),
            "info/L3/min_cbm_bits" => file("1"),
            "info/L3/shareable_bits" => file("0"),
            "info/MB" => dir(&["bandwidth_gran", "delay_linear", "min_bandwidth", "num_closids"]),
            "info/MB/bandwidth_gran" | "info/MB/min_bandwidth" => file(&BANDWIDTH.to_string()),
            "info/MB/delay_linear" => file("1"),
            "info/L3/num_closids" | "info/MB/num_closids" => file(&self.class_ids.to_string()),
            "info/L3_MON" => dir(&["mon_features", "num_rmids"]),
            "info/L3_MON/mon_features" => file("llc_occupancy\nmbm_total_bytes\nmbm_local_bytes"),
            "info/L3_MON/num_rmids" => file("64"),
            _ => None,
        }
    }

    /// The names directly below a path that is a group or `mon_groups`.
    fn below(&self, path: &str) -> Vec<String> {
        let before = if path.is_empty() { String::new() } else { format!("{path}/") };
        let names = self.groups.keys().filter_map(|group| group.strip_prefix(&before));
        let names = names.filter(|name| !name.is_empty() && !name.contains('/'));
        names.map(|name| format!("{name}/")).collect()
    }

    fn set_schemata(&mut self, path: &str, text: &str) -> Result<(), Errno> {
        "ok".clone_into(&mut self.status);
        let Some(lines) = text.strip_suffix('\n') else { return Err(Errno::EINVAL) };
        let mut group = self.groups[path].clone();
        for line in lines.split('\n') {
            if let Err(status) = set_line(&mut group, line) {
                return self.fail(Errno::EINVAL, status);
            }
        }
        self.groups.insert(path.to_owned(), group);
        Ok(())
    }

    fn move_task(&mut self, path: &str, text: &str) -> Result<(), Errno> {
        self.refuse_if_asked(Command::Tasks)?;
        let Ok(task) = text.trim().parse::<u32>() else {
            return self.fail(Errno::EINVAL, format!("Task list parsing error pid {text}"));
        };
        if !is_there(task) {
            return self.fail(Errno::ESRCH, format!("No task {task}"));
        }
        if let Some((parent, _)) = parts(path)
            && !self.is_in(parent, task)
        {
            return self.fail(Errno::EINVAL, "Can't move task to different control group");
        }
        for group in self.groups.values_mut() {
            group.tasks.remove(&task);
        }
        let group = self.groups.get_mut(path).unwrap();
        group.tasks.insert(task);
        group.entered += 1;
        Ok(())
    }

    /// Whether the thread is in a control group or in a monitoring group of it; all threads that
    /// were not moved are in the default group.
    fn is_in(&self, control: &str, task: u32) -> bool {
        let of = |path: &str| parts(path).map_or(path, |(parent, _)| parent).to_owned();
        let found = self.groups.iter().find(|(_, group)| group.tasks.contains(&task));
        found.map_or(control.is_empty(), |(path, _)| of(path) == control)
    }
}

impl Tree for Kernel {
    fn look(&self, path: &str) -> Option<Node> {
        if path == "info" || path.starts_with("info/") {
            return self.info(path);
        }
        if self.groups.contains_key(path) {
            let mut names: Vec<String> = vec!["tasks".to_owned(), "cpus_list".to_owned()];
            names.push("mon_data/".to_owned());
            if parts(path).is_none() {
                names.extend(["schemata", "mode", "mon_groups/"].map(str::to_owned));
            }
            if path.is_empty() {
                names.push("info/".to_owned());
                names.extend(self.below(""));
            }
            return Some(Node::Dir(names));
        }
        let (group, file) = path.rsplit_once('/').unwrap_or(("", path));
        let of = self.groups.get(group)?;
        match file {
            "mon_data" => Some(Node::Dir(Vec::new())),
            "mon_groups" if parts(group).is_none() => Some(Node::Dir(self.below(path))),
            "schemata" if parts(group).is_none() => Some(Node::File(of.schemata())),
            "mode" if parts(group).is_none() => Some(Node::File("shareable\n".to_owned())),
            "cpus_list" => Some(Node::File("\n".to_owned())),
            "tasks" => {
                Some(Node::File(self.tasks(group).iter().map(|task| format!("{task}\n")).collect()))
            }
            _ => None,
        }
    }

    fn write(&mut self, path: &str, bytes: &[u8]) -> Result<(), Errno> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (group, file) = path.rsplit_once('/').unwrap_or(("", path));
        if !self.groups.contains_key(group) {
            return Err(Errno::ENOENT);
        }
        match file {
            "tasks" => self.move_task(group, &text),
            "schemata" => self.set_schemata(group, &text),
            _ => Err(Errno::EACCES),
        }
    }

    fn mkdir(&mut self, path: &str) -> Result<(), Errno> {
        self.refuse_if_asked(Command::Mkdir)?;
        if self.look(path).is_some() {
            return Err(Errno::EEXIST);
        }
        let is_control = !path.contains('/');
        if !is_control && parts(path).is_none_or(|(parent, _)| !self.groups.contains_key(parent)) {
            return Err(Errno::EPERM);
        }
        let control = self.groups.keys().filter(|path| parts(path).is_none()).count();
        if is_control && control >= self.class_ids {
            return self.fail(Errno::ENOSPC, "Out of CLOSIDs");
        }
        self.groups.insert(path.to_owned(), Group::new());
        Ok(())
    }

    fn rmdir(&mut self, path: &str) -> Result<(), Errno> {
        if path.is_empty() || !self.groups.contains_key(path) {
            return Err(Errno::EPERM);
        }
        let below = format!("{path}/");
        self.groups.retain(|group, _| group != path && !group.starts_with(&below));
        Ok(())
    }
}

fn is_there(task: u32) -> bool {
    std::path::Path::new(&format!("/proc/{task}")).exists()
}

/// The control group of a monitoring group, and its name there.
fn parts(path: &str) -> Option<(&str, &str)> {
    match path.strip_prefix("mon_groups/") {
        Some(name) => Some(("", name)),
        None => path.split_once("/mon_groups/"),
    }
}

/// Sets one line, or nothing; the error is the text of `last_cmd_status`.
fn set_line(group: &mut Group, line: &str) -> Result<(), String> {
    let Some((resource, values)) = line.trim().split_once(':') else {
        return Err("Missing ':'".to_owned());
    };
    if values.is_empty() {
        return Err(format!("Missing '{resource}' value"));
    }
    let kind = resource.trim();
    if !matches!(kind, "L3" | "MB") {
        return Err(format!("Unknown or unsupported resource name '{kind}'"));
    }
    let mut seen = BTreeSet::new();
    for entry in values.split(';') {
        let parsed = entry
            .split_once('=')
            .and_then(|(id, value)| Some((id.trim().parse::<u32>().ok()?, value.trim())));
        let (domain, value) = parsed.ok_or("Missing '=' or non-numeric domain")?;
        // The kernel has no text for a missing domain.
        let at = DOMAINS.iter().position(|known| *known == domain).ok_or("ok")?;
        if !seen.insert(domain) {
            return Err(format!("Duplicate domain {domain}"));
        }
        match kind {
            "L3" => group.masks[at] = mask(value)?,
            _ => group.bandwidths[at] = bandwidth(value)?,
        }
    }
    Ok(())
}

fn mask(value: &str) -> Result<u32, String> {
    let mask = u32::from_str_radix(value, 16);
    let mask = mask.map_err(|_odd| format!("Non-hex character in the mask {value}"))?;
    if mask == 0 || mask >= 1 << WAYS {
        return Err("Mask out of range".to_owned());
    }
    let shifted = mask >> mask.trailing_zeros();
    if shifted & (shifted + 1) != 0 {
        return Err(format!("The mask {mask:x} has non-consecutive 1-bits"));
    }
    Ok(mask)
}

fn bandwidth(value: &str) -> Result<u32, String> {
    let percent = value.parse::<u32>();
    let percent = percent.map_err(|_odd| format!("Invalid MB value {value}"))?;
    if !(BANDWIDTH..=100).contains(&percent) {
        return Err(format!("MB value {percent} out of range [{BANDWIDTH},100]"));
    }
    Ok(percent.next_multiple_of(BANDWIDTH))
}
