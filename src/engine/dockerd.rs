// SPDX-License-Identifier: Apache-2.0
//! The settings of a Docker daemon, from its command line and its configuration file. It reads no
//! file itself. Reference: dockerd(8).

use std::collections::BTreeMap;

use serde_json::Value;

/// The default configuration file.
const CONFIG_FILE: &str = "/etc/docker/daemon.json";

/// The default directory of images and containers.
pub(super) const DATA_ROOT: &str = "/var/lib/docker";

/// The default socket.
const SOCKET: &str = "/var/run/docker.sock";

/// A Docker daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerd {
    /// The daemon's configuration file.
    pub config_file: String,
    data_root: Option<String>,
    hosts: Vec<String>,
}

impl Default for Dockerd {
    fn default() -> Self {
        Self { config_file: CONFIG_FILE.to_owned(), data_root: None, hosts: Vec::new() }
    }
}

impl Dockerd {
    /// Parses a command line; `None` if it is another program's.
    pub fn of(words: &[Vec<u8>]) -> Option<Self> {
        let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
        let program = text(words.first()?);
        if program.rsplit('/').next() != Some("dockerd") {
            return None;
        }
        let mut dockerd = Self::default();
        let mut words = words.iter().skip(1).map(|word| text(word));
        while let Some(word) = words.next() {
            let Some((flag, value)) = flag_of(&word) else { continue };
            let Some(value) = value.map(str::to_owned).or_else(|| words.next()) else { break };
            match flag {
                DockerdFlag::ConfigFile => dockerd.config_file = value,
                DockerdFlag::DataRoot => dockerd.data_root = Some(value),
                DockerdFlag::Host => dockerd.hosts.push(value),
            }
        }
        Some(dockerd)
    }

    /// Returns the daemons whose command lines are among these files (`/proc/ID/cmdline`), each
    /// with its configuration file's settings.
    pub fn all(files: &BTreeMap<String, Vec<u8>>) -> Vec<Self> {
        let lines = files
            .iter()
            .filter(|(path, _)| path.starts_with("/proc/") && path.ends_with("/cmdline"));
        let all = lines.filter_map(|(_, line)| {
            let words: Vec<Vec<u8>> = line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
            let mut dockerd = Self::of(&words)?;
            let settings = files.get(&dockerd.config_file);
            let settings = settings.and_then(|bytes| serde_json::from_slice(bytes).ok());
            dockerd.read(&settings.unwrap_or(Value::Null));
            Some(dockerd)
        });
        all.collect()
    }

    /// Adds the settings of the daemon's configuration file. dockerd refuses to start if the file
    /// and the command line have the same setting.
    pub fn read(&mut self, settings: &Value) {
        for key in ["data-root", "graph"] {
            let said = settings[key].as_str().filter(|root| !root.is_empty());
            self.data_root = self.data_root.take().or_else(|| said.map(str::to_owned));
        }
        let hosts = settings["hosts"].as_array().into_iter().flatten().filter_map(Value::as_str);
        self.hosts.extend(hosts.map(str::to_owned));
    }

    /// Returns the daemon's directory of images and containers.
    pub fn data_root(&self) -> &str {
        self.data_root.as_deref().map_or(DATA_ROOT, |root| root.trim_end_matches('/'))
    }

    /// Returns the daemon's unix sockets; for `fd://`, systemd opens the default one.
    pub fn sockets(&self) -> Vec<String> {
        let named = self.hosts.iter().filter_map(|host| host.strip_prefix("unix://"));
        let mut sockets: Vec<String> = named.map(str::to_owned).collect();
        if self.hosts.is_empty() || self.hosts.iter().any(|host| host.starts_with("fd://")) {
            sockets.push(SOCKET.to_owned());
        }
        sockets
    }
}

enum DockerdFlag {
    ConfigFile,
    DataRoot,
    Host,
}

/// Returns a flag that matters here, and its value if that is in the same word.
fn flag_of(word: &str) -> Option<(DockerdFlag, Option<&str>)> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    match name {
        "--config-file" => Some((DockerdFlag::ConfigFile, value)),
        "--data-root" | "--graph" | "-g" => Some((DockerdFlag::DataRoot, value)),
        "--host" | "-H" => Some((DockerdFlag::Host, value)),
        _ if word.starts_with("-H") => Some((DockerdFlag::Host, word.get(2..))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn started(line: &str) -> Option<Dockerd> {
        let words: Vec<Vec<u8>> =
            line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect();
        Dockerd::of(&words)
    }

    #[test]
    fn the_command_line_yields_data_root_file_and_sockets() {
        for line in [
            "dockerd --data-root /srv/d -H unix:///run/a.sock",
            "/usr/bin/dockerd --data-root=/srv/d/ --host=unix:///run/a.sock -D",
            "dockerd -g /srv/d -Hunix:///run/a.sock -H tcp://127.0.0.1:2375",
        ] {
            let dockerd = started(line).unwrap();
            assert_eq!(dockerd.data_root(), "/srv/d", "{line}");
            assert_eq!(dockerd.sockets(), ["/run/a.sock"], "{line}");
            assert_eq!(dockerd.config_file, "/etc/docker/daemon.json");
        }
        let other = started("dockerd --config-file /srv/d.json").unwrap();
        assert_eq!(other.config_file, "/srv/d.json");
    }

    #[test]
    fn dockerds_file_adds_settings_to_its_command_line() {
        let mut dockerd = started("dockerd -H fd://").unwrap();
        assert_eq!((dockerd.data_root(), dockerd.sockets()), (DATA_ROOT, vec![SOCKET.into()]));
        dockerd.read(&json!({"data-root": "/srv/d", "hosts": ["unix:///run/b.sock"]}));
        assert_eq!(dockerd.data_root(), "/srv/d");
        assert_eq!(dockerd.sockets(), ["/run/b.sock", SOCKET]);
        dockerd.read(&json!({"data-root": 7, "hosts": "x"}));
        assert_eq!(dockerd.data_root(), "/srv/d");
    }

    #[test]
    fn other_programs_and_flags_without_a_value_yield_nothing() {
        for line in ["", "docker --data-root /x", "containerd --data-root /x", "dockerd-x -g /x"] {
            assert_eq!(started(line), None, "{line}");
        }
        assert_eq!(started("dockerd --data-root").unwrap(), Dockerd::default());
    }
}
