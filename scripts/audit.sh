#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the dependencies of nri-runc and of the image's helper: licenses, sources, forbidden crates (deny.toml beside
# each Cargo.toml), then known vulnerabilities if the advisory database is reachable. `audit.sh if-installed`, for
# `make lint`, skips checks whose tool is missing and prints so.
set -eu
cd "$(dirname "$0")/.."
DENY=0.20.2
tools=$PWD/target/tools

say() { printf 'audit: %s\n' "$*"; }
fail() { printf 'audit: %s\n' "$*" >&2; exit 1; }

deny=$(command -v cargo-deny || echo "$tools/cargo-deny-$DENY/bin/cargo-deny")
if [ ! -x "$deny" ]; then
    if [ "${1:-}" = if-installed ]; then
        say "skipped: cargo-deny is not installed (make audit installs it)"
        exit 0
    fi
    say "building cargo-deny $DENY into target/tools, once"
    cargo install --locked --version "$DENY" --root "$tools/cargo-deny-$DENY" cargo-deny >"$tools/cargo-deny.log" 2>&1 ||
        fail "cargo-deny cannot be built: $(tail -n 1 "$tools/cargo-deny.log")"
fi
# check CHECK...: runs these checks for nri-runc and for its image's helper.
check() {
    wrong=''
    for folder in . contrib/kubernetes/node-helper; do
        (cd "$folder" && "$deny" --log-level error check "$@") || wrong="$wrong $folder/deny.toml"
    done
    [ -z "$wrong" ] || fail "cargo-deny failed, see above; with$wrong"
}
check bans licenses sources
if ! "$deny" --log-level error fetch db >/dev/null 2>&1; then
    [ "${1:-}" = if-installed ] || [ -z "${CI:-}" ] || fail "the database of advisories cannot be had"
    say "skipped: advisories (their database cannot be had)"
    exit 0
fi
check advisories
say "licenses, sources and advisories are in order"
