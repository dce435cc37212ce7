// SPDX-License-Identifier: Apache-2.0
//! The part of config.json that NRI has (OCI runtime-spec 1.3), and its conversion to messages.
//! `null` is read as absent, unknown keys are ignored, and enumerations stay text.

use std::collections::BTreeMap;

use oci_document::odd_document;
use protobuf::{EnumFull, EnumOrUnknown, MessageField};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::engine::Document;
use crate::error::{Error, Result, quoted};
use crate::plugin::api;

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> std::result::Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A part of the document. A part with a corresponding message lists all of the message's members,
/// so that a new member of the message breaks the build.
macro_rules! view {
    ($name:ident { $($field:ident $(= $key:literal)? : $type:ty),* $(,)? }) => {
        #[derive(Debug, Clone, Default, Deserialize)]
        pub(super) struct $name {
            $($(#[serde(rename = $key)])?
            #[serde(default, deserialize_with = "or_default")]
            pub(super) $field: $type,)*
        }
    };
    ($name:ident => $message:ident { $($field:ident $(= $key:literal)? : $type:ty),* $(,)? }) => {
        view!($name { $($field $(= $key)? : $type),* });

        impl Shown<api::$message> for $name {
            fn shown(&self) -> api::$message {
                api::$message {
                    $($field: self.$field.shown(),)*
                    special_fields: Default::default(),
                }
            }
        }
    };
}

/// A value of the document that is converted to a value of a message.
pub(super) trait Shown<T> {
    fn shown(&self) -> T;
}

macro_rules! shown_as_they_are {
    ($($type:ty),*) => {$(
        impl Shown<$type> for $type {
            fn shown(&self) -> $type {
                self.clone()
            }
        }
    )*};
}

shown_as_they_are!(String, bool, i32, i64, u32, u64);

impl<V: Shown<M>, M> Shown<Vec<M>> for Vec<V> {
    fn shown(&self) -> Vec<M> {
        self.iter().map(Shown::shown).collect()
    }
}

impl<V: Clone, M: From<V>> Shown<MessageField<M>> for Option<V> {
    fn shown(&self) -> MessageField<M> {
        self.clone().map(M::from).into()
    }
}

/// Converts an enumeration's name; an unknown name becomes 0.
impl<E: EnumFull> Shown<EnumOrUnknown<E>> for String {
    fn shown(&self) -> EnumOrUnknown<E> {
        let value = E::enum_descriptor().value_by_name(self).map_or(0, |value| value.value());
        EnumOrUnknown::from_i32(value)
    }
}

/// A config.json.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Spec {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) process: Process,
    #[serde(default, deserialize_with = "or_default")]
    root: RootFs,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) mounts: Vec<Mount>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) hooks: Hooks,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) linux: Linux,
}

impl Spec {
    /// Reads a document.
    ///
    /// # Errors
    /// Fails when it is invalid JSON or ambiguous, or a member has another type than specified.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let unread = |why: &dyn std::fmt::Display| {
            Error::new(format!("config.json cannot be read: {}", quoted(&why.to_string())))
        };
        match odd_document(bytes) {
            Ok(None) => serde_json::from_slice(bytes).map_err(|error| unread(&error)),
            Ok(Some(document)) => serde_json::from_value(document).map_err(|error| {
                let error = error.to_string();
                // Parsing the text again adds a line number; that error is used only if it is the
                // same one.
                let placed = serde_json::from_slice::<Self>(bytes).err().map(|e| e.to_string());
                let placed = placed.filter(|placed| placed.starts_with(&format!("{error} at ")));
                unread(&placed.unwrap_or(error))
            }),
            Err(error) => Err(Error::new(error.to_string())),
        }
    }

    /// Returns the members from which the engine is detected and its facts are read.
    pub fn for_engine(&self) -> Document<'_> {
        let mounts = self.mounts.iter();
        let namespaces = self.linux.namespaces.iter();
        let block_io = self.linux.resources.get("blockIO").and_then(Value::as_object);
        Document {
            annotations: &self.annotations,
            root_path: &self.root.path,
            cgroups_path: &self.linux.cgroups_path,
            mounts: mounts.map(|mount| (&*mount.destination, &*mount.source)).collect(),
            namespaces: namespaces.map(|space| (&*space.type_, &*space.path)).collect(),
            clos: self.linux.rdt.as_ref().map(|rdt| &*rdt.clos_id),
            limits_block_io: block_io.is_some_and(|block| !block.is_empty()),
            has_seccomp: self.linux.seccomp.is_some(),
        }
    }

    /// Returns the document's resources as the engine wrote them.
    pub fn resources(&self) -> Map<String, Value> {
        self.linux.resources.clone()
    }
}

view!(RootFs { path: String });
view!(User => User { uid: u32, gid: u32, additional_gids = "additionalGids": Vec<u32>, });
view!(Rlimit => POSIXRlimit { type_ = "type": String, hard: u64, soft: u64, });
view!(IoPriority => LinuxIOPriority { class: String, priority: i32 });
view!(Scheduler => LinuxScheduler {
    policy: String,
    nice: i32,
    priority: i32,
    flags: Vec<String>,
    runtime: u64,
    deadline: u64,
    period: u64,
});
view!(Process {
    user: User,
    args: Vec<String>,
    env: Vec<String>,
    rlimits: Vec<Rlimit>,
    oom_score_adj = "oomScoreAdj": Option<i64>,
    io_priority = "ioPriority": Option<IoPriority>,
    scheduler: Option<Scheduler>,
});
view!(Mount => Mount {
    destination: String,
    type_ = "type": String,
    source: String,
    options: Vec<String>,
});
view!(Hook => Hook {
    path: String,
    args: Vec<String>,
    env: Vec<String>,
    timeout: Option<i64>,
});
view!(Hooks => Hooks {
    prestart: Vec<Hook>,
    create_runtime = "createRuntime": Vec<Hook>,
    create_container = "createContainer": Vec<Hook>,
    start_container = "startContainer": Vec<Hook>,
    poststart: Vec<Hook>,
    poststop: Vec<Hook>,
});
view!(Namespace => LinuxNamespace { type_ = "type": String, path: String, });
view!(Device => LinuxDevice {
    path: String,
    type_ = "type": String,
    major: i64,
    minor: i64,
    file_mode = "fileMode": Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
});
view!(NetDevice => LinuxNetDevice { name: String });
view!(Rdt {
    clos_id = "closID": String,
    schemata: Vec<String>,
    enable_monitoring = "enableMonitoring": bool,
});
view!(SyscallArg => LinuxSeccompArg {
    index: u32,
    value: u64,
    value_two = "valueTwo": u64,
    op: String,
});
view!(Syscall => LinuxSyscall {
    names: Vec<String>,
    action: String,
    errno_ret = "errnoRet": Option<u32>,
    args: Vec<SyscallArg>,
});
view!(Seccomp => LinuxSeccomp {
    default_action = "defaultAction": String,
    default_errno = "defaultErrnoRet": Option<u32>,
    architectures: Vec<String>,
    flags: Vec<String>,
    listener_path = "listenerPath": String,
    listener_metadata = "listenerMetadata": String,
    syscalls: Vec<Syscall>,
});
view!(Linux {
    namespaces: Vec<Namespace>,
    devices: Vec<Device>,
    cgroups_path = "cgroupsPath": String,
    resources: Map<String, Value>,
    sysctl: BTreeMap<String, String>,
    net_devices = "netDevices": BTreeMap<String, NetDevice>,
    rdt = "intelRdt": Option<Rdt>,
    seccomp: Option<Seccomp>,
});
