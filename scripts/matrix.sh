#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Records which engines were tested, and on what: the first table of docs/compatibility.md.
#   matrix.sh ran TARGET ENGINE VERSION RUNTIME [DRIVER] [CGROUPS KERNEL]
#       records in target/matrix.csv that TARGET passed with this engine; called by the make targets.
#   matrix.sh tested
#       records the engines that `make test` runs: Debian's, and the newer containerd.
#   matrix.sh keep
#       copies the newest record of each row into docs/matrix.csv. `UPDATE_GOLDEN=1 cargo test --test tidy
#       matrix` then writes the page.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
# crun executes a copy of itself, from which its libraries are not found.
number() { LD_LIBRARY_PATH=$tools/lib "$tools/bin/$1" --version 2>/dev/null | grep -o '[0-9][0-9.]*[0-9]' | head -n 1; }

case ${1:-} in
tested)
    for program in containerd dockerd podman; do
        version=$(number $program) || continue
        engine=$program
        [ $program != dockerd ] || engine=docker
        sh scripts/matrix.sh ran 'make test' $engine "$version" "runc $(number runc)"
    done
    [ ! -e "$tools/bin/crun" ] || sh scripts/matrix.sh ran 'make test' podman "$(number podman)" "crun $(number crun)"
    [ ! -e "$tools/newer/crun-1.28/.done" ] || sh scripts/matrix.sh ran 'make test' podman "$(number podman)" 'crun 1.28'
    for name in "$tools"/newer/containerd-*; do
        [ ! -e "$name/.done" ] || sh scripts/matrix.sh ran 'make test' containerd "${name##*containerd-}" "runc $(number runc)"
    done
    ;;
ran)
    target=$2 engine=$3 version=$4 runtime=$5 driver=${6:-cgroupfs}
    cgroups=${7:-}
    [ -n "$cgroups" ] || { [ -e /sys/fs/cgroup/cgroup.controllers ] && cgroups=v2 || cgroups=v1; }
    kernel=${8:-$(uname -r | sed 's/^\([0-9]*\.[0-9]*\).*/\1/')}
    mkdir -p target
    echo "$engine,$version,$cgroups,$driver,$kernel,$runtime,$target,$(date -u +%Y-%m-%d)" >>target/matrix.csv
    ;;
keep)
    [ -e target/matrix.csv ] || { echo "matrix: no target has run an engine here" >&2; exit 1; }
    head=engine,version,cgroups,driver,kernel,runtime,target,date
    {
        echo "$head"
        { tail -n +2 docs/matrix.csv 2>/dev/null || :; cat target/matrix.csv; } |
            LC_ALL=C sort -t, -k 8,8r | awk -F, '!seen[$1 FS $2 FS $3 FS $4 FS $5 FS $6 FS $7]++' | LC_ALL=C sort -t, -k 1,1 -k 2,2V -k 3
    } >target/matrix.kept
    mv target/matrix.kept docs/matrix.csv
    ;;
*) echo "usage: matrix.sh ran TARGET ENGINE VERSION RUNTIME [DRIVER] [CGROUPS KERNEL] | tested | keep" >&2; exit 2 ;;
esac
