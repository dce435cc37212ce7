#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ratios against bare runc in the same run; a table on stdout, target/bench/report.json.
set -eu
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "bench: runc needs root here" >&2; exit 1; }
NRI_RUNC_BINARY=$PWD/$1
NRI_RUNC_TOOLS=$PWD/target/tools/bin
export NRI_RUNC_BINARY NRI_RUNC_TOOLS
cargo bench --quiet --locked --bench verbs
find /sys/fs/cgroup -depth -type d -path "*/nri-runc-bench*" -exec rmdir {} + 2>/dev/null || true
