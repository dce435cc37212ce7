#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How costs grow: measures the curves of benches/verbs/growth.rs and prints whether each slope is within its limit. With KEEP=1
# the numbers and their pictures go into the book. `bench-growth.sh BINARY [RUST-TARGET]`; NRI_RUNC_BENCH: some curves.
set -eu
cd "$(dirname "$0")/.."
NRI_RUNC_GROWTH=1 sh scripts/bench.sh "$@"
[ -z "${KEEP:-}" ] || {
    cp target/bench/growth.csv docs/growth.csv
    python3 scripts/growth.py
}
