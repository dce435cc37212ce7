#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Packages nri-plugin with the crates below it as for a registry, and builds a plugin from these packages alone: the
# template of contrib/plugin-template, in an empty folder, with an empty CARGO_HOME. Its own tests must pass.
# `plugin-package.sh [PROGRAM]`: path for the built plugin, such as 10-trial (tests/support/src/template.rs runs it).
set -eu
program=${1:+$(realpath -m "$1")}
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
crates="nri-api nri-adaptation nri-transport nri-plugin"

set --
for crate in $crates; do
    set -- "$@" --package "$crate"
done
# Without cargo's verification build of each: the plugin below builds them. Uncommitted changes are packaged too.
cargo package --quiet --locked --no-verify --allow-dirty --target-dir "$work/packages" "$@"

mkdir -p "$work/crates" "$work/plugin/src"
for packed in "$work"/packages/package/*.crate; do
    tar -C "$work/crates" -xzf "$packed"
done
folder() { echo "$work/crates/$1-"[0-9]*; }

for file in Cargo.toml src/main.rs; do
    sed -e 's/{{project-name}}/trial/g' -e 's/{{plugin_index}}/10/g' \
        -e "s|{{nri_plugin_path}}|$(folder nri-plugin)|g" "contrib/plugin-template/$file" >"$work/plugin/$file"
done
! grep -rn '{{' "$work/plugin" || { echo "plugin-package: the template has a placeholder that is not known" >&2; exit 1; }
{
    echo '[patch.crates-io]'
    for crate in $crates; do
        [ "$crate" = nri-plugin ] || echo "$crate = { path = \"$(folder "$crate")\" }"
    done
} >>"$work/plugin/Cargo.toml"
in_folder() { (cd "$work/plugin" && CARGO_HOME=$work/home CARGO_TARGET_DIR=$work/target "$@"); }
in_folder cargo test --quiet
if [ -n "$program" ]; then
    in_folder cargo build --quiet
    mkdir -p "$(dirname "$program")"
    cp "$work/target/debug/trial" "$program"
fi
echo "plugin-package: a plugin builds from the packages, and its tests pass"
