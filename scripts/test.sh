#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every test that this machine can run, then a list of those that it cannot. The documentation's
# tests are the last: the last lines are cargo's own.
set -eu
cd "$(dirname "$0")/.."
export NRI_RUNC_TOOLS="$PWD/target/tools"
cargo build --locked --examples --bins
sh scripts/skips.sh test cargo test --locked --no-fail-fast --tests -- --test-threads=4
# The export of spans is in no other build.
cargo test --locked --features otlp --test tracing
exec cargo test --locked --doc
