// SPDX-License-Identifier: Apache-2.0
//! The engines' processes on this host, found by their command lines. A container's process may use
//! any name, so only processes with this process's UID, in its PID namespace, are examined.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::engine::Dockerd;
use crate::host::Host;
use crate::presence::{self, IfThere};
use crate::procfs::{command_line, is_of_this_host, parent_of};

use super::read;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    /// The process's PID.
    pub pid: u32,
    /// The process's command line.
    pub words: Vec<Vec<u8>>,
}

impl Process {
    /// Returns the name of the process's program, from argv[0].
    pub(crate) fn program(&self) -> String {
        let first = self.words.first().map(Vec::as_slice).unwrap_or_default();
        let first = String::from_utf8_lossy(first);
        first.rsplit('/').next().unwrap_or_default().to_owned()
    }
}

/// Returns the command lines of `parent`, the parent process of `pid`, and of the process above it.
/// A process that has ended meanwhile is left out, because its PID may belong to another process
/// (even a container's, which may use any name).
///
/// # Errors
/// Fails when a process cannot be read, because such a caller must not be treated as absent.
pub(crate) fn callers(host: &Host, pid: u32, parent: u32) -> io::Result<[Vec<Vec<u8>>; 2]> {
    let grandparent = parent_of(host, parent)?;
    let above = command_line(host, parent)?;
    let further = match grandparent {
        Some(grandparent) => command_line(host, grandparent)?,
        None => Vec::new(),
    };
    let is_still = |child: u32, caller: Option<u32>| {
        let now = parent_of(host, child)?;
        io::Result::Ok(now.is_none() || now == caller)
    };
    Ok(match (is_still(pid, Some(parent))?, is_still(parent, grandparent)?) {
        (false, _) => Default::default(),
        (true, false) => [above, Vec::new()],
        (true, true) => [above, further],
    })
}

/// Returns the processes whose program has one of these names, lowest PID first.
pub(crate) fn processes(host: &Host, names: &[&str]) -> Vec<Process> {
    let mut found = Vec::new();
    for entry in presence::entries(&host.path("/proc")).or_absent().into_iter().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if !is_of_this_host(host, pid) {
            continue;
        }
        let Some(words) = command_line(host, pid).or_absent() else { continue };
        let process = Process { pid, words };
        if names.contains(&process.program().as_str()) {
            found.push(process);
        }
    }
    found.sort_by_key(|process| process.pid);
    found
}

/// Returns the running Docker daemons, each with the settings of its configuration file.
pub(crate) fn dockers(host: &Host) -> Vec<(Process, Dockerd)> {
    let all = processes(host, &["dockerd"]).into_iter().filter_map(|process| {
        let mut dockerd = Dockerd::of(&process.words)?;
        let settings = read_linked(&host.path(&dockerd.config_file));
        let settings = settings.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        dockerd.read(&settings.unwrap_or_default());
        Some((process, dockerd))
    });
    all.collect()
}

/// Returns the command lines and configuration files of the Docker daemons, by path.
pub(super) fn docker_files(host: &Host) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for process in processes(host, &["dockerd"]) {
        let file = Dockerd::of(&process.words).map(|dockerd| dockerd.config_file);
        if let Some(file) = file.filter(|file| file.starts_with('/'))
            && let Some(bytes) = read_linked(&host.path(&file))
        {
            files.insert(file, bytes);
        }
        files.insert(format!("/proc/{}/cmdline", process.pid), process.words.join(&0));
    }
    files
}

/// Reads a regular file. Links are followed, because the file belongs to an administrator or the
/// kernel.
fn read_linked(path: &Path) -> Option<Vec<u8>> {
    read(&std::fs::canonicalize(path).or_absent()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    fn host(processes: &[(u32, &str)]) -> (tempfile::TempDir, Host) {
        let temp = tempfile::tempdir().unwrap();
        for (pid, line) in processes {
            let folder = temp.path().join("proc").join(pid.to_string());
            std::fs::create_dir_all(folder.join("ns")).unwrap();
            let line = line.replace(' ', "\0") + "\0";
            files::replace(&folder.join("cmdline"), line.as_bytes()).unwrap();
        }
        let host = Host::new(&temp.path().display().to_string(), "");
        (temp, host)
    }

    #[test]
    fn a_docker_daemon_is_found_with_its_file() {
        let (temp, host) =
            host(&[(7, "/usr/bin/dockerd --config-file /etc/d.json"), (8, "dockerd-rootless")]);
        std::fs::create_dir_all(temp.path().join("etc")).unwrap();
        files::replace(&temp.path().join("etc/real.json"), br#"{"data-root":"/srv/d"}"#).unwrap();
        std::os::unix::fs::symlink("real.json", temp.path().join("etc/d.json")).unwrap();
        let found = Dockerd::all(&docker_files(&host));
        assert_eq!(found.iter().map(Dockerd::data_root).collect::<Vec<_>>(), ["/srv/d"]);
        let found = dockers(&host);
        assert_eq!(found.iter().map(|(_, its)| its.data_root()).collect::<Vec<_>>(), ["/srv/d"]);
    }

    #[test]
    fn an_exited_caller_is_unknown_even_if_its_pid_is_reused() {
        let (temp, host) = host(&[(7, "conmon -n k8s_a"), (5, "crio"), (9, "nri-runc create")]);
        let parents = |pairs: &[(u32, u32)]| {
            for (pid, parent) in pairs {
                let stat = format!("{pid} (a (b) c) S {parent} 1 1");
                let file = temp.path().join(format!("proc/{pid}/stat"));
                files::replace(&file, stat.as_bytes()).unwrap();
            }
            callers(&host, 9, 7).unwrap().map(|words| words.join(&b' '))
        };
        assert_eq!(parents(&[(9, 7), (7, 5)]), [b"conmon -n k8s_a".to_vec(), b"crio".to_vec()]);
        assert_eq!(parents(&[(9, 1)]), [b"", b""], "9 has another parent by now");
        let nobody: [Vec<Vec<u8>>; 2] = Default::default();
        assert_eq!(callers(&host, 9, 8).unwrap(), nobody, "no process has this PID");
    }

    #[test]
    fn a_container_process_named_dockerd_is_not_dockerd() {
        let (temp, host) = host(&[(7, "dockerd -g /tenant"), (8, "dockerd -g /srv/d")]);
        let namespace = |pid: &str, name: &str| {
            let path = temp.path().join("proc").join(pid).join("ns");
            std::fs::create_dir_all(&path).unwrap();
            std::os::unix::fs::symlink(name, path.join("pid")).unwrap();
        };
        namespace("self", "pid:[1]");
        namespace("7", "pid:[2]");
        namespace("8", "pid:[1]");
        let found = Dockerd::all(&docker_files(&host));
        assert_eq!(found.iter().map(Dockerd::data_root).collect::<Vec<_>>(), ["/srv/d"]);
        let found = dockers(&host);
        assert_eq!(found.iter().map(|(_, its)| its.data_root()).collect::<Vec<_>>(), ["/srv/d"]);
    }
}
