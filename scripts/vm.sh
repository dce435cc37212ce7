#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the cgroup v2 cases in a guest (Debian's kernel, busybox, runc, crun and the programs built
# here) under qemu without KVM, and again with systemd, for containers in its scopes. Everything is
# below target/vm; nothing is installed. Not part of `make test`, because it takes minutes on a
# shared machine. VM_MINUTES limits each boot (10). VM_FIRST=plain, fields, v1 or systemd selects
# one boot. UPDATE_GOLDEN=1 writes the table of fields in docs/compatibility.md.
set -eu
cd "$(dirname "$0")/.."
sh scripts/vm/packages.sh
cargo test --locked --no-run --test node 2>target/vm/build.log || { cat target/vm/build.log >&2; exit 1; }
cases=$(sed -n 's/.*Executable .*(\(.*\))$/\1/p' target/vm/build.log)
[ -x "$cases" ] || { cat target/vm/build.log >&2; echo "vm: cargo names no program with the cases" >&2; exit 1; }
cargo build --locked --manifest-path contrib/kubernetes/node-helper/Cargo.toml --target-dir target/node-helper 2>target/vm/helper.log ||
    { cat target/vm/helper.log >&2; exit 1; }
sh scripts/vm/image.sh "${cases%/deps/*}/nri-runc" "$cases" target/node-helper/debug/nri-runc-node-helper
boot() {
    [ "${VM_FIRST:-$1}" = "$1" ] || return 0
    sh scripts/vm/boot.sh "$@" || { echo "vm: failed; all that the guest said is in target/vm/serial-$1.log" >&2; exit 1; }
    printf 'vm: %s cases hold (%s)\n' "$(grep -c '^case .*: ok' "target/vm/serial-$1.log")" "$1"
}
# Each case with runc and with crun; evictions and checkpoints do not depend on the cgroup version.
boot plain --nocapture --test-threads=2 resources::v2:: resources::evictions:: resources::checkpoint:: resources::resized:: resources::clock::
# Each field of an adjustment with each runtime, on both versions; on v1 also updates of containers outside nri-runc.
boot fields --nocapture resources::matrix::each
boot v1 --nocapture resources::matrix::each resources::plain::updates
boot systemd --nocapture --test-threads=2 resources::scopes:: resources::units:: resources::journaled:: resources::node_helper::
if [ -n "${UPDATE_GOLDEN:-}" ]; then
    cat target/vm/serial-fields.log target/vm/serial-v1.log >target/vm/fields.log
    NRI_RUNC_FIELDS=$PWD/target/vm/fields.log cargo test --locked --test node resources::matrix::page::
fi
# A skipped case in the guest is a failure (scripts/vm/boot.sh).
echo "vm: nothing was skipped"
