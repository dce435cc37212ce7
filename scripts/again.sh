#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs tests: `again.sh COMMAND...`, where the command is a `cargo test`. If at most AT_MOST (5) tests fail, each
# is rerun three times alone. If all reruns pass, the failure was caused by other tests or a slow machine: the
# script lists the unstable tests at the end and succeeds. It fails if a rerun fails or if more tests failed.
# NRI_RUNC_FAILED: a file to which each failure is appended, with its first line.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ "$@" 2>&1; echo $? >"$folder/status"; } | tee "$folder/log"
status=$(cat "$folder/status")
[ "$status" != 0 ] || exit 0

# The names are in the last list of failures before each such line; a panic's message follows its line.
awk -F '`' '
    /^thread .* panicked at / { split($0, words, "\047"); test = words[2]; getline; said[test] = $0 }
    /^failures:$/ { n = 0 }
    /^    [A-Za-z0-9_:]+$/ { names[n++] = substr($0, 5) }
    /^error: test failed, to rerun pass / {
        if (!n) print $2 "\t\t"
        for (i = 0; i < n; i++) print $2 "\t" names[i] "\t" substr(said[names[i]], 1, 160)
        n = 0
    }' "$folder/log" >"$folder/failed"

# Prints one line per failure and exits with the command's status.
fail() {
    [ -s "$folder/failed" ] || printf '\t\tno test is named: %s\n' "$(tail -n 1 "$folder/log")" >"$folder/failed"
    awk -F '\t' '{ print "failed: " $2 " (" $1 "): " $3 }' "$folder/failed" | tee -a "${NRI_RUNC_FAILED:-/dev/null}"
    exit "$status"
}

count=$(wc -l <"$folder/failed")
[ "$count" -ge 1 ] && [ "$count" -le "${AT_MOST:-5}" ] || fail
while IFS="$(printf '\t')" read -r program name said; do
    [ -n "$name" ] || fail
    for _ in 1 2 3; do
        # shellcheck disable=SC2086
        cargo test --locked $program -- --exact "$name" </dev/null || fail
    done
done <"$folder/failed"
while IFS="$(printf '\t')" read -r program name said; do
    echo "unstable: $name ($program) failed, see above, and passed three times alone: $said"
done <"$folder/failed"
