// SPDX-License-Identifier: Apache-2.0
//! Podman's database: Bolt before 4.7, SQLite since. Lists its containers, and reads the
//! configuration of a container or a pod. It only parses bytes that its caller read; an incomplete
//! row, or one of another ID, is treated as missing.

use serde_json::Value;

use super::{is_id, text};
use crate::formats::{bolt, sqlite};

/// Returns the paths of the database below a graph root; Podman may have left an older one.
pub(crate) fn files(graph_root: &str) -> [String; 3] {
    ["db.sql", "libpod/db.sql", "libpod/bolt_state.db"].map(|file| format!("{graph_root}/{file}"))
}

/// A database.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rows<'b> {
    Sqlite(sqlite::SqliteDatabase<'b>),
    Bolt(bolt::BoltDatabase<'b>),
}

impl<'b> Rows<'b> {
    pub(super) fn open(bytes: &'b [u8]) -> Option<Self> {
        let sqlite = || sqlite::SqliteDatabase::open(bytes).map(Self::Sqlite);
        sqlite().or_else(|| bolt::BoltDatabase::open(bytes).map(Self::Bolt))
    }

    fn column(self, table: &str, column: usize, path: &[&str]) -> Option<String> {
        let bytes = match self {
            Self::Sqlite(database) => database.find(table, path.get(1)?, column)?,
            Self::Bolt(database) => database.get(path)?.to_vec(),
        };
        String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
    }

    fn json(self, table: &str, column: usize, path: &[&str]) -> Option<Value> {
        serde_json::from_str(&self.column(table, column, path)?).ok()
    }

    /// Returns a container's configuration.
    pub(super) fn container(self, id: &str) -> Option<Value> {
        let config = self.json("ContainerConfig", 3, &["ctr", id, "config"]);
        config.filter(|config| config["id"] == id)
    }

    /// Returns a pod's configuration.
    pub(super) fn pod(self, id: &str) -> Option<Value> {
        let config = self.json("PodConfig", 2, &["pod", id, "config"]);
        config.filter(|config| config["id"] == id)
    }

    /// Returns the pod of a container.
    pub(super) fn pod_of(self, id: &str) -> Option<String> {
        self.column("ContainerConfig", 2, &["ctr", id, "pod-id"]).filter(|pod| is_id(pod))
    }

    /// Returns the infrastructure container of a pod.
    pub(super) fn infra_of(self, pod: &str) -> Option<String> {
        let said = self.column("PodState", 1, &["pod", pod, "state"])?;
        match self {
            Self::Sqlite(_) => Some(said),
            Self::Bolt(_) => {
                text(&serde_json::from_str(&said).ok()?, "/InfraContainerID").filter(|id| is_id(id))
            }
        }
    }

    /// Returns the addresses of a container that owns a network.
    pub(super) fn ips(self, id: &str) -> Vec<String> {
        let state = self.json("ContainerState", 3, &["ctr", id, "state"]).unwrap_or_default();
        let members = |value: &Value| value.as_object().cloned().unwrap_or_default();
        let interfaces = members(&state["networkStatus"]).into_iter();
        let interfaces = interfaces.flat_map(|(_, network)| members(&network["interfaces"]));
        let subnets =
            interfaces.filter_map(|(_, one)| one["subnets"].as_array().cloned()).flatten();
        let addresses = subnets.filter_map(|subnet| text(&subnet, "/ipnet"));
        addresses.filter_map(|net| Some(net.split('/').next()?.to_owned())).collect()
    }

    /// Returns the exit code of a container that has exited according to Podman.
    fn exit_code(self, id: &str) -> Option<i32> {
        let state = self.json("ContainerState", 3, &["ctr", id, "state"])?;
        // Podman omits zero, and writes -1 for an unknown code.
        let code = state["exitCode"].as_i64().unwrap_or_default();
        (state["exited"] == true && code >= 0).then(|| code.try_into().ok()).flatten()
    }

    fn ids(self) -> Vec<String> {
        let ids = match self {
            Self::Sqlite(database) => database.keys("ContainerConfig"),
            Self::Bolt(database) => {
                database.keys(&["ctr"]).into_iter().map(<[u8]>::to_vec).collect()
            }
        };
        ids.into_iter().filter_map(|id| String::from_utf8(id).ok()).collect()
    }
}

/// Returns every container of a database with its runtime, as a name or a path.
pub(crate) fn runtimes(bytes: &[u8]) -> Vec<(String, String)> {
    let Some(rows) = Rows::open(bytes) else { return Vec::new() };
    let said = rows.ids().into_iter().filter_map(|id| {
        let runtime = text(&rows.container(&id)?, "/runtime")?;
        Some((id, runtime))
    });
    said.collect()
}

/// Returns the exit code of a container, if this database shows that it has exited.
pub(crate) fn exit_code(bytes: &[u8], id: &str) -> Option<i32> {
    Rows::open(bytes)?.exit_code(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_databases_yield_the_containers_runtime() {
        let bolt = include_bytes!("../../fixtures/engines/bolt_state.db");
        let told = runtimes(bolt);
        assert_eq!(told.len(), 39);
        assert_eq!(told[7], ("other08".to_owned(), "nri-runc".to_owned()));
        let sqlite = include_bytes!(
            "../../fixtures/engines/podman-5-database/host/var/lib/containers/storage/db.sql"
        );
        assert_eq!(Rows::open(sqlite).unwrap().ids().len(), 62);
    }

    #[test]
    fn only_an_exited_container_has_an_exit_code() {
        let sqlite: &[u8] = include_bytes!(
            "../../fixtures/engines/podman-5-database/host/var/lib/containers/storage/db.sql"
        );
        let with = |state: &str| {
            // Replaces a state with one of the same length.
            let old = "{\"state\": 3, \"networkStatus\": {\"podman\"";
            let at = sqlite.windows(old.len()).position(|part| part == old.as_bytes()).unwrap();
            let new = format!("{{{state:<width$}", width = old.len() - 1);
            [&sqlite[..at], new.as_bytes(), &sqlite[at + old.len()..]].concat()
        };
        let code = |state: &str| exit_code(&with(state), "1f4a");
        assert_eq!(exit_code(sqlite, "1f4a"), None);
        assert_eq!(code("\"exited\":true,\"exitCode\":7,\"x\":{\"x\""), Some(7));
        assert_eq!(code("\"exited\":true,\"x\":{\"x\""), Some(0));
        assert_eq!(code("\"exited\":false,\"exitCode\":7,\"x\":{\"x\""), None);
        assert_eq!((exit_code(sqlite, "none"), exit_code(b"", "1f4a")), (None, None));
    }

    #[test]
    fn a_file_that_is_not_a_database_names_no_container() {
        assert!(runtimes(b"").is_empty() && runtimes(&[7; 20_000]).is_empty());
    }
}
