#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main use on one screen: a real bundle, the real runc and a plugin that is unaware of nri-runc.
# Uses private directories and sockets, and removes them at the end.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/target/tools/bin
[ "$(id -u)" = 0 ] || { echo "demo: runc needs root here" >&2; exit 1; }
# The debug build, which the tests use too; the static release build takes minutes longer.
cargo build --locked --bin nri-runc --example demo_plugin
built=$PWD/target/debug
binary=$built/nri-runc

work=$(mktemp -d)
id=demo-$$
daemon=
cleanup() {
    "$tools/runc" --root "$work/root" delete --force "$id" >/dev/null 2>&1 || true
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    sleep 0.2
    rm -rf "$work"
    find /sys/fs/cgroup -depth -type d -path "*/nri-runc-demo*" -exec rmdir {} + 2>/dev/null || true
}
trap cleanup EXIT INT TERM

if [ -t 1 ]; then bold=$(printf '\033[1;36m') dim=$(printf '\033[2m') off=$(printf '\033[0m'); else bold='' dim='' off=''; fi
title() { printf '\n%s%s%s\n' "$bold" "$*" "$off"; }

mkdir -p "$work/bundle/rootfs/bin" "$work/bundle/rootfs/proc" "$work/plugins" "$work/data"
echo "mounted by a plugin" >"$work/data/hello"
cp "$tools/busybox" "$work/bundle/rootfs/bin/"
for applet in sh cat env sleep; do ln -s busybox "$work/bundle/rootfs/bin/$applet"; done
# On one line, as engines write it: `adjust` formats such a document before it compares.
tr -d '\n' >"$work/bundle/config.json" <<JSON
{
  "ociVersion": "1.0.2",
  "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "env": ["PATH=/bin"],
    "args": ["sh", "-c", "echo GREETING=\$GREETING; cat /data/hello; exec sleep 1000"]},
  "root": {"path": "rootfs"},
  "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
  "annotations": {"nri-runc.dev/pod-name": "demo"},
  "linux": {"cgroupsPath": "/nri-runc-demo/$id", "resources": {"cpu": {"shares": 1024}},
    "namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "ipc"}]}
}
JSON
cp "$work/bundle/config.json" "$work/before.json"
cp "$built/examples/demo_plugin" "$work/plugins/10-greeter"
printf 'data=%s\nsaw=%s\n' "$work/data" "$work/saw" >"$work/greeter.conf"
cat >"$work/config.toml" <<TOML
runtime = ["$tools/runc"]
run_dir = "$work/run"
[nri]
socket_path = "$work/nri.sock"
plugin_path = "$work/plugins"
plugin_config_path = "$work"
TOML
export NRI_RUNC_CONFIG="$work/config.toml"

title "What would plugins change? nri-runc nri adjust --bundle bundle"
"$binary" nri adjust --bundle "$work/bundle" --id "$id" | sed "s#$work/##g"
rm -f "$work/saw"

title "\$ nri-runc create --bundle bundle $id && nri-runc start $id"
"$binary" --root "$work/root" create --bundle "$work/bundle" "$id" >"$work/output" 2>&1 </dev/null ||
    { cat "$work/output" "$work/run/daemon.log" >&2; exit 1; }
daemon=$("$binary" nri status --json | sed 's/.*"pid":\([0-9]*\).*/\1/')
"$binary" --root "$work/root" start "$id"
sleep 0.3

title "What the plugin 10-greeter saw"
cat "$work/saw"

title "Who changed what: nri-runc nri explain $id --show-env"
"$binary" nri explain "$id" --show-env

title "What the container saw"
cat "$work/output"
pid=$("$binary" --root "$work/root" state "$id" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')
shares=$(find /sys/fs/cgroup -path "*nri-runc-demo/$id/cpu.shares" 2>/dev/null | head -n 1)
[ -z "$shares" ] || printf 'cpu.shares %s\n' "$(cat "$shares")"
printf 'oom_score_adj %s\n' "$(cat "/proc/$pid/oom_score_adj")"

title "\$ nri-runc kill $id KILL && nri-runc delete $id"
"$binary" --root "$work/root" kill "$id" KILL
sleep 0.2
"$binary" --root "$work/root" delete "$id"
sleep 0.3
tail -n 4 "$work/saw"
if cmp -s "$work/before.json" "$work/bundle/config.json"; then
    printf '%sthe bundle is byte for byte as it was%s\n' "$dim" "$off"
fi

title "What to try next"
cat <<END
With an engine, as root (each takes five minutes, and takes itself back):
  make install                          installs /usr/local/bin/nri-runc and starts nothing
  nri-runc nri install docker           or podman, containerd, crio; --dry-run shows the diff
  docs/quickstart.md                    the steps for each engine
Without one:
  docs/howto/write-a-plugin.md          a plugin of your own, tried without a container
  make docs                             all pages as a book: target/book/html/index.html
END
