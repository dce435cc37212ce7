#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ratios against bare runc, the Go adaptation and containerd's own NRI, in the same run; a table on
# stdout, target/bench/report.json. `bench.sh BINARY [RUST-TARGET]`
set -eu
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "bench: runc needs root here" >&2; exit 1; }
# A copy: building the bench makes the program anew with the features that only tests want.
mkdir -p target/bench
cp "$1" target/bench/nri-runc
NRI_RUNC_BINARY=$PWD/target/bench/nri-runc
NRI_RUNC_TOOLS=$PWD/target/tools/bin
export NRI_RUNC_BINARY NRI_RUNC_TOOLS

# A whole run is a row of the history; one of some parts is a trial.
[ -n "${NRI_RUNC_BENCH:-}" ] || export NRI_RUNC_BENCH_CSV="${NRI_RUNC_BENCH_CSV:-$PWD/benches/figures.csv}"

# The other side of passthrough_floor.
floor=$PWD/target/bench/floor
if cc -O2 -static -o "$floor" benches/verbs/floor.c 2>target/bench/cc.log; then
    export NRI_RUNC_FLOOR="$floor"
else
    echo "bench: no static C program here: passthrough_floor is skipped; see target/bench/cc.log"
fi

# The other side of chain10, chain10_cpu, events_parallel, synchronize_10000 and the daemon's memory. Without WebAssembly,
# which would only make it larger.
go=$PWD/target/bench/go-adaptation
if ! command -v go >/dev/null; then
    echo "bench: no Go here: chain10, chain10_cpu, events_parallel, synchronize_10000 and the daemon's memory are skipped"
elif (cd benches/go-adaptation && go build -tags nri_no_wasm -trimpath -ldflags=-s -o "$go" .) \
    2>target/bench/go.log; then
    export NRI_RUNC_GO_ADAPTATION="$go"
else
    echo "bench: the Go adaptation cannot be built: chain10, chain10_cpu, events_parallel, synchronize_10000 and the daemon's memory are skipped; see target/bench/go.log"
fi
# Built as the binary is: the measured adaptation runs inside of it.
# It mounts memory where /run is none.
trap 'umount /run/nri-runc-bench 2>/dev/null && rmdir /run/nri-runc-bench || true' EXIT
cargo bench --quiet --locked --bench verbs ${2:+--target "$2"}
find /sys/fs/cgroup -depth -type d -path "*/nri-runc-bench*" -exec rmdir {} + 2>/dev/null || true
