// SPDX-License-Identifier: Apache-2.0
//! The daemon of an unprivileged user: the paths of its files, and its defaults. Only properties of
//! this process decide whether it belongs to an unprivileged user, or to root in a user namespace.
//! For the host's root, nothing here applies. A run directory that another user could have made is
//! never used.

use std::path::{Path, PathBuf};

use crate::files;
use crate::limits;
use crate::presence::{self, IfThere};

use super::settings::Config;

/// The folder below `$XDG_RUNTIME_DIR` and below `$XDG_CONFIG_HOME`.
const NAME: &str = "nri-runc";

/// Whether this process is not the host's root (decision D7).
pub(crate) fn is_unprivileged() -> bool {
    !nix::unistd::geteuid().is_root() || is_in_user_namespace()
}

/// Whether this process is in a user namespace; false if that cannot be read.
pub(crate) fn is_in_user_namespace() -> bool {
    let map = files::read(Path::new("/proc/self/uid_map"), limits::KERNEL_FILE).or_absent();
    map.is_some_and(|map| {
        let map = String::from_utf8_lossy(&map);
        // The host maps all 2^32 - 1 IDs onto themselves.
        !map.split_whitespace().take(3).eq(["0", "0", "4294967295"])
    })
}

/// Returns the folder that `XDG_RUNTIME_DIR` names, if only this user may write to it. The host's
/// root has none.
fn user_runtime_dir() -> Option<PathBuf> {
    absolute("XDG_RUNTIME_DIR").filter(|dir| is_unprivileged() && is_private(dir))
}

/// Returns the run directory of this user's daemon; `None` if the user cannot have one.
pub(super) fn run_dir() -> Option<PathBuf> {
    Some(user_runtime_dir()?.join(NAME))
}

/// Returns the run directory, if it exists: then this user has had a daemon.
pub(super) fn made_run_dir() -> Option<PathBuf> {
    run_dir().filter(|dir| is_private(dir))
}

/// Returns the configuration file of this user's daemon, if the file exists.
pub(super) fn file() -> Option<PathBuf> {
    path().filter(|file| presence::exists(file).or_absent() == Some(true))
}

/// Returns the path of this user's configuration file, whether the file exists or not; `None` if
/// the user cannot have a daemon or has no home.
pub(super) fn path() -> Option<PathBuf> {
    run_dir()?;
    Some(home()?.join(NAME).join("config.toml"))
}

/// Returns the settings of the user's daemon with this run directory, before its file is read. The
/// default runtimes are those of root's configuration `node`, so that earlier containers are found.
pub(super) fn defaults(run_dir: &Path, node: &Config) -> Config {
    let mut config = Config { run_dir: run_dir.to_owned(), ..Config::default() };
    config.node_run_dir = Some(node.node_run_dir.as_ref().unwrap_or(&node.run_dir).clone());
    config.runtime.clone_from(&node.runtime);
    config.instances.clone_from(&node.instances);
    config.socket_path = run_dir.join("nri.sock");
    // A user's daemon does not launch root's plugins.
    let nri = home().map_or_else(|| run_dir.join("nri"), |home| home.join("nri"));
    config.plugin_path = nri.join("plugins");
    config.plugin_config_path = nri.join("conf.d");
    config.allowed_uids = vec![nix::unistd::geteuid().as_raw()];
    config
}

/// Returns the runtimes of root's configuration as the text of a file, to compare two readings.
pub(super) fn runtimes(node: &Config) -> String {
    let mut file = toml_edit::DocumentMut::new();
    file["runtime"] = toml_edit::value(node.runtime.iter().collect::<toml_edit::Array>());
    for (name, path) in &node.instances {
        file["instance"][name.as_str()]["path"] = toml_edit::value(path.as_str());
    }
    file.to_string()
}

/// Resets the settings that the file of a user's daemon cannot change: wrappers must find the run
/// directory without reading the file, and a wrapper in a user namespace must not start the daemon
/// inside of it.
pub(super) fn fix(config: &mut Config, run_dir: &Path) {
    run_dir.clone_into(&mut config.run_dir);
    config.autostart = false;
}

fn home() -> Option<PathBuf> {
    absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))
}

/// Returns the folders of this user's configuration and data; the host's root has none.
pub(crate) fn user_homes() -> Option<(PathBuf, PathBuf)> {
    let data =
        || absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
    is_unprivileged().then(|| home().zip(data())).flatten()
}

/// Returns the folder that a variable names; a relative one is ignored, as XDG specifies.
fn absolute(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The owner that a user namespace shows for files whose real owner is not mapped.
const OVERFLOW_UID: u32 = 65534;

/// Whether this is a folder of this user to which no other user may write.
fn is_private(path: &Path) -> bool {
    if nix::unistd::geteuid().as_raw() == OVERFLOW_UID && is_in_user_namespace() {
        return false; // Files of unmapped users appear to have this owner too.
    }
    let there = std::fs::symlink_metadata(path).or_absent();
    there.is_some_and(|there| files::refuse_shared_dir(path, &there).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_defaults_have_roots_policy_and_runtimes() {
        let mut node = Config { run_dir: PathBuf::from("/run/other"), ..Config::default() };
        node.runtime = vec!["/opt/runc".to_owned()];
        node.instances.insert("nri-crun".to_owned(), "/opt/crun".to_owned());
        let of_user = defaults(Path::new("/run/user/1/nri-runc"), &node);
        assert_eq!(of_user.rootless_marker(), Path::new("/run/other.rootless"));
        assert_eq!((&of_user.runtime, &of_user.instances), (&node.runtime, &node.instances));
        // If the variable names the user's file as root's configuration, nothing changes.
        let again = defaults(&of_user.run_dir, &of_user);
        assert_eq!(again.rootless_marker(), of_user.rootless_marker());
        assert!(of_user.is_of_user() && !node.is_of_user());
    }

    #[test]
    fn changes_of_roots_runtimes_count_unless_the_user_sets_them() {
        let runtimes = |runtime: &str, crun: &str| {
            let mut node = Config { runtime: vec![runtime.to_owned()], ..Config::default() };
            node.instances.insert("nri \"crun".to_owned(), crun.to_owned());
            (PathBuf::new(), runtimes(&node))
        };
        let changed = |before: &[_], after: &[_]| {
            let changed = super::super::changes(before, after).into_iter();
            changed.map(|changed| changed.key).collect::<Vec<_>>()
        };
        let [before, after] = [[runtimes("/a", "/b")], [runtimes("/c", "/d")]];
        assert_eq!(changed(&before, &before), [""; 0]);
        let both = ["instance.nri \"crun.path", "runtime"];
        assert_eq!(changed(&before, &after), both);
        let with_own = |[node]: [_; 1]| [node, (PathBuf::new(), "runtime = [\"/own\"]".to_owned())];
        assert_eq!(changed(&with_own(before), &with_own(after)), both[..1]);
    }
}
