#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tests of an engine, run with newer ones than this Debian has: `engines.sh [NAME-VERSION...]`
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
newer=$tools/newer

[ $# -gt 0 ] || set -- crio-1.36.3 docker-28.5.2 podman-5.8.3 podman-6.0.2
sh scripts/newer.sh "$@"
cargo build --locked --examples --bins
failed=
for name in "$@"; do
    if [ ! -e "$newer/$name/.done" ]; then
        failed="$failed $name"
        continue
    fi
    # The tools, with this engine's programs in place of Debian's.
    of_engine=$newer/$name.tools
    rm -rf "$of_engine"
    mkdir -p "$of_engine/bin"
    ln -s "$tools"/bin/* "$newer/$name"/* -f -t "$of_engine/bin"
    ln -s "$tools/lib" "$newer" "$of_engine"
    echo "engines: $name"
    NRI_RUNC_TOOLS=$of_engine sh scripts/skips.sh "$name" \
        cargo test --locked --no-fail-fast --test "${name%%-*}" -- --test-threads=4 || failed="$failed $name"
done
[ -z "$failed" ] || { echo "engines: not passed:$failed"; exit 1; }
