// SPDX-License-Identifier: Apache-2.0
//! The engines that `install` supports, with the forms of commands that several of them share. This
//! module does no I/O. A new engine is a variant here and a row of `rows.rs`; other files never
//! decide by variant.

use clap::ValueEnum;
use serde_json::json;

use crate::named::named;

named! {
    /// An engine with which nri-runc can be registered, with its name on the command line and in
    /// records.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
    pub(super) enum Engine {
        /// containerd (CRI)
        Containerd => "containerd",
        /// CRI-O.
        #[value(alias = "cri-o")]
        Crio => "crio",
        /// Docker.
        Docker => "docker",
        /// Podman.
        Podman => "podman",
        /// nerdctl (needs no registration)
        Nerdctl => "nerdctl",
        /// iSulad.
        Isulad => "isulad",
    }
}

impl Engine {
    /// The engine of a distribution that is named without an engine.
    pub(super) const OF_DISTRIBUTIONS: Self = Self::Containerd;

    /// Whether Kubernetes distributions have this engine built in.
    pub(super) fn has_distributions(self) -> bool {
        self == Self::OF_DISTRIBUTIONS
    }
}

/// Returns the option (with a trailing space) by which a command selects the handler.
pub(super) fn option_for(name: &str, default: bool) -> String {
    if default { String::new() } else { format!("--runtime {name} ") }
}

/// Describes how pods use the handler; `crictl` is the command's name on the node.
pub(super) fn pods(crictl: &str, name: &str, default: bool) -> Vec<String> {
    if default {
        return vec![
            "every pod without a runtimeClassName".to_owned(),
            format!("{crictl} runp POD.json"),
        ];
    }
    let crictl = format!("{crictl} runp --runtime {name} POD.json");
    let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if name.len() > 63
        || !name.bytes().all(is_plain)
        || name.starts_with('-')
        || name.ends_with('-')
    {
        return vec![
            crictl,
            format!(
                "a Kubernetes RuntimeClass cannot use the handler name {name}: choose another with --name"
            ),
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
