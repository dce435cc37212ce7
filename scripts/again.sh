#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs tests; `again.sh COMMAND...`, a `cargo test` of programs. A few that fail (AT_MOST, five) are run three
# times more, each alone: where they pass each time, what failed was their company or the machine's pace. They
# are named at the end, their failure stands above, and the command has passed. A test that fails again, and
# more that fail, fail the command. NRI_RUNC_FAILED: the file that each failure is appended to, with its first line.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ "$@" 2>&1; echo $? >"$folder/status"; } | tee "$folder/log"
status=$(cat "$folder/status")
[ "$status" != 0 ] || exit 0

# The last list of failures before each such line has the names; a panic's message is below its line.
awk -F '`' '
    /^thread .* panicked at / { split($0, words, "\047"); test = words[2]; getline; said[test] = $0 }
    /^failures:$/ { n = 0 }
    /^    [A-Za-z0-9_:]+$/ { names[n++] = substr($0, 5) }
    /^error: test failed, to rerun pass / {
        if (!n) print $2 "\t\t"
        for (i = 0; i < n; i++) print $2 "\t" names[i] "\t" substr(said[names[i]], 1, 160)
        n = 0
    }' "$folder/log" >"$folder/failed"

# Ends with the command's status, after each failure has its line.
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
