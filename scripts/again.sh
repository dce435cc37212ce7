#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs tests; `again.sh COMMAND...`, a `cargo test` of programs. One or two that fail are run three times
# more, each alone: where they pass each time, what failed was their company or the machine's pace. They
# are named at the end, their failure stands above, and the command has passed. A test that fails again,
# and more than two that fail, fail the command.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ "$@" 2>&1; echo $? >"$folder/status"; } | tee "$folder/log"
status=$(cat "$folder/status")
[ "$status" != 0 ] || exit 0

# The last list of failures before each such line has the names.
awk -F '`' '
    /^failures:$/ { n = 0 }
    /^    [A-Za-z0-9_:]+$/ { names[n++] = substr($0, 5) }
    /^error: test failed, to rerun pass / {
        if (!n) print $2 "\t"
        for (i = 0; i < n; i++) print $2 "\t" names[i]
        n = 0
    }' "$folder/log" >"$folder/failed"
count=$(wc -l <"$folder/failed")
[ "$count" -ge 1 ] && [ "$count" -le 2 ] || exit "$status"
while IFS="$(printf '\t')" read -r program name; do
    [ -n "$name" ] || exit "$status"
    for _ in 1 2 3; do
        # shellcheck disable=SC2086
        cargo test --locked $program -- --exact "$name" </dev/null || exit "$status"
    done
done <"$folder/failed"
while IFS="$(printf '\t')" read -r program name; do
    echo "unstable: $name ($program) failed, see above, and passed three times alone"
done <"$folder/failed"
