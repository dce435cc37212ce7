#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures ratios against bare runc, the Go adaptation and containerd's own NRI in one run. Prints a
# table and writes target/bench/report.json. `bench.sh BINARY [RUST-TARGET]`
set -eu
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "bench: runc needs root here" >&2; exit 1; }
# A copy, because building the benchmarks rebuilds the program with test-only features.
mkdir -p target/bench
cp "$1" target/bench/nri-runc
NRI_RUNC_BINARY=$PWD/target/bench/nri-runc
NRI_RUNC_TOOLS=$PWD/target/tools/bin
export NRI_RUNC_BINARY NRI_RUNC_TOOLS

# A complete run adds a row to the history; a run of selected parts does not.
[ -n "${NRI_RUNC_BENCH:-}" ] || export NRI_RUNC_BENCH_CSV="${NRI_RUNC_BENCH_CSV:-$PWD/benches/figures.csv}"

# The comparison for passthrough_floor.
floor=$PWD/target/bench/floor
if cc -O2 -static -o "$floor" benches/verbs/floor.c 2>target/bench/cc.log; then
    export NRI_RUNC_FLOOR="$floor"
else
    echo "bench: no static C program here: passthrough_floor is skipped; see target/bench/cc.log"
fi

# The comparison for chain10, chain10_cpu, events_parallel, synchronize_10000 and the daemon's memory. Built without
# WebAssembly, which would only make it larger.
go=$PWD/target/bench/go-adaptation
if ! command -v go >/dev/null; then
    echo "bench: no Go here: chain10, chain10_cpu, events_parallel, synchronize_10000 and the daemon's memory are skipped"
elif (cd benches/go-adaptation && go build -tags nri_no_wasm -trimpath -ldflags=-s -o "$go" .) \
    2>target/bench/go.log; then
    export NRI_RUNC_GO_ADAPTATION="$go"
else
    echo "bench: the Go adaptation cannot be built: chain10, chain10_cpu, events_parallel, synchronize_10000 and the daemon's memory are skipped; see target/bench/go.log"
fi
# Built like the binary, because the measured adaptation runs inside the benchmark.
# It mounts a tmpfs if /run is not one.
trap 'umount /run/nri-runc-bench 2>/dev/null && rmdir /run/nri-runc-bench || true' EXIT
cargo bench --quiet --locked --bench verbs ${2:+--target "$2"}
find /sys/fs/cgroup -depth -type d -path "*/nri-runc-bench*" -exec rmdir {} + 2>/dev/null || true
