#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command that runs tests, then prints which tests were skipped, and why: the harness hides
# the output of passing tests. `skips.sh NAME COMMAND...`; the list is target/skips/NAME.
set -u
mkdir -p target/skips
NRI_RUNC_SKIPS=$PWD/target/skips/$1
export NRI_RUNC_SKIPS
shift
: >"$NRI_RUNC_SKIPS"
status=0
"$@" || status=$?
if [ -s "$NRI_RUNC_SKIPS" ]; then
    # One line for each reason, followed by the skipped tests.
    export LC_ALL=C
    sort -u "$NRI_RUNC_SKIPS" | sort -t "$(printf '\t')" -k 2,2 -s | awk -F '\t' '
        function print_reason() { if (n) printf "skipped %d: %s\n %s\n", n, reason, names }
        $2 != reason { print_reason(); n = 0; names = ""; reason = $2 }
        { n++; names = names " " $1 }
        END { print_reason() }'
else
    echo "nothing was skipped"
fi
exit $status
