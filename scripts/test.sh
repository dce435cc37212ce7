#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every test that this machine can run, then a list of those that it cannot. A failure keeps nothing
# else from running. The documentation's tests are the last: the last lines are cargo's own.
set -eu
cd "$(dirname "$0")/.."
export NRI_RUNC_TOOLS="$PWD/target/tools"
failed=

run() { "$@" || failed="$failed
  $*"; }

run make --no-print-directory static
cargo build --locked --examples --bins
run sh scripts/left.sh sh scripts/skips.sh test sh scripts/again.sh cargo test --locked --no-fail-fast --tests -- --test-threads=4
run cargo test --locked -p nri-api -p nri-adaptation -p nri-transport -p nri-plugin -p oci-document \
    --features nri-api/services,nri-api/json,nri-plugin/harness
[ -n "$failed" ] || run sh scripts/matrix.sh tested
[ -z "$failed" ] || printf 'failed, see above:%s\n' "$failed"
run cargo test --locked --doc
[ -z "$failed" ]
