#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# For git, if you want it (CONTRIBUTING.md): format and the merge's tests, a few seconds. `make check` does more.
set -eu
cd "$(git rev-parse --show-toplevel)"
cargo fmt --all --check
cargo test --locked --quiet -p nri-adaptation -p oci-document
