#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the time of a `create` goes: account.py BINARY RUNC ROOTFS-PROGRAM [PLUGIN-COMMAND ...]

Runs creates of one container under `perf record` of the kernel's system call events, and prints what each part between two
of them takes, in microseconds (medians), as the table of docs/performance-account.md. A PLUGIN-COMMAND is called with the
plugin socket behind it. As root; everything is below a folder in /run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROUNDS = 60
EXECVE, EXIT, CONNECT, SENDMSG, RECVFROM = 59, 231, 42, 46, 45
EVENT = re.compile(r"\s*(\d+)/\d+\s+([\d.]+):\s+raw_syscalls:sys_(enter|exit): NR (\d+)(?: = (-?\d+))?")
FIELDS = ["-F", "pid,tid,time,event,trace"]


def place(binary, runc, program):
    """A folder with a bundle and a configuration, and the environment of wrapper and daemon."""
    root = Path(tempfile.mkdtemp(prefix="nri-runc-account-", dir="/run"))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root], check=True)
    (root / "bundle/rootfs/bin").mkdir(parents=True)
    shutil.copy(program, root / "bundle/rootfs/bin/sleep")
    mounts = [{"destination": f"/m{n}", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "size=4k"]} for n in range(30)]
    mounts.append({"destination": "/proc", "type": "proc", "source": "proc"})
    process = {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/bin/sleep", "1000"], "env": ["PATH=/bin"]}
    linux = {"cgroupsPath": "/nri-runc-account/c", "namespaces": [{"type": "mount"}, {"type": "pid"}]}
    spec = {"ociVersion": "1.0.2", "process": process, "root": {"path": "rootfs"}, "mounts": mounts, "linux": linux}
    (root / "bundle/config.json").write_text(json.dumps(spec))
    (root / "config.toml").write_text(
        f'runtime = ["{runc}"]\nrun_dir = "{root}/run"\nautostart = false\n[nri]\n'
        f'socket_path = "{root}/nri.sock"\nplugin_path = "{root}/none"\n'
    )
    return root, dict(os.environ, NRI_RUNC_CONFIG=str(root / "config.toml"))


def spent(pid):
    """Processor time of a process and its threads, in microseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


def run(words, env):
    """Wall and processor time of a command, in microseconds."""
    begun = time.perf_counter()
    child = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = status
    assert status == 0, words
    return (time.perf_counter() - begun) * 1e6, (usage.ru_utime + usage.ru_stime) * 1e6


def parts(text, daemon):
    """Each create's times between its system calls, and how many calls wrapper and daemon make."""
    calls, found, counts, of_daemon = {}, [], {}, []
    for line in text.splitlines():
        match = EVENT.match(line)
        if not match:
            continue
        pid, at, kind, number, result = match.groups()
        at, number = float(at) * 1e6, int(number)
        if int(pid) == daemon and kind == "enter":
            of_daemon.append(at)
        if kind == "exit" and number == EXECVE and result == "0":
            seen = calls.setdefault(pid, {})
            seen.setdefault("runtime" if "began" in seen else "began", at)
        elif pid in calls and kind == "enter":
            seen = calls[pid]
            if "runtime" not in seen:
                counts[pid] = counts.get(pid, 0) + 1
            key = {CONNECT: "connect", SENDMSG: "ask", EXECVE: "become", EXIT: "end"}.get(number)
            if key:
                seen.setdefault(key, at)
            if key == "end" and "runtime" in seen:
                found.append((seen, counts[pid]))
        elif pid in calls and kind == "exit" and number == RECVFROM:
            calls[pid].setdefault("verdict", at)
    whole = [one for one in found if all(key in one[0] for key in ("connect", "ask", "verdict", "become"))]
    # Every second one is the delete after it.
    whole.sort(key=lambda one: one[0]["began"])
    pairs = list(zip(whole[::2], whole[1::2]))
    steps = [
        ("the wrapper starts, reads its configuration, finds the runtime", "began", "connect"),
        ("it opens the bundle and asks the daemon", "connect", "ask"),
        ("the daemon decides, the wrapper waits", "ask", "verdict"),
        ("the wrapper exchanges the documents and becomes the runtime", "verdict", "runtime"),
        ("the runtime", "runtime", "end"),
    ]
    rows = [(what, median(one[0][to] - one[0][since] for one, _ in pairs)) for what, since, to in steps]
    within = [sum(one[0]["began"] <= at < after[0]["began"] for at in of_daemon) for one, after in pairs]
    return rows, median(count for (_, count), _ in pairs), median(within), len(pairs)


def main():
    """Measures and prints."""
    binary, runc, program, *plugins = sys.argv[1:]
    root, env = place(binary, runc, program)
    daemon, children = None, []
    create = ["--root", f"{root}/root", "create", "--bundle", f"{root}/bundle", "c"]
    delete = [runc, "--root", f"{root}/root", "delete", "--force", "c"]
    try:
        daemon = subprocess.Popen([binary, "nri", "daemon"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (root / "run/daemon.sock").exists():
            time.sleep(0.01)
        children = [subprocess.Popen(plugin.split() + [f"{root}/nri.sock"]) for plugin in plugins]
        time.sleep(2)
        bare, ours, cost = [], [], []
        for number in range(ROUNDS * 2):
            program, side = ((runc, bare), (binary, ours))[(number + number // 2) % 2]
            before = spent(daemon.pid)
            side.append(run([program, *create], env))
            time.sleep(0.05)
            if side is ours:
                cost.append(spent(daemon.pid) - before)
            run([program, *delete[1:]], env)
            time.sleep(0.05)
        data = f"{root}/perf.data"
        events = ["-e", "raw_syscalls:sys_enter", "-e", "raw_syscalls:sys_exit"]
        perf = subprocess.Popen(["perf", "record", "-q", "-a", "-m", "4M", *events, "-o", data], stderr=subprocess.DEVNULL)
        time.sleep(1)
        for _ in range(ROUNDS // 2):
            run([binary, *create], env)
            time.sleep(0.02)
            run([binary, *delete[1:]], env)
            time.sleep(0.02)
        perf.send_signal(2)
        perf.wait()
        text = subprocess.run(["perf", "script", *FIELDS, "-i", data], capture_output=True, text=True, check=True).stdout
        rows, own, daemons, count = parts(text, daemon.pid)
        wall = [median(x[0] for x in side) for side in (bare, ours)]
        cpu = [median(x[1] for x in side) for side in (bare, ours)]
        print(f"create, {len(plugins)} plugins: {wall[1]:.0f} us, runc alone {wall[0]:.0f} ({wall[1] / wall[0]:.3f})")
        print(f"processor time: wrapper and runtime {cpu[1]:.0f} us, daemon {median(cost):.0f}, runc alone {cpu[0]:.0f}")
        for what, took in rows:
            print(f"{took:9.0f} us  {what}")
        print(f"system calls: {own:.0f} of the wrapper, {daemons:.0f} of the daemon, until the next command")
        total = sum(took for _, took in rows)
        print(f"{total:9.0f} us  together, of {count} creates under perf; the rest is fork, exit and wait of the caller")
    finally:
        for child in [*children, daemon]:
            if child:
                child.kill()
                child.wait()
        subprocess.run(["umount", root], check=False)
        root.rmdir()
        subprocess.run("find /sys/fs/cgroup -depth -type d -path '*/nri-runc-account*' -exec rmdir {} +", shell=True, check=False)


main()
