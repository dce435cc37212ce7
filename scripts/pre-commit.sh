#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Optional git hook (CONTRIBUTING.md): checks the format and runs the tests of the merge and the document in a few
# seconds. `make check` does more.
set -eu
cd "$(git rev-parse --show-toplevel)"
cargo fmt --all --check
cargo test --locked --quiet -p nri-adaptation -p oci-document
