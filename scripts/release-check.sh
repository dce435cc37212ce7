#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the checks that take too long to run for every change (.github/workflows/release.yml), then lists the failed ones.
set -u
cd "$(dirname "$0")/.."
failed=

part() {
    name=$1
    shift
    echo "release-check: $name"
    "$@" || failed="$failed $name"
}

# The minimum Rust version of Cargo.toml.
oldest() {
    rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    rustup toolchain install "$rust" --profile minimal >/dev/null 2>&1
    # An installation that was interrupted has a name and no compiler.
    if ! rustc "+$rust" --version >/dev/null 2>&1; then
        echo "skipped: Rust $rust cannot be had here"
        return
    fi
    RUSTUP_TOOLCHAIN=$rust cargo check --locked --workspace --lib --bins --target-dir target/oldest
}

part oldest-rust oldest
part misuse cargo test --locked -p nri-plugin --features misuse --test misuse
packaged=$PWD/target/packaged-plugin
part plugin-package sh scripts/plugin-package.sh "$packaged"
part packaged-plugin env NRI_RUNC_PACKAGED_PLUGIN="$packaged" cargo test --locked --test engines template::the_
part book make --no-print-directory docs
part audit make --no-print-directory audit
part lengths env LENGTHS=all cargo test --locked --test pure length::
part fuzz env FUZZ_SECONDS=120 cargo test --locked --test pure fuzz::
part kills env KILLS=all cargo test --locked --test node kills:: -- --skip errno::
part slow env SLOW=all cargo test --locked --test node slow::
part plateau env PLATEAU=all cargo test --locked --test bundle plateau::
part mutants sh scripts/mutants.sh crates
part mutants-of-rules sh scripts/mutants.sh rules
[ -z "$failed" ] || { echo "release-check: failed:$failed"; exit 1; }
echo "release-check: all parts passed"
