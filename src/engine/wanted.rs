// SPDX-License-Identifier: Apache-2.0
//! The host data that an engine's file requests, and the results. Data only: `src/sources` reads
//! it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Dockerd;

/// The requested files and records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Files by their path on the host; they may be missing.
    pub files: Vec<String>,
    /// Records of containerd.
    pub store: Option<StoreQuery>,
}

impl Wanted {
    /// Requests only files.
    pub(super) fn files(files: impl IntoIterator<Item = Option<String>>) -> Self {
        Self { files: files.into_iter().flatten().collect(), store: None }
    }
}

/// A query to containerd's store of containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreQuery {
    /// containerd's socket.
    pub socket: String,
    /// containerd's namespace.
    pub namespace: String,
    /// Container IDs.
    pub ids: Vec<String>,
    /// Whether the digests of the containers' images are requested too.
    pub with_images: bool,
}

/// A record of containerd's store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreRecord {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Image name.
    pub image: String,
    /// Digest of the image, if requested and known; empty if its name was assigned again after the
    /// container's creation.
    pub image_digest: String,
    /// Creation time: seconds and nanoseconds of Unix time.
    pub created_at: (u64, u64),
    /// Name of the shim's runtime.
    pub runtime: String,
    /// The program that the client named as the OCI runtime, if any.
    pub binary: String,
    /// Extensions: name to bytes.
    pub extensions: BTreeMap<String, Vec<u8>>,
}

impl StoreRecord {
    /// Returns an extension of the CRI plugin: JSON in an envelope with its version.
    pub(super) fn metadata(&self, name: &str) -> Option<Value> {
        let bytes = self.extensions.get(name)?;
        let mut value: Value = serde_json::from_slice(bytes).ok()?;
        value.get_mut("Metadata").map(Value::take)
    }
}

/// The results of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FetchedFacts {
    /// The content of each file, by path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The records, by container ID.
    pub records: BTreeMap<String, StoreRecord>,
    /// The reason why some or all of the requested records of containerd could not be read.
    pub store_problem: Option<String>,
    /// The Docker daemons of this host, if requested.
    pub dockers: Vec<Dockerd>,
}

impl FetchedFacts {
    pub(super) fn file(&self, path: &str) -> Option<&[u8]> {
        self.files.get(path).map(Vec::as_slice)
    }

    /// Returns the first of these files that exists.
    pub(super) fn first(&self, paths: &[String]) -> Option<&[u8]> {
        paths.iter().find_map(|path| self.file(path))
    }

    /// Parses a file as JSON.
    pub(super) fn json(&self, path: &str) -> Option<Value> {
        serde_json::from_slice(self.file(path)?).ok()
    }

    /// Parses a file that contains a process ID.
    pub(super) fn pid(&self, path: &str) -> Option<u32> {
        std::str::from_utf8(self.file(path)?).ok()?.trim().parse().ok()
    }
}
