#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the engine tests with newer engines than this Debian has: `engines.sh [NAME-VERSION...]`. With
# GUEST=systemd they run in a guest with cgroup v2 and systemd, one engine after the other. The tests for
# the guest are selected below: the others need what the guest lacks, or compare with recordings from v1.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
newer=$tools/newer

[ "$(id -u)" = 0 ] || { echo "engines: real containers need root" >&2; exit 1; }
GUEST=${GUEST:-}
[ $# -gt 0 ] || [ -z "$GUEST" ] || set -- containerd-2.4.2 containerd-2.2.9 containerd-1.7.35 crio-1.36.3 docker-28.5.2 docker-29.8.1 podman-5.8.3 podman-6.0.2 kubelet-1.34.4
[ $# -gt 0 ] || set -- crio-1.36.3 docker-28.5.2 docker-29.8.1 nerdctl-2.2.2 podman-5.8.3 podman-6.0.2
sh scripts/newer.sh "$@"
[ -n "$GUEST" ] || case " $* " in *" crio-"*) sh scripts/newer.sh critest-1.37.0 ;; esac
export CRITEST="$newer/critest-1.37.0/critest"
case " $* " in *" nerdctl-"*) sh scripts/newer.sh containerd-2.4.2 ;; esac
case " $* " in *" kubelet-"*) sh scripts/newer.sh containerd-2.4.2 ;; esac
# CRI-O's documents have a version that Debian 12's crun does not support.
case " $* " in *" crio-"* | *" podman-"*) sh scripts/newer.sh crun-1.21 ;; esac
# Docker 29 gives containers a time namespace, which Debian 12's runc does not support.
case " $* " in *" docker-29."*) sh scripts/newer.sh runc-1.5.2 ;; esac
case "$GUEST $* " in
*?" docker-"*) sh scripts/newer.sh containerd-2.2.9 ;;
*" docker-"*) sh scripts/newer.sh rootlesskit-2.3.6 ;;
esac
cargo build --locked --examples --bins

# in_guest NAME: runs its chosen tests in a guest, or VM_TESTS of the caller, which is a part and writes no row.
in_guest() {
    VM_WHY=$([ -n "${VM_TESTS:-}" ] || echo "$why") VM_TESTS=${VM_TESTS:-$tests} VM_FIRST=$GUEST sh scripts/vm/engines.sh "$1"
}

failed=
for name in "$@"; do
    if [ ! -e "$newer/$name/.done" ]; then
        failed="$failed $name"
        continue
    fi
    # The tools, with this engine's programs instead of Debian's.
    of_engine=$newer/$name.tools
    rm -rf "$of_engine"
    mkdir -p "$of_engine/bin"
    ln -sf "$tools"/bin/* "$newer/$name"/* "$of_engine/bin/"
    ln -s "$tools/lib" "$newer" "$of_engine"
    case $name in crio-* | podman-*) ln -sf "$newer/crun-1.21/crun" "$of_engine/bin/crun" ;; esac
    case $name in docker-29.*) ln -sf "$newer/runc-1.5.2/runc" "$of_engine/bin/runc" ;; esac
    case "$GUEST$name" in docker-*) ln -sf "$newer/rootlesskit-2.3.6/rootlesskit" "$of_engine/bin/" ;; esac
    echo "engines: $name"
    if [ -n "$GUEST" ]; then
        why='which need what the guest lacks, compare with records of v1, ask nothing of the driver or were not tried there'
        case $name in
        # Without the test of a containerd that has no configured runtimes: it would use the cgroupfs driver.
        containerd-2.4.*) tests='a_ installed::a_containerd_handler exits:: injected:: promised:: refused:: later:: adopted:: origin:: ctr:: samples::' ;;
        containerd-*) tests='a_ installed::a_containerd_handler exits:: injected:: later::a_later_process later::a_cdi refused:: adopted:: ctr:: samples::' ;;
        # Without the comparison with its own NRI, which needs exit codes earlier than the guest has them.
        crio-*) tests='life:: promised:: refused:: registration:: exits:: template::' ;;
        docker-*)
            # Docker needs a containerd of the same age, which the guest runs as a service. rootlesskit is not there.
            tests='adjusted:: endings:: exits:: injected:: later:: origin:: promised:: refused:: registration:: described:: updates::'
            rm "$of_engine"/bin/containerd* "$of_engine/bin/ctr"
            cp "$newer"/containerd-2.2.9/* "$of_engine/bin/" ;;
        kubelet-*)
            tests=
            rm "$of_engine"/bin/containerd* "$of_engine/bin/ctr"
            cp "$newer"/containerd-2.4.2/* "$of_engine/bin/" ;;
        podman-*) tests='a_ adjusted:: rootless::a_users_plugin crun:: installs:: described:: updates:: pods:: later:: injected:: promised:: refused:: origin:: ends::a_container_that_exits exits::' ;;
        *) tests= ;;
        esac
        begun=$(date +%s)
        in_guest "$name" || failed="$failed $name"
        echo "engines: $name took $(($(date +%s) - begun)) s"
        continue
    fi
    suite=${name%%-*}::
    case $name in
    crio-* | docker-* | podman-5.*) ;;
    nerdctl-*) suite=containerd::nerdctl:: ;;
    podman-6.*)
        # Podman 6 refuses cgroup v1. The guest has v2, and takes a quarter of an hour.
        if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
            tests='a_ adjusted:: builds:: crun:: ends:: exits:: injected:: installs:: labels:: later:: origin:: pods:: promised:: refused:: described:: updates::'
            why='which need a cgroup that systemd delegates to a user'
            in_guest "$name" || failed="$failed $name"
            continue
        fi ;;
    *)
        failed="$failed $name"
        continue ;;
    esac
    if NRI_RUNC_TOOLS=$of_engine sh scripts/skips.sh "$name" \
        cargo test --locked --no-fail-fast --test engines "$suite" -- --test-threads=4 --skip hooks::; then
        sh scripts/matrix.sh ran 'make engines' "${name%%-*}" "${name#*-}" "runc $("$of_engine/bin/runc" --version | grep -o '[0-9][0-9.]*[0-9]' | head -n 1)"
        case $name in crio-* | podman-*) sh scripts/matrix.sh ran 'make engines' "${name%%-*}" "${name#*-}" 'crun 1.21' ;; esac
    else
        failed="$failed $name"
    fi
done
[ -z "$failed" ] || { echo "engines: not passed:$failed"; exit 1; }
