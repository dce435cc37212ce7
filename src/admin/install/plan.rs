// SPDX-License-Identifier: Apache-2.0
//! What all engines have in common: which files they read, what is wished, and what would be
//! written. Pure: a plan is made from texts, and nobody has to follow it.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde_json::json;

use super::{containerd, crio, docker, podman};
use crate::error::{Error, Result};

/// The files that are there, by path.
pub(super) type Texts = BTreeMap<String, String>;

/// An engine that can be told of us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Engine {
    /// containerd's CRI: Kubernetes pods.
    Containerd,
    /// CRI-O.
    #[value(alias = "cri-o")]
    Crio,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// nerdctl, which needs no registration.
    Nerdctl,
}

/// Every engine.
pub(super) const ENGINES: [Engine; 5] =
    [Engine::Containerd, Engine::Crio, Engine::Docker, Engine::Podman, Engine::Nerdctl];

impl Engine {
    /// Its name on the command line and in records.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Crio => "crio",
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Nerdctl => "nerdctl",
        }
    }

    /// The programs by which an engine is known to be here.
    pub(super) fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Containerd => &["/usr/bin/containerd", "/usr/local/bin/containerd"],
            Self::Crio => &["/usr/bin/crio", "/usr/local/bin/crio"],
            Self::Docker => &["/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd"],
            Self::Podman => &["/usr/bin/podman", "/usr/local/bin/podman"],
            Self::Nerdctl => &["/usr/bin/nerdctl", "/usr/local/bin/nerdctl"],
        }
    }

    /// What makes it read its configuration again; `forgets` where something has gone from it.
    pub(super) fn reload(self, forgets: bool) -> &'static str {
        match self {
            Self::Containerd => "systemctl restart containerd",
            Self::Crio => "systemctl restart crio",
            // At a reload it keeps what the file no longer says, and ends where that leaves its
            // default runtime without an entry.
            Self::Docker if forgets => "systemctl restart docker",
            Self::Docker => "systemctl reload docker",
            Self::Podman | Self::Nerdctl => "",
        }
    }

    /// How containers use the handler, the usual way first.
    pub(super) fn usage(self, name: &str, binary: &str, default: bool) -> Vec<String> {
        let line = |line: String| vec![line];
        match self {
            Self::Containerd | Self::Crio => {
                let mut lines = pods(name, default);
                if self == Self::Containerd {
                    lines.push(format!(
                        "ctr run --runc-binary {binary} IMAGE ID (ctr reads no configuration)"
                    ));
                }
                lines
            }
            Self::Docker if default => line("docker run IMAGE".to_owned()),
            Self::Docker => line(format!("docker run --runtime {name} IMAGE")),
            Self::Podman if default => line("podman run IMAGE".to_owned()),
            Self::Podman => line(format!("podman --runtime {name} run IMAGE")),
            Self::Nerdctl => line(format!("nerdctl run --runtime {binary} IMAGE")),
        }
    }

    /// Where it reads; `texts` is what was read so far, which may name more.
    pub(super) fn sources(self, main: Option<&str>, texts: &Texts) -> Vec<Source> {
        match self {
            Self::Containerd => containerd::sources(main.unwrap_or(containerd::MAIN), texts),
            Self::Crio => crio::sources(),
            Self::Docker => vec![Source::File(main.unwrap_or(docker::MAIN).to_owned())],
            Self::Podman => podman::sources(),
            Self::Nerdctl => Vec::new(),
        }
    }

    /// What would have to be written.
    pub(super) fn plan(self, wish: &Wish, texts: &Texts) -> Result<Plan> {
        match self {
            Self::Containerd => containerd::plan(wish, texts),
            Self::Crio => crio::plan(wish, texts),
            Self::Docker => docker::plan(wish, texts),
            Self::Podman => podman::plan(wish, texts),
            Self::Nerdctl => nerdctl(wish),
        }
    }
}

/// Files of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// One file.
    File(String),
    /// The files of a folder whose names end so, in the order of their names.
    Folder(String, String),
}

/// What the operator wants.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    /// The handler's name.
    pub(super) name: String,
    /// Our program, as the engine is to call it.
    pub(super) binary: String,
    /// Make nri-runc the default runtime.
    pub(super) default: bool,
    /// The engine's main file, where it is not the usual one.
    pub(super) main: Option<String>,
    /// Where our plugins connect.
    pub(super) socket: String,
}

/// What would be written, and what to know about it.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Whole new texts by path; what is not named stays.
    pub(super) files: Texts,
    /// Things to know.
    pub(super) notes: Vec<String>,
}

impl Plan {
    /// Puts the text of one of our own files in: one that is there and says something else was
    /// written by somebody else.
    pub(super) fn own_file(&mut self, texts: &Texts, path: &str, text: String) -> Result<()> {
        if texts.get(path).is_some_and(|there| *there != text) {
            return Err(Error::new(format!("{path} is there and says something else"))
                .hint("it was written by hand: change it there, or move it away"));
        }
        self.files.insert(path.to_owned(), text);
        Ok(())
    }

    /// Says that the engine keeps its own NRI on the socket that ours wants.
    pub(super) fn clash(&mut self, who: &str, wish: &Wish, set: &str) {
        self.notes.push(format!(
            "{who} has an NRI of its own on {}: plugins would connect to that, or be run twice; set \
             {set}, or nri.socket_path and nri.plugin_path in /etc/nri-runc/config.toml",
            wish.socket
        ));
    }

    /// Says that the engine's containers had another runtime behind them.
    pub(super) fn other_runtime(&mut self, runtime: &str) {
        self.notes.push(format!(
            "containers ran with {runtime}: set runtime = \"{runtime}\" in /etc/nri-runc/config.toml \
             to keep using it"
        ));
    }
}

/// An entry of our name that is there already, and is not what we would write.
pub(super) fn taken(path: &str, entry: &str, what: &str) -> Error {
    Error::new(format!("{path} has {entry} already, with another {what}"))
        .hint("it was written by hand: change it there, or register under another name with --name")
}

/// A later file of the engine has the last word about its default.
pub(super) fn overruled(later: &str, key: &str) -> Error {
    Error::new(format!("{later} is read after ours and sets {key}"))
        .hint("change it there, or install without --default")
}

/// Pods of Kubernetes and of crictl.
fn pods(name: &str, default: bool) -> Vec<String> {
    if default {
        return vec![
            "every pod without a runtimeClassName".to_owned(),
            "crictl runp POD.json".to_owned(),
        ];
    }
    let crictl = format!("crictl runp --runtime {name} POD.json");
    let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if name.len() > 63
        || !name.bytes().all(is_plain)
        || name.starts_with('-')
        || name.ends_with('-')
    {
        return vec![
            crictl,
            format!("no RuntimeClass of Kubernetes can name {name}: --name takes another"),
        ];
    }
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": {"name": name}, "handler": name,
    });
    vec![
        format!(
            "runtimeClassName: {name} in the pod's spec, after: echo '{class}' | kubectl apply -f -"
        ),
        crictl,
    ]
}

fn nerdctl(wish: &Wish) -> Result<Plan> {
    if wish.default {
        return Err(Error::new("nerdctl.toml has no key for a default runtime")
            .hint(format!("name it with each container: nerdctl run --runtime {}", wish.binary)));
    }
    let mut plan = Plan::default();
    plan.notes.push(format!(
        "nerdctl takes the runtime with each container, there is nothing to write: nerdctl run \
         --runtime {} IMAGE",
        wish.binary
    ));
    Ok(plan)
}
