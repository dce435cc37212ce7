#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The names in src/musl/hot.ld: the functions that a wrapper and the daemon run for a container (docs/decisions, page 4).
#   hot.sh make    traces wrapper and daemon of the static release build through the verbs of a
#                  container and rewrites the names; needs root and `make build`
#   hot.sh check   fails if fewer than 90 of 100 names are functions of that build, and prints the
#                  others; without such a build it prints so and checks nothing: it never builds
set -eu
cd "$(dirname "$0")/.."
script=src/musl/hot.ld
built=target/x86_64-unknown-linux-musl/release
tools=$PWD/target/tools/bin
id=hot-$$
least=90
# Several functions may match a name. A name is dropped if the matching functions that were not executed exceed this many
# bytes.
most_strays=16384

fail() { printf 'hot: %s\n' "$*" >&2; exit 1; }

# The linker map of the newest static build (src/musl/build.rs).
map=$(find "$built/build" -path '*/out/nri-runc.map' -printf '%T@ %p\n' 2>/dev/null |
    sort -rn | sed -n '1s/^[^ ]* //p')

# Replaces compilation hashes with `*`, as in hot.ld.
general() { sed -E 's/17h[0-9a-f]{16}E/17h*/; s/Cs[0-9A-Za-z]{6,}_([0-9]|$)/Cs*_\1/g'; }

# Prints ADDRESS SIZE NAME of each function in the build except the C library's, which hot.ld includes
# as a whole. A long name has its own line in the map.
functions() {
    awk '/^Linker script and memory map/ { inside = 1 }
        !inside { next }
        /^ \.text/ && NF == 1 { name = $1; next }
        /^ \.text/ && NF >= 4 { name = $1; address = $2; size = $3; file = $4 }
        /^ +0x/ && name && NF >= 3 { address = $1; size = $2; file = $3 }
        address { if (size != "0x0" && file !~ /libc\.a|crt[1in]|crtbegin|crtend/ && name !~ /^\.text(\.main|\.nri_runc_copy)?$/)
            print substr(address, 3), substr(size, 3), name }
        { name = address = "" }' "$map" | general
}

named() { sed -n '/^ *\/\* names/,/^ *\/\* end of names/s/^ *\*(\([^ ]*\).*)$/\1/p' "$script"; }

check() {
    if [ -z "$map" ]; then
        echo "skipped: the names in $script (no static release build is here; make build)"
        return
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    functions | cut -d ' ' -f 3 | sort -u >"$work/there"
    named | sort -u >"$work/named"
    comm -13 "$work/there" "$work/named" >"$work/gone"
    all=$(wc -l <"$work/named")
    gone=$(wc -l <"$work/gone")
    [ "$all" -gt 0 ] || fail "$script has no names"
    [ $((gone * 100)) -gt $((all * (100 - least))) ] || return 0
    sed 's/^/  /' "$work/gone" >&2
    fail "these $gone of the $all names in $script are no functions of the build of $(date -r "$map" '+%F %R'): make build, then sh scripts/hot.sh make"
}

# Writes the bundle of a container with these annotations (JSON members).
bundle() {
    mkdir -p "$1/rootfs/bin"
    cp "$tools/busybox" "$1/rootfs/bin/sleep"
    cat >"$1/config.json" <<JSON
{
  "ociVersion": "1.0.2",
  "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "env": ["PATH=/bin"], "args": ["sleep", "1000"]},
  "root": {"path": "rootfs"},
  "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
  "annotations": {$2},
  "linux": {"cgroupsPath": "/nri-runc-hot/$id", "namespaces": [{"type": "mount"}, {"type": "pid"}]}
}
JSON
}

# Repeats a command until it succeeds, for ten seconds.
wait_until() {
    waited=0
    until "$@"; do
        [ $((waited += 1)) -le 100 ] || return 1
        sleep 0.1
    done
}

has_plugin() { "$built/nri-runc" nri plugins --json 2>/dev/null | grep -q '"name"'; }

# Traces the verbs of the container in this bundle.
calls=0
run_container() {
    for words in "create --bundle $1 --pid-file $work/pid" start state "kill --all" "delete --force"; do
        verb=${words%% *} signal=
        calls=$((calls + 1))
        [ "$verb" != kill ] || signal=KILL
        # shellcheck disable=SC2086
        target/debug/examples/call_trace "$work/$(printf 'trace.wrapper.%02d' "$calls")" "$work/addresses" "$built/nri-runc" --root "$work/root" $words "$id" $signal \
            >"$work/out" 2>&1 </dev/null || fail "$verb fails: $(cat "$work/out")"
    done
}

# Traces the verbs of a container without an engine, and of one with the bundle of containerd's CRI but no containerd that
# answers; a plugin changes the documents of both. The daemon's start and end are not traced.
trace() {
    cargo build --quiet --locked --example demo_plugin --example call_trace
    mkdir "$work/plugins" "$work/data"
    cp target/debug/examples/demo_plugin "$work/plugins/10-greeter"
    printf 'data=%s\nsaw=%s\n' "$work/data" "$work/saw" >"$work/greeter.conf"
    of_cri="$work/io.containerd.runtime.v2.task/k8s.io/$id"
    bundle "$work/bundle" ""
    bundle "$of_cri" '"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "app",
    "io.kubernetes.cri.sandbox-id": "pod", "io.kubernetes.cri.sandbox-name": "web-0", "io.kubernetes.cri.sandbox-namespace": "default",
    "io.kubernetes.cri.sandbox-uid": "6f2c"'
    cat >"$work/config.toml" <<TOML
runtime = ["$tools/runc"]
run_dir = "$work/run"
autostart = false
on_daemon_failure = "fail"
[nri]
socket_path = "$work/nri.sock"
plugin_path = "$work/plugins"
plugin_config_path = "$work"
TOML
    export NRI_RUNC_CONFIG="$work/config.toml"
    "$built/nri-runc" nri daemon >"$work/daemon.out" 2>&1 &
    daemon=$!
    wait_until has_plugin || fail "the daemon or its plugin does not start: $(cat "$work/daemon.out")"
    target/debug/examples/call_trace "$work/trace.daemon" "$work/addresses" --pid "$daemon" &
    tracer=$!
    wait_until [ -e "$work/trace.daemon" ] || fail "the daemon cannot be traced"
    run_container "$work/bundle"
    export GRPC_ADDRESS="$work/none"
    run_container "$of_cri"
}

clean() {
    "$tools/runc" --root "$work/root" delete --force "$id" >/dev/null 2>&1 || true
    [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null || true
    rm -rf "$work"
    find /sys/fs/cgroup -depth -type d -path "*/nri-runc-hot*" -exec rmdir {} + 2>/dev/null || true
}

# Reads the addresses of called functions, and prints a line of hot.ld for each name: the function with its jump tables.
lines() {
    awk -v functions="$work/functions" -v tables="$work/tables" '
        function number(hex,  i, n) { n = 0
            for (i = 1; i <= length(hex); i++) n = n * 16 + index("0123456789abcdef", substr(hex, i, 1)) - 1
            return n }
        BEGIN {
            while ((getline line < functions) > 0) {
                split(line, of, " "); name[of[1]] = of[3]; size[of[1]] = number(of[2]); strays[of[3]] += size[of[1]] }
            while ((getline line < tables) > 0) has[line] = 1
        }
        !called[$0]++ { strays[name[$0]] -= size[$0]; if (!first[name[$0]]++) order[++count] = name[$0] }
        END { for (i = 1; i <= count; i++) if (strays[order[i]] <= '$most_strays') {
            suffix = substr(order[i], 6)
            print "    *(" order[i] (suffix in has ? " .rodata" suffix : "") ")" } }'
}

make_names() {
    [ "$(id -u)" = 0 ] || fail "runc needs root here"
    [ -n "$map" ] || fail "no static release build is here: make build"
    # A breakpoint of another build's map would be inside of an instruction.
    age=$(($(stat -c %Y "$built/nri-runc") - $(stat -c %Y "$map")))
    [ "$age" -ge -60 ] && [ "$age" -le 60 ] || fail "$map is not of the present build: make build"
    work=$(mktemp -d)
    daemon=
    trap clean EXIT
    trap 'exit 1' INT TERM
    functions >"$work/functions"
    cut -d ' ' -f 1 "$work/functions" >"$work/addresses"
    trace
    # The daemon records the removal after the last verb.
    sleep 1
    kill "$daemon"
    wait "$tracer" || fail "the trace of the daemon failed"
    wait "$daemon" || true
    daemon=
    grep -o '^ \.rodata\.[^ ]*' "$map" | sed 's/^ .rodata//' | general | sort -u >"$work/tables"
    cat "$work"/trace.wrapper.* | lines >"$work/names.wrapper"
    lines <"$work/trace.daemon" >"$work/names"
    grep -vxFf "$work/names.wrapper" "$work/names" >"$work/names.daemon" || true
    for which in wrapper daemon; do
        count=$(wc -l <"$work/names.$which")
        [ "$count" -gt 50 ] || fail "only $count functions of the $which were seen"
        echo "$script: $count names of the $which; make build"
    done
    awk -v names="$work/names" '
        /^ *\/\* end of names/ { while ((getline line < (names "." which)) > 0) print line; skip = 0 }
        !skip { print }
        /^ *\/\* names of the/ { which = $5; skip = 1 }' "$script" >"$work/hot.ld"
    cat "$work/hot.ld" >"$script"
}

case ${1:-} in
make) make_names ;;
check) check ;;
*) fail "make or check?" ;;
esac
