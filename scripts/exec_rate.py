#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many execs a second: exec_rate.py BINARY RUNC BUSYBOX. With runc itself, and with a runtime that returns at
once, with one and eight callers; alone, behind nri-runc, with an exec rule and in the audit log. Needs root and gcc."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

BINARY, RUNC, BUSYBOX = map(os.path.abspath, sys.argv[1:4])
RULE = '[[exec_rule]]\nname = "no shells"\ncommands = ["sh"]\n'


def call(*words, **options):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    return subprocess.run(words, check=True, **{**quiet, **options})


def lay_out(folder):
    """A bundle whose process sleeps, without the namespaces that need more set-up."""
    bundle = os.path.join(folder, "bundle")
    os.makedirs(os.path.join(bundle, "rootfs/bin"))
    shutil.copy(BUSYBOX, os.path.join(bundle, "rootfs/bin/busybox"))
    for name in ["sleep", "true"]:
        os.symlink("busybox", os.path.join(bundle, "rootfs/bin", name))
    call(RUNC, "spec", cwd=bundle)
    path = os.path.join(bundle, "config.json")
    with open(path) as file:
        spec = json.load(file)
    spec["process"].update(terminal=False, args=["/bin/sleep", "900"])
    unwanted = ["network", "cgroup"]
    kept = [one for one in spec["linux"]["namespaces"] if one["type"] not in unwanted]
    spec["linux"].update(namespaces=kept, cgroupsPath="/nri-runc-exec-rate")
    with open(path, "w") as file:
        json.dump(spec, file)
    return bundle


def main(folder):
    runtime, root, config = (os.path.join(folder, name) for name in ["runc", "root", "config.toml"])
    bundle = lay_out(folder)
    os.environ["NRI_RUNC_CONFIG"] = config

    def configure(more=""):
        with open(config, "w") as file:
            file.write(f'runtime = ["{runtime}"]\nrun_dir = "{folder}/run"\n[nri]\nsocket_path = "{folder}/nri.sock"\n'
                       f'plugin_path = "{folder}"\nplugin_config_path = "{folder}"\n{more}')
        call(BINARY, "nri", "reload")

    def rate(title, program, count):
        def one(_):
            call(program, "--root", root, "exec", "c1", "/bin/true")
        rates = []
        for callers in [1, 8]:
            begun = time.monotonic()
            with ThreadPoolExecutor(callers) as pool:
                list(pool.map(one, range(count)))
            rates.append(f"{count / (time.monotonic() - begun):.0f}")
        print(f"| {title} | {rates[0]} | {rates[1]} |")

    shutil.copy(RUNC, runtime)
    configure()
    try:
        call(BINARY, "--root", root, "create", "--bundle", bundle, "c1")
        call(BINARY, "--root", root, "start", "c1")
        rate("runc", runtime, 200)
        rate("runc, behind nri-runc", BINARY, 200)
        instant = os.path.join(folder, "instant")
        call("gcc", "-x", "c", "-static", "-O2", "-o", instant, "-", stdin=None, input=b"int main(void) { return 0; }")
        os.rename(runtime, runtime + ".real")
        os.rename(instant, runtime)
        rate("a runtime that returns at once", runtime, 2000)
        rate("that, behind nri-runc", BINARY, 2000)
        configure(RULE)
        rate("that, with an exec rule", BINARY, 2000)
        configure(f'[audit]\nexec = true\ntarget = "file"\npath = "{folder}/audit.log"\n')
        rate("that, in the audit log", BINARY, 2000)
        os.rename(runtime + ".real", runtime)
    finally:
        configure()
        call(BINARY, "--root", root, "delete", "--force", "c1")
        call(BINARY, "nri", "stop")


with tempfile.TemporaryDirectory(dir="/run", prefix="nri-runc-exec-rate.") as folder:
    main(folder)
