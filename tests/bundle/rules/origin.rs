// SPDX-License-Identifier: Apache-2.0
//! `[plugin.NAME] from` on a host without containers: by the file that a process executes and by its
//! namespaces, never by a PID that another process had.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use test_support::example::example;
use test_support::{Script, Started, TestHost, is_synchronized, skip, started, wait_until};

fn command(program: &str) -> Command {
    Command::new(program)
}

/// A configuration in which only this program may connect as the plugin `ear`.
fn from(program: &Path) -> String {
    format!("[plugin.ear]\nfrom = [\"exe:{}\"]\n", program.display())
}

fn failures(host: &TestHost) -> Vec<Value> {
    host.admin(&["status"])["failures"].as_array().cloned().unwrap_or_default()
}

fn is_refused(host: &TestHost, words: &[&str]) -> bool {
    failures(host).iter().any(|failure| {
        let what = failure["what"].as_str().unwrap_or_default();
        what.contains(" was refused: ") && words.iter().all(|word| what.contains(word))
    })
}

#[test]
fn only_a_restricted_name_requires_the_named_program() {
    let host = started(&from(&example("event_logger")));
    let _ear = Started::plugin(&host, "10-ear");
    wait_until("it takes part", || is_synchronized(&host.admin(&["plugins"]), "10-ear"));
    assert_eq!(failures(&host), [] as [Value; 0]);
    // An unrestricted name may be used by any process.
    let _other = host.plugin("10", "eye", Script::default());
}

#[test]
fn a_repeatedly_refused_plugin_is_one_line_and_a_count() {
    let host =
        started("[plugin.ear]\nfrom = [\"exe:/opt/nri/plugins/*\", \"pod:kube-system/*\"]\n");
    let _ear = Started::plugin(&host, "10-ear");
    let count = || {
        let output = host.call(&["nri", "metrics"]);
        let page = String::from_utf8_lossy(&output.stdout).into_owned();
        let name = "nri_runc_plugin_connections_total{plugin=\"other\",result=\"refused\"} ";
        page.lines().find_map(|line| line.strip_prefix(name)?.parse::<u32>().ok()).unwrap_or(0)
    };
    wait_until("it has come again", || count() >= 2);
    let program = example("event_logger").display().to_string();
    assert!(is_refused(&host, &[&format!("{program} on the host"), "(plugin.ear.from)"]));
    host.logs(&["10-ear was refused"], 1);
    // While it reconnects, its handshake is shown instead.
    wait_until("it is shown with the reason", || {
        let plugins = host.admin(&["plugins"]);
        plugins.as_array().into_iter().flatten().any(|row| {
            let reason = row["reason"].as_str().unwrap_or_default();
            row["state"] == "gone" && reason.contains("may not connect under this name")
        })
    });
}

/// Containers have their own files under the same names, and may have mounted the host's.
#[test]
fn a_program_run_in_other_namespaces_is_not_the_hosts_file() {
    for unshared in [&["--user", "--map-root-user"][..], &["--pid", "--fork", "--kill-child"]] {
        let host = started(&from(&example("event_logger")));
        let wrapped = [&["unshare"][..], unshared].concat();
        let probe = [&wrapped[1..], &["true"]].concat();
        if !command("unshare").args(probe).status().is_ok_and(|status| status.success()) {
            skip::machine_lacks(&format!("unshare {} is not permitted here", unshared.join(" ")));
            continue;
        }
        let _ear = Started::plugin_under(&host, &wrapped, "10-ear");
        wait_until("it is refused", || is_refused(&host, &["may not connect under this name"]));
        assert!(!is_synchronized(&host.admin(&["plugins"]), "10-ear"));
    }
}

#[test]
fn a_copy_of_the_named_program_is_refused() {
    let mut host = TestHost::default();
    let copy = host.path("event_logger");
    test_support::program::copy(&example("event_logger"), &copy);
    host.configure(&host.path("fake/runc"), &from(&example("event_logger")));
    host.start_daemon();
    let socket = host.path("nri.sock").display().to_string();
    let mut copied = command(&copy.display().to_string());
    copied.args(["--id", "10-ear", "--socket", &socket]).stdin(Stdio::null());
    let _ear = Started(copied.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    wait_until("it is refused", || is_refused(&host, &[&copy.display().to_string()]));
}

/// A cgroup that the test has created, with the parents that it has created.
struct Made(std::path::PathBuf);

impl Made {
    /// Creates `path` below a folder for this test, and moves the process there; `None` if the machine
    /// does not permit it.
    fn with(path: &str, pid: u32) -> Option<Self> {
        let (top, _limit) = test_support::cgroup::memory_limit();
        let own = top.join(format!("nri-runc-origin-{}", std::process::id()));
        let folder = own.join(path);
        std::fs::create_dir_all(&folder).ok()?;
        std::fs::write(folder.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(Self(folder))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A second panic would abort the tests that run concurrently.
            return;
        }
        wait_until("the cgroup is empty", || {
            std::fs::remove_dir(&self.0).is_ok() || !self.0.exists()
        });
        let above = self.0.ancestors().skip(1).take(3);
        above
            .take_while(|folder| folder.display().to_string().contains("nri-runc-origin"))
            .for_each(|folder| {
                let _holds_another = std::fs::remove_dir(folder);
            });
    }
}

/// Any process that may create cgroups can give one a container's name.
#[test]
fn a_process_in_a_cgroup_of_a_pods_name_is_not_in_the_pod() {
    let host = started("[plugin.\"*\"]\nfrom = [\"exe:/nowhere\"]\n");
    let id = format!("victim-{}", std::process::id());
    test_support::succeeds(&host.create(&id));
    let init = host.admin(&["pods"])[0]["containers"][0]["pid"].as_u64().unwrap();
    let init = u32::try_from(init).unwrap();
    let Some(_own) = Made::with(&format!("pod/{id}"), init) else {
        return skip::machine_lacks("cgroups cannot be made here");
    };
    let refusals = || host.admin(&["status"])["refused_connections"][0]["count"].as_u64();
    // The rejection of a plugin that connects from this cgroup.
    let said_of = |name: &str, cgroup: &str| {
        let plugin = Started::plugin(&host, name);
        let made = Made::with(cgroup, plugin.0.id());
        assert!(made.is_some(), "{cgroup}");
        // The plugin may have connected once before its process was in the cgroup.
        let before = refusals();
        wait_until("it has come again", || refusals() >= before.map(|count| count + 2));
        drop(plugin);
        let all = failures(&host);
        all.last().and_then(|failure| failure["what"].as_str()).unwrap_or_default().to_owned()
    };
    let forged = said_of("10-forged", &format!("mine/pod/{id}"));
    assert!(forged.contains("10-forged") && forged.contains(" on the host"), "{forged}");
    let inside = said_of("10-inside", &format!("pod/{id}/below"));
    assert!(
        inside.contains("10-inside") && inside.contains(&format!(" in pod plain/{id} ")),
        "{inside}"
    );
    test_support::succeeds(&host.verb(&["delete", "--force", &id]));
}

/// Connects, leaves the connection to a child that is the named program, and exits.
#[test]
#[expect(unsafe_code, reason = "a process that leaves its connection to a child")]
fn an_exited_process_is_refused_even_if_its_pid_is_reused() {
    use std::os::fd::AsRawFd;
    let program = example("device_injector");
    // The child uses any name.
    let host = started(&from(&program).replace("plugin.ear", "plugin.\"*\""));
    let socket = host.path("nri.sock");
    // After the fork only system calls are permitted, so everything is allocated before.
    let argv = [std::ffi::CString::new(program.display().to_string()).unwrap()];
    let env = [c"NRI_PLUGIN_SOCKET=3".to_owned()];
    let address = nix::sys::socket::UnixAddr::new(&socket).unwrap();
    let kind = nix::sys::socket::SockType::Stream;
    let family = nix::sys::socket::AddressFamily::Unix;
    let flags = nix::sys::socket::SockFlag::empty();
    let stream = nix::sys::socket::socket(family, kind, flags, None).unwrap();
    // SAFETY: the child calls nothing but the kernel until it ends or executes.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let connected = nix::sys::socket::connect(stream.as_raw_fd(), &address);
            let code = i32::from(connected.is_err());
            let parent = nix::unistd::getpid();
            // SAFETY: as above.
            if let (0, Ok(nix::unistd::ForkResult::Child)) = (code, unsafe { nix::unistd::fork() })
            {
                while nix::unistd::getppid() == parent {
                    std::thread::yield_now(); // It registers only after the connecting process has exited.
                }
                // SAFETY: both are descriptors of this process.
                unsafe { nix::libc::dup2(stream.as_raw_fd(), 3) };
                let _failed = nix::unistd::execve(&argv[0], &argv, &env);
            }
            // SAFETY: it ends at once, without what the test has registered.
            unsafe { nix::libc::_exit(code) };
        }
        nix::unistd::ForkResult::Parent { child } => {
            let ended = nix::sys::wait::waitpid(child, None).unwrap();
            assert_eq!(ended, nix::sys::wait::WaitStatus::Exited(child, 0));
        }
    }
    drop(stream);
    wait_until("its heir is refused", || {
        is_refused(&host, &["cannot be identified"]) || is_refused(&host, &["has exited"])
    });
    assert_eq!(host.admin(&["status"])["plugins"], 0);
}
