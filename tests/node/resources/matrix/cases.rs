// SPDX-License-Identifier: Apache-2.0
//! The fields of an adjustment: a plugin's response, and the place of its value in a container.

use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use nri_runc::plugin::api;
use serde_json::{Value, json};
use test_support::{TestHost, tools};

use super::look::{Layout, Look, Running, has, is, output};
use super::resources;
use crate::resources::Place;

type InRunning = Box<dyn Fn(&Running, Layout) -> Look>;
type InHost = Box<dyn Fn(&Path) -> Look>;

/// A field, or one of its values.
pub(super) struct FieldCase {
    /// Its row in the table: the name in refusals, and the value.
    pub(super) row: &'static str,
    /// The beginning of the name in refusals.
    pub(super) names: &'static str,
    /// Adjustments with the same number can be combined in one container.
    pub(super) group: usize,
    pub(super) adjust: Value,
    pub(super) look: InRunning,
    /// A check after the container is gone.
    pub(super) look_after: InHost,
}

pub(super) fn case(
    row: &'static str,
    adjust: Value,
    look: impl Fn(&Running, Layout) -> Look + 'static,
) -> FieldCase {
    let names = row.split(' ').next().unwrap();
    let look_after = Box::new(|_: &Path| Ok(()));
    FieldCase { row, names, group: 0, adjust, look: Box::new(look), look_after }
}

impl FieldCase {
    pub(super) fn alone(self, group: usize) -> Self {
        Self { group, ..self }
    }
}

/// A value of a cgroup: the file of v1 with its controller, the file of v2, and the text.
pub(super) fn value(
    row: &'static str,
    adjust: Value,
    (controller, v1): (&'static str, &'static str),
    v2: &'static str,
    wanted: [&'static str; 2],
) -> FieldCase {
    case(row, json!({"linux": {"resources": adjust}}), move |running, layout| match layout {
        Layout::V1 => is(running.file(controller, v1), wanted[0]),
        Layout::V2 => is(running.file("", v2), wanted[1]),
    })
}

/// The objects that fields name: an interface, a namespace, a disk, a folder.
pub(super) struct Furniture {
    interface: String,
    namespace: String,
    disk: (String, String),
    dir: PathBuf,
    /// The plugin's next response.
    pub(super) plugin: Arc<Mutex<api::ContainerAdjustment>>,
    holder: Option<Child>,
}

impl Furniture {
    /// Returns the names of the objects without creating them.
    pub(super) fn named(host: &TestHost) -> Self {
        let number = std::process::id() % 100_000;
        Self {
            interface: format!("nrif{number}"),
            namespace: "/proc/self/ns/net".to_owned(),
            disk: ("vda".to_owned(), "1:1".to_owned()),
            dir: host.path("hooks"),
            plugin: Arc::default(),
            holder: None,
        }
    }

    /// Creates the objects.
    pub(super) fn put(place: &Place) -> Self {
        let mut furniture = Self::named(&place.host);
        std::fs::create_dir_all(&furniture.dir).unwrap();
        for disk in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let name = disk.file_name().to_string_lossy().into_owned();
            let is_disk = std::fs::metadata(format!("/dev/{name}"))
                .is_ok_and(|node| node.file_type().is_block_device());
            if is_disk && !name.starts_with("zram") && !name.starts_with("loop") {
                let numbers = std::fs::read_to_string(disk.path().join("dev")).unwrap_or_default();
                furniture.disk = (name, numbers.trim().to_owned());
            }
        }
        let busybox = tools::find(&["busybox"]).unwrap().join("busybox");
        let mut command = Command::new(busybox);
        command.args(["unshare", "-n", "sleep", "1000"]).stdin(Stdio::null());
        let holder = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let namespace = format!("/proc/{}/ns/net", holder.id());
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        test_support::wait_until("there is another network", || {
            std::fs::read_link(&namespace).is_ok_and(|there| there != own)
        });
        let (name, peer) = (&furniture.interface, format!("{}p", furniture.interface));
        ip(&["link", "add", name, "type", "veth", "peer", "name", &peer]);
        // A part of the real-time budget, if the kernel has one.
        let above = format!("/sys/fs/cgroup/cpu{}", place.real.cgroup(""));
        let budget = Path::new(&above).join("cpu.rt_runtime_us");
        if std::fs::create_dir_all(&above).is_ok() && budget.exists() {
            std::fs::write(budget, "200000").unwrap();
        }
        let device = json!({
            "cdiVersion": "0.6.0", "kind": "vendor.com/device",
            "devices": [{"name": "one", "containerEdits": {"env": ["CDI=one"]}}],
        });
        std::fs::create_dir_all(place.host.path("cdi")).unwrap();
        place.host.write("cdi/vendor.json", &device.to_string());
        let classes = format!(
            "Classes:\n  limits:\n  - Devices: [/dev/{0}]\n    ThrottleReadBps: 1Mi\n  weight:\n  - Weight: 300\n  weights:\n  - Devices: [/dev/{0}]\n    Weight: 300\n",
            furniture.disk.0
        );
        place.host.write("blockio.yaml", &classes);
        (furniture.namespace, furniture.holder) = (namespace, Some(holder));
        furniture
    }

    /// Clears the traces of the last container, and listens as a seccomp agent.
    pub(super) fn clear(&self) {
        let _gone = std::fs::remove_dir_all(&self.dir);
        std::fs::create_dir_all(&self.dir).unwrap();
        let listener = UnixListener::bind(self.dir.join("agent.sock")).unwrap();
        let printed = self.dir.join("agent");
        // The thread ends with the test: if the container makes no call, it keeps waiting.
        std::thread::spawn(move || {
            let Ok((mut caller, _)) = listener.accept() else { return Ok(()) };
            let mut bytes = vec![0; 1 << 16];
            let length = caller.read(&mut bytes).unwrap_or(0);
            nri_runc::testing::files::replace(&printed, &bytes[..length]).map_err(|e| e.to_string())
        });
    }

    /// Returns the configuration with the paths of the objects.
    pub(super) fn settings(&self, place: &Place) -> String {
        let path = |name: &str| place.host.path(name).display().to_string();
        format!(
            "[cdi]\nspec_dirs = [\"{}\"]\n[blockio]\nconfig_file = \"{}\"\n",
            path("cdi"),
            path("blockio.yaml")
        )
    }
}

fn ip(words: &[&str]) {
    let paths = ["/usr/sbin/ip", "/usr/bin/ip", "/sbin/ip", "/bin/ip"].map(Path::new);
    if let Some(program) = paths.into_iter().find(|path| path.exists()) {
        output(program, words);
    }
}

impl Drop for Furniture {
    fn drop(&mut self) {
        if let Some(holder) = &mut self.holder {
            ip(&["link", "delete", &format!("{}p", self.interface)]);
            let _ended = holder.kill();
            let _reaped = holder.wait();
        }
    }
}

/// All cases that this machine can try with a runtime that lacks no feature.
pub(super) fn all(place: &Place, furniture: &Furniture, layout: Layout) -> Vec<FieldCase> {
    let mut cases = of(&place.host, furniture, layout, &place.real.cgroup("elsewhere"));
    let has_interface = Path::new("/sys/class/net").join(&furniture.interface).exists();
    if !has_interface {
        cases.retain(|case| case.names != "LinuxNetDevices");
    }
    cases
}

/// All cases.
pub(super) fn of(
    host: &TestHost,
    furniture: &Furniture,
    layout: Layout,
    elsewhere: &str,
) -> Vec<FieldCase> {
    let mut cases = process();
    cases.extend(files(host, furniture));
    cases.extend(namespaces(furniture));
    cases.extend(kernel(elsewhere));
    cases.extend(scheduling());
    cases.extend(seccomp(host));
    cases.extend(resources::all(&furniture.disk.1));
    if layout == Layout::V1 {
        // This case is refused only because cgroup v1 lacks these files.
        cases.retain(|case| case.row != "CgroupsUnified[cpu.idle]");
    }
    cases
}

fn process() -> Vec<FieldCase> {
    vec![
        case("Annotations", json!({"annotations": {"fields/a": "yes it is"}}), |running, _| {
            has(running.state(), &["\"fields/a\"", "yes it is"])
        }),
        case("Env", json!({"env": [{"key": "FIELD", "value": "set"}]}), |running, _| {
            has(running.proc("environ"), &["FIELD=set "])
        }),
        case("Args", json!({"args": ["sleep", "1234"]}), |running, _| {
            is(running.proc("cmdline"), "sleep 1234 ")
        }),
        case(
            "Rlimits",
            json!({"rlimits": [{"type": "RLIMIT_NOFILE", "hard": "321", "soft": "123"}]}),
            |running, _| {
                let limits = running.proc("limits");
                let line = limits.lines().find(|line| line.starts_with("Max open files"));
                let words = line.unwrap_or_default().split_whitespace().skip(3).take(2);
                is(words.collect::<Vec<_>>().join(" "), "123 321")
            },
        ),
        case("OomScoreAdj", json!({"linux": {"oomScoreAdj": {"value": "500"}}}), |running, _| {
            is(running.proc("oom_score_adj").trim(), "500")
        }),
        case(
            "CdiDevices",
            json!({"CDIDevices": [{"name": "vendor.com/device=one"}]}),
            |running, _| has(running.proc("environ"), &["CDI=one "]),
        ),
    ]
}

/// The six kinds of hooks; each writes its name into a folder that is mounted in the container too.
fn hooks(dir: &Path) -> FieldCase {
    let dir = dir.display().to_string();
    let mount = json!({
        "destination": dir, "type": "bind", "source": dir, "options": ["bind", "rw"],
    });
    let script = format!("cat >/dev/null; echo $1 $KIND >>{dir}/$1");
    let hook = |kind: &str| {
        json!([{
            "path": "/bin/sh", "args": ["sh", "-c", script, "sh", kind],
            "env": ["PATH=/usr/bin:/bin", format!("KIND={kind}")], "timeout": {"value": "60"},
        }])
    };
    let kinds = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart"];
    let mut all = json!({"poststop": hook("poststop")});
    kinds.iter().for_each(|kind| all[*kind] = hook(kind));
    let ran = |dir: &Path, kind: &str| {
        let printed = std::fs::read_to_string(dir.join("hooks").join(kind)).unwrap_or_default();
        is(printed.trim(), &format!("{kind} {kind}"))
    };
    let look = move |running: &Running, _: Layout| {
        // The engine does not wait for the last one.
        test_support::wait_until("the hooks have run", || {
            running.dir.join("hooks/poststart").exists()
        });
        kinds.iter().try_for_each(|kind| ran(&running.dir, kind))
    };
    let adjust = json!({"mounts": [mount], "hooks": all});
    let hooks = case("OciHooks", adjust, look);
    FieldCase { look_after: Box::new(move |dir| ran(dir, "poststop")), ..hooks }
}

/// A hook that would take many seconds and has a limit of one.
fn slow_hook(dir: &Path) -> FieldCase {
    let file = dir.join("slow").display().to_string();
    let script = format!(
        "echo begun >>{file}; i=0; while [ $i -lt 30000000 ]; do i=$((i+1)); done; echo ended >>{file}"
    );
    let hook = json!([{
        "path": "/bin/sh", "args": ["sh", "-c", script], "timeout": {"value": "1"},
    }]);
    let slow = case("OciHooks timeout", json!({"hooks": {"poststop": hook}}), |_, _| Ok(()));
    let look_after = |dir: &Path| {
        let printed = std::fs::read_to_string(dir.join("hooks/slow")).unwrap_or_default();
        is(printed.trim(), "begun")
    };
    FieldCase { look_after: Box::new(look_after), ..slow.alone(1) }
}

fn files(host: &TestHost, furniture: &Furniture) -> Vec<FieldCase> {
    let source = host.path("").display().to_string();
    let bind = json!({
        "destination": "/bound", "type": "bind", "source": source, "options": ["bind", "ro", "noexec"],
    });
    let sized = json!({
        "destination": "/bound", "type": "bind", "source": source, "options": ["bind", "size=65k"],
    });
    let tmpfs = json!({
        "destination": "/fields", "type": "tmpfs", "source": "tmpfs",
        "options": ["nosuid", "size=64k"],
    });
    let device = json!({
        "path": "/dev/fields", "type": "c", "major": "1", "minor": "7",
        "fileMode": {"value": 0o640}, "uid": {"value": 5}, "gid": {"value": 6},
    });
    let rule = json!({
        "allow": true, "type": "c", "major": {"value": "10"}, "minor": {"value": "250"}, "access": "r",
    });
    vec![
        case("Mounts", json!({"mounts": [tmpfs]}), |running, _| {
            let mounts = running.proc("mountinfo");
            let line = mounts.lines().find(|line| line.contains(" /fields "));
            has(line.unwrap_or_default(), &["nosuid", " - tmpfs tmpfs ", "size=64k"])
        }),
        case("Mounts bind", json!({"mounts": [bind]}), |running, _| {
            let mounts = running.proc("mountinfo");
            let line = mounts.lines().find(|line| line.contains(" /bound "));
            has(line.unwrap_or_default(), &[" ro,", "noexec"])
        }),
        // Without a size a runtime could only drop it.
        case("Mounts bind with data", json!({"mounts": [sized]}), |running, _| {
            has(running.proc("mountinfo"), &["size=65k"])
        })
        .alone(5),
        case("Devices", json!({"linux": {"devices": [device]}}), |running, _| {
            let node = std::fs::metadata(format!("/proc/{}/root/dev/fields", running.pid));
            let node = node.map_err(|error| error.to_string())?;
            let seen = (node.rdev(), node.mode(), node.uid(), node.gid());
            let wanted = (nix::sys::stat::makedev(1, 7), 0o20640, 5, 6);
            is(format!("{seen:?}"), &format!("{wanted:?}"))
        }),
        case(
            "DeviceRules",
            json!({"linux": {"resources": {"devices": [rule]}}}),
            // The device has no driver, so a permitted open fails with another error.
            |running, _| {
                has(running.inside(": </dev/odd"), &["No such device"])?;
                has(running.inside(": >/dev/odd"), &["not permitted"])
            },
        ),
        hooks(&furniture.dir),
        slow_hook(&furniture.dir),
    ]
}

fn namespaces(furniture: &Furniture) -> Vec<FieldCase> {
    let namespace =
        |kind: &str, path: &str| json!({"linux": {"namespaces": [{"type": kind, "path": path}]}});
    let own = |kind: &'static str| {
        move |running: &Running, _: Layout| {
            let host = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
            let there = running.link(&format!("ns/{kind}"));
            if there != host { Ok(()) } else { Err(format!("{there:?} is the host's")) }
        }
    };
    let (path, name) = (furniture.namespace.clone(), furniture.interface.clone());
    let network = namespace("network", &path);
    let mut moved = network.clone();
    moved["linux"]["netDevices"] = json!({name: {"name": "eth9"}});
    vec![
        case("Namespace[network]", network, move |running, _| {
            let wanted = std::fs::read_link(&path).unwrap();
            is(running.link("ns/net").to_string_lossy(), &wanted.to_string_lossy())
        }),
        case("Namespace[cgroup]", namespace("cgroup", ""), own("cgroup")),
        case("Namespace[time]", namespace("time", ""), own("time")),
        case("LinuxNetDevices", moved, |running, _| has(running.proc("net/dev"), &["eth9:"])),
    ]
}

fn kernel(elsewhere: &str) -> Vec<FieldCase> {
    let policy = json!({"mode": "MPOL_BIND", "nodes": "0", "flags": ["MPOL_F_STATIC_NODES"]});
    let rdt = |key: &str, value: Value| json!({"linux": {"rdt": {"remove": true, key: value}}});
    let group = |running: &Running, _: Layout| Err(format!("no class: {}", running.pid));
    let path = elsewhere.to_owned();
    vec![
        case(
            "CgroupsPath",
            json!({"linux": {"cgroupsPath": elsewhere}}),
            move |running, layout| {
                let controller = if layout == Layout::V1 { "memory" } else { "" };
                let seen = running.cgroup(controller);
                if seen.ends_with(&path) { Ok(()) } else { is(seen, &path) }
            },
        ),
        case(
            "Sysctl",
            json!({"linux": {"sysctl": {"kernel.shm_rmid_forced": "1"}}}),
            |running, _| is(running.inside("cat /proc/sys/kernel/shm_rmid_forced"), "1"),
        ),
        case("MemoryPolicy", json!({"linux": {"memoryPolicy": policy}}), |running, _| {
            has(running.proc("numa_maps"), &["bind=static:0"])
        }),
        case("RdtClosID", rdt("closId", json!({"value": "gold"})), group),
        case("RdtSchemata", rdt("schemata", json!({"value": ["L3:0=f"]})), group),
        case("RdtEnableMonitoring", rdt("enableMonitoring", json!({"value": true})), group),
        case("RdtClass", json!({"linux": {"resources": {"rdtClass": {"value": "gold"}}}}), group),
    ]
}

fn scheduling() -> Vec<FieldCase> {
    let busybox = || tools::find(&["busybox"]).unwrap().join("busybox");
    let batch = json!({"policy": "SCHED_BATCH", "nice": 5, "flags": ["SCHED_FLAG_RESET_ON_FORK"]});
    let fifo = json!({"policy": "SCHED_FIFO", "priority": 7});
    let deadline = json!({
        "policy": "SCHED_DEADLINE", "flags": ["SCHED_FLAG_RESET_ON_FORK"],
        "runtime": "1000000", "deadline": "50000000", "period": "100000000",
    });
    // On v1 a cgroup may need a budget for real-time processes.
    let with_time = |scheduler: Value, layout: Layout| {
        let mut linux = json!({"scheduler": scheduler});
        if layout == Layout::V1 && Path::new("/sys/fs/cgroup/cpu/cpu.rt_runtime_us").exists() {
            linux["resources"] = json!({"cpu": {"realtimeRuntime": {"value": "50000"}}});
        }
        json!({"linux": linux})
    };
    let layout = Layout::here().unwrap_or(Layout::V2);
    vec![
        case(
            "IoPriority",
            json!({"linux": {"ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 3}}}),
            move |running, _| {
                let pid = running.pid.to_string();
                has(output(&busybox(), &["ionice", "-p", &pid]), &["best-effort: prio 3"])
            },
        ),
        case("LinuxSched", json!({"linux": {"scheduler": batch}}), |running, _| {
            is(format!("{} {}", running.stat(41), running.stat(19)), "3 5")
        }),
        case("LinuxSched FIFO", with_time(fifo, layout), |running, _| {
            is(format!("{} {}", running.stat(41), running.stat(40)), "1 7")
        })
        .alone(2),
        case("LinuxSched DEADLINE", with_time(deadline, layout), |running, _| {
            is(running.stat(41), "6")
        })
        .alone(3),
    ]
}

/// The system calls of a shell, of sleep and of the runtime's first steps.
const SYSCALLS: &str = "accept4 access arch_prctl bind brk capget capset chdir chmod chown clock_gettime \
    clock_nanosleep clone clone3 close close_range connect dup dup2 dup3 epoll_create1 epoll_ctl epoll_pwait \
    epoll_wait eventfd2 execve execveat exit exit_group faccessat faccessat2 fchdir fchmod fchown fchownat fcntl \
    fork fstat fstatfs futex getcwd getdents getdents64 getegid geteuid getgid getgroups getpgid getpgrp getpid getppid \
    getrandom getresgid getresuid getrlimit getsockopt gettid getuid ioctl keyctl kill lseek lstat madvise membarrier \
    mincore mmap mount mprotect mremap munmap nanosleep newfstatat open openat openat2 pidfd_open pidfd_send_signal \
    pipe pipe2 poll ppoll prctl pread64 prlimit64 pselect6 pwrite64 read readlink readlinkat recvfrom recvmsg \
    restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend sched_getaffinity \
    sched_yield seccomp select sendmsg sendto set_robust_list set_tid_address setgid setgroups setitimer setns \
    setpgid setresgid setresuid setrlimit setsid setuid sigaltstack socket socketpair stat statfs statx sysinfo tgkill \
    time timer_create timer_delete timer_settime umask umount2 uname unlink unlinkat unshare wait4 waitid write writev";

fn seccomp(host: &TestHost) -> Vec<FieldCase> {
    let masked = json!({"index": 1, "value": "255", "valueTwo": "18", "op": "SCMP_CMP_MASKED_EQ"});
    let some = json!({
        "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG"],
        "syscalls": [
            {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": {"value": 71}},
            {"names": ["kill"], "action": "SCMP_ACT_ERRNO", "errnoRet": {"value": 71}, "args": [masked]},
        ],
    });
    let names: Vec<&str> = SYSCALLS.split_whitespace().collect();
    let most = json!({
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrno": {"value": 71},
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{"names": names, "action": "SCMP_ACT_ALLOW"}],
    });
    let socket = host.path("hooks/agent.sock").display().to_string();
    let asked = json!({
        "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
        "listenerPath": socket, "listenerMetadata": "of the fields",
        "syscalls": [{"names": ["sethostname"], "action": "SCMP_ACT_NOTIFY"}],
    });
    let policy = |policy: Value| json!({"linux": {"seccompPolicy": policy}});
    vec![
        case("SeccompPolicy", policy(some), |running, _| {
            has(running.inside("busybox mkdir /fields"), &["Protocol error"])?;
            has(running.inside("busybox kill -CONT $$"), &["Protocol error"])?;
            is(running.inside("kill -0 $$"), "")
        }),
        case("SeccompPolicy default", policy(most), |running, _| {
            has(running.inside("busybox mkdir /fields"), &["Protocol error"])
        })
        .alone(1),
        case("SeccompPolicy listener", policy(asked), |running, _| {
            let received =
                || std::fs::read_to_string(running.dir.join("hooks/agent")).unwrap_or_default();
            test_support::wait_until("the agent was notified", || {
                received().contains("of the fields")
            });
            Ok(())
        })
        .alone(4),
    ]
}
