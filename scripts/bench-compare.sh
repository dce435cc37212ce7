#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures the cost of a change: builds another commit with its own benchmarks, and runs both versions alternately.
# A ratio is "worse" or "better" only if all rounds of one version are above all rounds of the other.
# bench-compare.sh REV [PARTS]; ROUNDS: number of rounds (3). The other commit's build stays in target/compare.
set -eu
cd "$(dirname "$0")/.."
[ -n "${1:-}" ] || { echo "bench-compare: which commit? make bench-compare REV=COMMIT" >&2; exit 2; }
rev=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "bench-compare: $1 is not a commit here" >&2; exit 2; }
: "${ROUNDS:=3}"
out=$PWD/target/compare
other=$out/tree
mkdir -p "$out"
rm -f "$out"/before.* "$out"/after.*
[ -d "$other/.git" ] || git clone --quiet --shared --no-checkout . "$other"
git -C "$other" fetch --quiet origin "$rev" 2>/dev/null || git -C "$other" fetch --quiet origin
git -C "$other" checkout --quiet --detach "$rev"
mkdir -p "$other/target"
[ -e "$other/target/tools" ] || ln -s "$PWD/target/tools" "$other/target/tools"

build() { (cd "$1" && make --no-print-directory release >"$out/build.log" 2>&1) || { tail -n 20 "$out/build.log"; exit 1; }; }
measure() { # the tree, the file of the report
    (
        cd "$1"
        program=$(make -s --no-print-directory path)
        target=$(echo "$program" | cut -d/ -f2)
        case $target in release | quick) target= ;; esac
        NRI_RUNC_BENCH="$parts" NRI_RUNC_BENCH_CSV="$out/figures.csv" sh scripts/bench.sh "$program" $target >"$2" 2>&1
    ) || { tail -n 20 "$2"; exit 1; }
}

parts=${2:-}
build "$other"
build .
for round in $(seq "$ROUNDS"); do
    measure "$other" "$out/before.$round"
    measure . "$out/after.$round"
done
awk -v rounds="$ROUNDS" '
    { side = FILENAME; sub(/.*\//, "", side); sub(/\..*/, "", side) }
    # A row of the report: a name, then its ratio.
    $1 ~ /^[a-z_0-9]+$/ && $2 ~ /^[0-9.]+$/ {
        if (!($1 in seen)) { seen[$1]; order[++n] = $1 }
        if ($3 == ">=") rises[$1]
        sum[side, $1] += $2
        if (!count[side, $1]++ || $2 < least[side, $1]) least[side, $1] = $2
        if ($2 > most[side, $1]) most[side, $1] = $2
    }
    END {
        if (!n) { print "bench-compare: the bench printed no ratio"; exit 1 }
        printf "%-32s %9s %9s %8s\n", "ratio, mean of " rounds, "before", "after", "change"
        for (i = 1; i <= n; i++) {
            k = order[i]
            if (!count["before", k] || !count["after", k]) { printf "%-32s on one side only\n", k; continue }
            b = sum["before", k] / count["before", k]; a = sum["after", k] / count["after", k]
            higher = least["after", k] > most["before", k]; lower = most["after", k] < least["before", k]
            word = !(higher || lower) ? "" : (higher == (k in rises)) ? "better" : "worse"
            printf "%-32s %9.3f %9.3f %+7.1f%%  %s\n", k, b, a, b ? (a / b - 1) * 100 : 0, word
        }
    }' "$out"/before.* "$out"/after.*
