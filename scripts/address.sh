#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints an address of the project: `site`, or `repository`, which is empty while Cargo.toml has none and no CI runs.
set -eu
cd "$(dirname "$0")/.."
value() { sed -n "s/^$1 = \"\\(.*\\)\"\$/\\1/p" Cargo.toml | head -n 1; }
case ${1:-} in
site) value homepage ;;
repository)
    repository=$(value repository)
    if [ -z "$repository" ] && [ -n "${GITHUB_REPOSITORY:-}" ]; then
        repository=${GITHUB_SERVER_URL:-https://github.com}/$GITHUB_REPOSITORY
    fi
    echo "$repository"
    ;;
*)
    echo "address.sh: site or repository" >&2
    exit 2
    ;;
esac
