#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds an earlier version from its tag or commit below target/earlier, then upgrades a running daemon to
# this version and downgrades it again, with a plugin and containers. `upgrade-test.sh [REF]`
set -eu
cd "$(dirname "$0")/.."
fail() { printf 'upgrade-test: %s\n' "$*" >&2; exit 1; }

ref=${1:-$(git describe --tags --abbrev=0 2>/dev/null || :)}
[ -n "$ref" ] || fail "there is no tag yet: name a commit, for example FROM=HEAD~20"
commit=$(git rev-parse --verify --quiet "$ref^{commit}") || fail "$ref is no commit of this checkout"
place=$PWD/target/earlier/$commit
if [ ! -x "$place/target/debug/nri-runc" ]; then
    printf 'upgrade-test: building %s, once\n' "$ref"
    mkdir -p "$place"
    git archive "$commit" | tar -x -C "$place"
    (cd "$place" && cargo build --locked --quiet --bin nri-runc --target-dir "$place/target") ||
        fail "$ref cannot be built"
fi
NRI_RUNC_EARLIER=$place/target/debug/nri-runc
export NRI_RUNC_EARLIER
"$NRI_RUNC_EARLIER" nri reexec --help >/dev/null 2>&1 ||
    fail "$ref has no reexec: an upgrade from it needs nri-runc nri restart"
cargo test --locked --test node reexec::earlier::
