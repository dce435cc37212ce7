#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every test that this machine can run. The last lines are cargo's own.
set -eu
cd "$(dirname "$0")/.."
export NRI_RUNC_TOOLS="$PWD/target/tools"
cargo build --locked --examples --bins
exec cargo test --locked --no-fail-fast -- --test-threads=4
