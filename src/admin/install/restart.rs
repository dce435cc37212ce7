// SPDX-License-Identifier: Apache-2.0
//! The command that makes an engine reload its configuration. For a distribution's containerd, the
//! command restarts the distribution's service, which is found by its process, its init script or
//! its units. This module only reads.

use super::distribution::Distribution;
use super::engine::Engine;
use super::root::Root;
use super::{detect, running};
use crate::host::Host;
use crate::presence::IfThere;
use crate::procfs;

/// Directories of units, those of enabled units first.
const UNIT_FOLDERS: [&str; 6] = [
    "/etc/systemd/system/multi-user.target.wants",
    "/etc/systemd/system/snap.microk8s.target.wants",
    "/etc/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Returns the command that makes the engine reload its main file `main`; `removes`: an entry was removed there.
pub(super) fn command(engine: Engine, main: Option<&str>, removes: bool, root: &Root) -> String {
    match distribution(engine, main, root) {
        None => engine.reload_command(removes),
        // k0s watches its directory of imports, and restarts containerd by itself.
        Some(Distribution::K0s) => String::new(),
        Some(distribution) => service(distribution, main, "restart", root),
    }
}

/// Returns all commands after a change: for other engines whose NRI was switched off or on again,
/// then for the engine itself.
pub(super) fn commands(
    others: &[Engine],
    engine: Engine,
    main: Option<&str>,
    removes_entry: bool,
    root: &Root,
) -> Vec<String> {
    let all = others.iter().map(|other| {
        let host = root.processes();
        let file = running::unusual_file(*other, &host).filter(|_| !root.is_confined());
        command(*other, file.as_deref(), true, root)
    });
    all.chain([command(engine, main, removes_entry, root)]).collect()
}

/// Returns the command for an engine that has not loaded its changed configuration.
pub(super) fn again(engine: Engine, main: Option<&str>, removes: bool, root: &Root) -> String {
    match distribution(engine, main, root) {
        Some(Distribution::K0s) => service(Distribution::K0s, main, "restart", root),
        Some(_) | None => command(engine, main, removes, root),
    }
}

/// Returns the command that starts an engine.
pub(super) fn start_command(engine: Engine, main: Option<&str>, root: &Root) -> String {
    match distribution(engine, main, root) {
        None => format!("systemctl start {}", engine.name()),
        Some(distribution) => service(distribution, main, "start", root),
    }
}

/// Returns a note for k0s, which restarts its containerd by itself.
pub(super) fn note(engine: Engine, main: Option<&str>) -> Option<String> {
    let is_k0s = engine.has_distributions() && detect::of(main) == Some(Distribution::K0s);
    is_k0s.then(|| "k0s notices the change itself, and restarts its containerd".to_owned())
}

fn distribution(engine: Engine, main: Option<&str>, root: &Root) -> Option<Distribution> {
    if !engine.has_distributions() {
        return None;
    }
    let is_flatcar = || main.is_none() && detect::is_flatcar(root);
    detect::of(main).or_else(|| is_flatcar().then_some(Distribution::Flatcar))
}

fn service(distribution: Distribution, main: Option<&str>, verb: &str, root: &Root) -> String {
    let host = root.processes();
    let its = main.filter(|_| !root.is_confined());
    let pid = its.and_then(|main| running::containerd_pid(main, &host));
    if let Some(unit) = pid.and_then(|pid| unit_of(&host, pid)) {
        return format!("systemctl {verb} {unit}");
    }
    if let Some(name) = distribution.units().iter().find(|name| is_initd(root, name)) {
        return format!("rc-service {name} {verb}");
    }
    if pid.is_some() && is_first_process(&host, distribution) {
        // The node is a container, as with k3d, and restarts when its first process exits.
        return "kill 1".to_owned();
    }
    let files = UNIT_FOLDERS.iter().flat_map(|folder| {
        let units = distribution.units().iter();
        units.map(move |unit| (format!("{folder}/{unit}.service"), *unit))
    });
    let known = files.into_iter().find(|(path, _)| root.has(path)).map(|(_, unit)| unit);
    let unit = known.or_else(|| distribution.units().first().copied()).unwrap_or("containerd");
    let reload =
        if distribution == Distribution::Flatcar { "systemctl daemon-reload && " } else { "" };
    format!("{reload}systemctl {verb} {unit}")
}

/// Returns the name of the systemd service in whose cgroup a process is, without `.service`.
fn unit_of(host: &Host, pid: u32) -> Option<String> {
    let text = crate::files::read_kernel(&host.path(format!("/proc/{pid}/cgroup"))).ok()?;
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut parts = paths.flat_map(|path| path.rsplit('/'));
    let unit = parts.find_map(|part| part.strip_suffix(".service"))?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:".contains(c);
    unit.chars().all(is_plain).then(|| unit.to_owned())
}

fn is_initd(root: &Root, name: &str) -> bool {
    !root.has("/run/systemd/system") && root.has_file(&format!("/etc/init.d/{name}"))
}

/// Whether process 1 is the distribution itself, or the launcher that starts it in a container.
fn is_first_process(host: &Host, distribution: Distribution) -> bool {
    let words = procfs::command_line(host, 1).or_absent().unwrap_or_default();
    words.iter().any(|word| {
        let word = String::from_utf8_lossy(word);
        word.rsplit('/').next() == Some(distribution.name())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const K3S: &str = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";

    fn place(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let temp = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = temp.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            crate::files::replace(&path, text.as_bytes()).unwrap();
        }
        let host = Host::new(&temp.path().display().to_string(), "");
        (temp, Root::of_host(host))
    }

    fn of(main: &str, files: &[(&str, &str)]) -> String {
        let (_temp, root) = place(files);
        command(Engine::Containerd, Some(main), false, &root)
    }

    #[test]
    fn the_unit_is_that_of_the_running_process() {
        let line = format!("containerd\0-c\0{K3S}\0");
        let words = ("proc/7/cmdline", line.as_str());
        let unit = |cgroup| of(K3S, &[words, ("proc/7/cgroup", cgroup)]);
        assert_eq!(unit("0::/system.slice/k3s-agent.service\n"), "systemctl restart k3s-agent");
        assert_eq!(
            unit("12:memory:/system.slice/k3s-blue.service/x\n1:name=systemd:/x\n"),
            "systemctl restart k3s-blue"
        );
        assert_eq!(unit("0::/a b;c.service\n"), "systemctl restart k3s", "no word for a shell");
        let first = ("proc/1/cmdline", "/bin/k3s\0server\0");
        assert_eq!(of(K3S, &[words, ("proc/7/cgroup", "0::/\n"), first]), "kill 1");
    }

    #[test]
    fn without_a_process_an_installed_unit_names_the_service() {
        let rke2 = Distribution::Rke2.main();
        assert_eq!(of(rke2, &[]), "systemctl restart rke2-server");
        let both = ["rke2-server", "rke2-agent"]
            .map(|unit| format!("usr/local/lib/systemd/system/{unit}.service"));
        let wants = "etc/systemd/system/multi-user.target.wants/rke2-agent.service";
        let files = [(both[0].as_str(), ""), (both[1].as_str(), ""), (wants, "")];
        assert_eq!(of(rke2, &files), "systemctl restart rke2-agent");
        assert_eq!(of(K3S, &[("etc/init.d/k3s-agent", "")]), "rc-service k3s-agent restart");
        let first = ("proc/1/cmdline", "/bin/k3s\0server\0");
        assert_eq!(of(K3S, &[first]), "systemctl restart k3s", "no containerd of its runs");
    }

    #[test]
    fn k0s_needs_a_command_only_if_it_missed_the_change() {
        let main = Distribution::K0s.main();
        assert_eq!(of(main, &[]), "");
        let (_temp, root) = place(&[("etc/systemd/system/k0sworker.service", "")]);
        let again = again(Engine::Containerd, Some(main), false, &root);
        assert_eq!(again, "systemctl restart k0sworker");
        assert!(note(Engine::Containerd, Some(main)).is_some_and(|note| note.contains("k0s")));
        assert_eq!(note(Engine::Containerd, Some(K3S)), None);
    }

    #[test]
    fn engines_outside_of_distributions_are_restarted_by_unit() {
        let (_temp, root) = place(&[]);
        let of = |engine, removes| command(engine, None, removes, &root);
        assert_eq!(of(Engine::Containerd, false), "systemctl restart containerd");
        assert_eq!(of(Engine::Docker, true), "systemctl restart docker");
        assert_eq!(start_command(Engine::Crio, None, &root), "systemctl start crio");
    }
}
