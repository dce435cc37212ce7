#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs all tests that this machine can run, then lists the skipped ones. A failure does not stop the other
# tests. The documentation tests come last, so the last lines are cargo's, or one line for each earlier failure.
set -eu
cd "$(dirname "$0")/.."
export NRI_RUNC_TOOLS="$PWD/target/tools"
failed=
NRI_RUNC_FAILED=$(mktemp)
export NRI_RUNC_FAILED
trap 'rm -f "$NRI_RUNC_FAILED"' EXIT

run() { "$@" || failed="$failed
  $*"; }

run make --no-print-directory static
cargo build --locked --examples --bins
run sh scripts/left.sh sh scripts/skips.sh test sh scripts/again.sh cargo test --locked --no-fail-fast --tests -- --test-threads=4
# These are never rerun: a test alone would be built without the features of the others.
run env AT_MOST=0 sh scripts/again.sh cargo test --locked --no-fail-fast -p nri-api -p nri-adaptation -p nri-transport -p nri-plugin \
    -p oci-document -p network-logger -p rdt -p v010-adapter -p writable-cgroups --features nri-api/services,nri-api/json,nri-plugin/harness
# The examples of these crates, which the tests have built.
for example in adjustment handshake every_event; do
    run "${CARGO_TARGET_DIR:-target}/debug/examples/$example"
done
[ -n "$failed" ] || run sh scripts/matrix.sh tested
run cargo test --locked --doc
if [ -n "$failed" ]; then
    printf 'failed, see above:%s\n' "$failed"
    cut -c 1-240 "$NRI_RUNC_FAILED"
    exit 1
fi
