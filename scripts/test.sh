#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every test that this machine can run, then a list of those that it cannot, and of what the tests
# left outside of target and /tmp, which fails under CI. What fails keeps nothing else from running.
# The documentation's tests are the last: the last lines are cargo's own.
set -eu
cd "$(dirname "$0")/.."
export NRI_RUNC_TOOLS="$PWD/target/tools"
lists=target/left
failed=

run() { "$@" || failed="$failed
  $*"; }

# Files of this machine, without those that other programs of a system come and go with.
list_files() {
    find /run /var/lib /etc /opt -xdev -maxdepth 4 \( -path /run/systemd -o -path /run/user -o -path /run/udev -o -path /run/log \
        -o -path /run/lock -o -path /run/mount -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd \) -prune \
        -o -print 2>/dev/null | LC_ALL=C sort
}

nothing_is_left() {
    list_files >$lists/after
    LC_ALL=C comm -13 $lists/before $lists/after >$lists/new
    [ -s $lists/new ] || return 0
    echo "the tests left files of this machine, unless another program made them:"
    head -n 20 $lists/new
    [ -z "${CI:-}" ]
}

run make --no-print-directory static
cargo build --locked --examples --bins
mkdir -p $lists
list_files >$lists/before
run sh scripts/skips.sh test cargo test --locked --no-fail-fast --tests -- --test-threads=4
# The export of spans is in no other build.
run cargo test --locked --features otlp --test tracing
run nothing_is_left
[ -z "$failed" ] || printf 'failed: %s\n' "$failed"
run cargo test --locked --doc
[ -z "$failed" ]
