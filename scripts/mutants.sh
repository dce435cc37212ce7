#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Mutates the merge and the document edits (`mutants.sh crates`, half an hour) or the rules (`mutants.sh rules`, minutes),
# one place at a time, and runs their tests: each mutant must fail a test, or be listed with a reason in
# scripts/mutants.txt. MUTANTS=0/12 runs one of twelve shards. Builds in target/mutants, for the crates one copy of the sources
# for each processor, at most four; for the rules one copy with all mutants (scripts/mutants.py), because compiling the package takes minutes.
set -eu
cd "$(dirname "$0")/.."
version=27.1.0
tools=$PWD/target/tools/cargo-mutants-$version
work=$PWD/target/mutants

fail() { printf 'mutants: %s\n' "$*" >&2; exit 1; }

case ${1:-} in crates | rules) ;; *) fail "crates or rules?" ;; esac
if [ ! -x "$tools/bin/cargo-mutants" ]; then
    echo "mutants: building cargo-mutants $version into target/tools, once"
    mkdir -p "$work"
    cargo install cargo-mutants --version "$version" --locked --root "$tools" --target-dir "$work/tool" >"$work/tool.log" 2>&1 ||
        fail "cargo-mutants cannot be built: $(tail -n 1 "$work/tool.log")"
    rm -rf "$work/tool"
fi

jobs=$(nproc)
[ "$jobs" -le 4 ] || jobs=4

# Removes the line and column, which any edit changes.
names() { sed -E 's/^([^:]+):[0-9]+:[0-9]+: /\1: /' "$@"; }

mkdir -p "$work"
: >"$work/missed"
caught=0
# try NAME ARGUMENTS...: mutates the packages that the arguments name, and runs their unit tests. A mutant whose tests
# time out counts as caught.
try() {
    part=$1
    shift
    rm -rf "${work:?}/$part" "$work/copies"
    mkdir -p "$work/$part" "$work/copies"
    status=0
    # Each copy has a target folder, so that they do not wait for each other. Compiling the mutated crates takes longer
    # than running their tests, so these crates are not optimized.
    env -u CARGO_TARGET_DIR PATH="$tools/bin:$PATH" TMPDIR="$work/copies" CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=none \
        cargo mutants --jobs "$jobs" --timeout 90 --colors never --no-times --output "$work/$part" \
        ${MUTANTS:+--shard "$MUTANTS"} --cargo-arg=--locked --cargo-arg=--lib \
        --cargo-arg=--config --cargo-arg=profile.dev.package.nri-adaptation.opt-level=0 \
        --cargo-arg=--config --cargo-arg=profile.dev.package.oci-document.opt-level=0 "$@" || status=$?
    case $status in 0 | 2 | 3) ;; *) fail "cargo mutants failed for $part with $status" ;; esac
    caught=$((caught + $(cat "$work/$part/mutants.out/caught.txt" "$work/$part/mutants.out/timeout.txt" | wc -l)))
    names "$work/$part/mutants.out/missed.txt" >>"$work/missed"
}

case $1 in
crates) try crates --package nri-adaptation --package oci-document ;;
# The rules' golden cases and properties are in tests/pure.
rules)
    mkdir -p "$work/rules"
    find "$work/rules" -mindepth 1 -maxdepth 1 ! -name target -exec rm -rf {} +
    PATH="$tools/bin:$PATH" cargo mutants --package nri-runc --file 'src/rules/*.rs' ${MUTANTS:+--shard "$MUTANTS"} \
        --list --json >"$work/rules/list.json"
    env -u CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG=none python3 scripts/mutants.py "$work/rules/list.json" "$work/rules" rules:: pure
    caught=$(wc -l <"$work/rules/caught.txt")
    names "$work/rules/missed.txt" >>"$work/missed"
    ;;
esac
missed=$(wc -l <"$work/missed")
tried=$((caught + missed))

# A line is `MUTANT | REASON`.
sed -n 's/^\([^#].*\) | .*/\1/p' scripts/mutants.txt | LC_ALL=C sort -u >"$work/named"
LC_ALL=C sort -u "$work/missed" >"$work/sorted"
new=$(LC_ALL=C comm -13 "$work/named" "$work/sorted")
[ -z "$new" ] || fail "no test fails for these, of $tried:
$new"
echo "mutants: $tried tried, $caught caught, $missed named with a reason"
