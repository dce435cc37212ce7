#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the image for Kubernetes nodes, target/image/nri-runc-VERSION.tar: compiles nri-runc and its helper for each
# architecture, writes the SBOM of both, and assembles them with scripts/image.sh.
#
#   scripts/node-image.sh [--arch ARCH]... [--name NAME:TAG] [--out FILE] [--quick]
#   scripts/node-image.sh --plugin NAME [...]     the image of a sample plugin (examples) instead
#   scripts/node-image.sh test                    the helper's own tests
#
# ARCH: x86_64 or aarch64 (default: both; aarch64 on x86_64 needs a C compiler, which is downloaded from Debian if
# there is none). --quick: without the optimizations that take minutes (Cargo.toml, [profile.quick]).
set -eu
cd "$(dirname "$0")/.."
top=$PWD
tools=$top/target/tools
helper=$top/contrib/kubernetes/node-helper

say() { printf 'node-image: %s\n' "$*"; }
fail() { printf 'node-image: %s\n' "$*" >&2; exit 1; }
. scripts/static.sh

if [ "${1:-}" = test ]; then
    exec cargo test --locked --manifest-path "$helper/Cargo.toml" --target-dir "$top/target/node-helper"
fi
arches='' name='' out='' plugin='' profile=release
while [ $# -gt 0 ]; do
    if [ "$1" = --quick ]; then
        profile=quick
        shift
        continue
    fi
    [ $# -gt 1 ] || fail "$1 requires a value"
    case $1 in
    --arch) arches="$arches $2" ;;
    --name) name=$2 ;;
    --out) out=$2 ;;
    --plugin) plugin=$2 ;;
    *) fail "unknown option $1" ;;
    esac
    shift 2
done
arches=${arches:-x86_64 aarch64}
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || :)}"
[ -n "$SOURCE_DATE_EPOCH" ] || fail "this is no git checkout: set SOURCE_DATE_EPOCH to the time of the release, in seconds"
mkdir -p "$tools" "$top/target/image"

# The C code of the helper's TLS is freestanding, so any libc's headers will do.
compilers() {
    export CC_x86_64_unknown_linux_musl="${CC:-cc}" CFLAGS_x86_64_unknown_linux_musl=-U_FORTIFY_SOURCE
    [ "$1" != "$(uname -m)" ] || return 0
    found=$(cross_compiler)
    export CC_aarch64_unknown_linux_musl="${found% *}" AR_aarch64_unknown_linux_musl="${found#* }"
    export CFLAGS_aarch64_unknown_linux_musl=-U_FORTIFY_SOURCE
}

# programs ARCH: builds the plugin, or both programs; sets $built to the paths, separated by a comma.
programs() {
    # Each has its own target folder, because their flags differ and cargo would rebuild everything.
    below=$1-unknown-linux-musl
    if [ -n "$plugin" ]; then
        build_example "$1"
        built=$top/target/image/plugins/$below/quick/examples/$example
        return
    fi
    cargo fetch --locked --target "$1-unknown-linux-musl"
    build_static "$1" "$top" "$top/target/static" nri-runc
    cargo fetch --locked --manifest-path "$helper/Cargo.toml" --target "$1-unknown-linux-musl"
    compilers "$1"
    build_static "$1" "$helper" "$top/target/image/helper" nri-runc-node-helper
    built=$top/target/static/$below/$profile/nri-runc,$top/target/image/helper/$below/$profile/nri-runc-node-helper
}

# Builds a sample plugin without the release's optimizations, which take minutes for each plugin.
build_example() {
    target=$1-unknown-linux-musl
    set -- --profile quick --locked --example "$example" --target "$target" --target-dir "$top/target/image/plugins"
    if [ "$target" != "$(uname -m)-unknown-linux-musl" ]; then
        linker=$(cross_linker)
        set -- "$@" --config "target.$target.linker = '$linker'" --config "target.$target.rustflags = ['-Clinker-flavor=ld']"
    fi
    cargo build "$@"
}

set --
[ -z "$name" ] || set -- "$@" --name "$name"
[ -z "$out" ] || set -- "$@" --out "$out"
if [ -n "$plugin" ]; then
    example=$(echo "$plugin" | tr - _)
    [ -f "examples/$plugin/Cargo.toml" ] || fail "there is no sample plugin $plugin (examples)"
    set -- "$@" --plugin "$plugin"
else
    say "writing the SBOM"
    sbom=$top/target/image/sbom.cdx.json
    NRI_RUNC_SBOM=$sbom NRI_RUNC_SBOM_WITH=$helper NRI_RUNC_SBOM_TARGET=x86_64-unknown-linux-musl \
        cargo test --locked --quiet --test tidy sbom_names >"$top/target/image/sbom.log" 2>&1 ||
        fail "the SBOM cannot be written: $(grep . "$top/target/image/sbom.log" | tail -n 1)"
    set -- "$@" --sbom "$sbom"
fi
for arch in $arches; do
    case $arch in
    x86_64) oci=amd64 ;;
    aarch64) oci=arm64 ;;
    *) fail "$arch is no architecture of the image: x86_64 or aarch64" ;;
    esac
    programs "$arch"
    set -- "$@" "$oci=$built"
done
sh scripts/image.sh "$@"
