#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures how costs grow (the curves of benches/verbs/growth.rs) and prints whether each slope is within its limit. KEEP=1
# writes the numbers and charts into the book. `bench-growth.sh BINARY [RUST-TARGET]`; NRI_RUNC_BENCH selects curves.
set -eu
cd "$(dirname "$0")/.."
NRI_RUNC_GROWTH=1 sh scripts/bench.sh "$@"
[ -z "${KEEP:-}" ] || {
    cp target/bench/growth.csv docs/growth.csv
    python3 scripts/growth.py
}
