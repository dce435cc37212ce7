#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds packages in target/package/dist: .tar.gz, .deb and .rpm for each architecture, a CycloneDX SBOM and
# checksums. The build is reproducible in any folder (--twice proves it).
#
#   scripts/package.sh [--arch ARCH]... [--binary ARCH=FILE]... [--version VERSION] [--twice] [--next]
#
# --binary: package this executable and the resource-defaults beside it without building. --next: repack the
# existing packages as the next version into target/package/next, for upgrade tests. SOURCE_DATE_EPOCH:
# the time of all files (default: that of the last commit). NRI_RUNC_NFPM: use this nfpm.
set -eu
cd "$(dirname "$0")/.."
top=$PWD
# Pinned, because another version may write different bytes.
NFPM=v2.44.1
tools=$top/target/tools

say() { printf 'package: %s\n' "$*"; }
fail() { printf 'package: %s\n' "$*" >&2; exit 1; }
. scripts/static.sh

profile=release sample_words='-p nri-runc -p resource-defaults --bin resource-defaults'
arches='' binaries='' version='' twice='' next=''
into=$top/target/package
while [ $# -gt 0 ]; do
    case $1 in
    --arch) arches="$arches $2"; shift ;;
    --binary) binaries="$binaries $2"; shift ;;
    --version) version=$2; shift ;;
    --twice) twice=1 ;;
    --next) next=1 ;;
    *) fail "unknown option $1" ;;
    esac
    shift
done
arches=${arches:-x86_64 aarch64}
version=${version:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) ||
        fail "this is no git checkout: set SOURCE_DATE_EPOCH to the time of the release, in seconds"
fi
export SOURCE_DATE_EPOCH VERSION="$version" LC_ALL=C TZ=UTC
umask 022

# Builds a Go or Rust program once, into target/tools.
nfpm() {
    [ -z "${NRI_RUNC_NFPM:-}" ] || { "$NRI_RUNC_NFPM" "$@"; return; }
    program=$tools/nfpm-$NFPM/nfpm
    if [ ! -x "$program" ]; then
        command -v go >/dev/null || fail "nfpm is built with Go, which is not here: install Go, or set NRI_RUNC_NFPM"
        say "building nfpm $NFPM into target/tools, once" >&2
        GOBIN=$tools/nfpm-$NFPM GOFLAGS=-trimpath go install "github.com/goreleaser/nfpm/v2/cmd/nfpm@$NFPM" \
            >"$tools/nfpm.log" 2>&1 || fail "nfpm cannot be built: $(tail -n 1 "$tools/nfpm.log")"
    fi
    "$program" "$@"
}

# programs ARCH STAGE: stages the executable, given or built, and the sample plugin of the quick starts.
programs() {
    below=$1-unknown-linux-musl/release
    ours=$top/target/static/$below/nri-runc given=''
    for pair in $binaries; do
        [ "${pair%%=*}" != "$1" ] || ours=${pair#*=} given=1
    done
    sample=$(dirname "$ours")/resource-defaults
    if [ -z "$given" ]; then
        fetch_sources "$1"
        # shellcheck disable=SC2086
        build_static "$1" "$top" "$top/target/static" nri-runc $sample_words >&2
    fi
    no_build_for_tests "$ours"
    [ -x "$sample" ] || fail "there is no sample plugin $sample: build it with cargo build $sample_words"
    mkdir -p "$2/plugins"
    install -m 0755 "$ours" "$2/nri-runc"
    install -m 0755 "$sample" "$2/plugins/resource-defaults"
    [ -z "$given" ] && [ -n "$twice" ] || return 0
    # Builds the same again in another folder.
    other=$(mktemp -d)/elsewhere
    git worktree list >/dev/null 2>&1 || fail "--twice needs a git checkout"
    mkdir -p "$other"
    git archive HEAD | tar -x -C "$other"
    # shellcheck disable=SC2086
    build_static "$1" "$other" "$other/target" nri-runc $sample_words >&2
    cmp "$2/nri-runc" "$other/target/$below/nri-runc" || fail "two builds of nri-runc for $1 differ"
    cmp "$2/plugins/resource-defaults" "$other/target/$below/resource-defaults" ||
        fail "two builds of the sample plugin for $1 differ"
    say "two builds for $1 in different folders are the same: $(sha256sum <"$2/nri-runc" | cut -c 1-16)"
    rm -rf "$(dirname "$other")"
}

# Downloads first, because the registry's folder must be known before paths are remapped.
fetch_sources() { cargo fetch --locked --target "$1-unknown-linux-musl" >&2; }

# Copies the documentation pages with their folders.
copy_pages() { (cd docs && find . -name '*.md' ! -name SUMMARY.md -exec cp --parents {} "$1" \;); }

# Stages the files that do not depend on the architecture.
common() {
    stage=$into/common
    rm -rf "$stage"
    mkdir -p "$stage/systemd" "$stage/hooks" "$stage/scripts" "$stage/selinux" "$stage/doc" "$stage/man"
    say "writing man pages and completions"
    NRI_RUNC_MANUAL=$stage cargo test --locked --quiet --test tidy manual_pages_and >"$into/manual.log" 2>&1 ||
        fail "the man pages cannot be written: $(grep . "$into/manual.log" | tail -n 1)"
    gzip -9n "$stage"/man/*.[578]
    for unit in nri-runc.service nri-runc.socket; do
        sed 's|@PREFIX@|/usr|g' "contrib/systemd/$unit" >"$stage/systemd/$unit"
    done
    for hook in hooks/*.json; do
        sed 's|/usr/local/bin/nri-runc|/usr/bin/nri-runc|g' "$hook" >"$stage/$hook"
    done
    cp contrib/systemd/hardened.conf contrib/package/config.toml contrib/package/copyright LICENSE \
        contrib/package/lintian-overrides contrib/package/nfpm.yaml "$stage"
    for script in postinst prerm postrm; do cp "contrib/package/$script.sh" "$stage/scripts"; done
    cp contrib/selinux/nri-runc.cil "$stage/selinux"
    cp README.md SECURITY.md "$stage/doc"
    copy_pages "$stage/doc"
    gzip -9nc CHANGELOG.md >"$stage/changelog.gz"
    maintainer=$(sed -n 's/^maintainer: //p' contrib/package/nfpm.yaml)
    gzip -9nc >"$stage/changelog.Debian.gz" <<TEXT
nri-runc ($VERSION-1) unstable; urgency=medium

  * Release $VERSION: /usr/share/doc/nri-runc/changelog.gz has its changes.

 -- $maintainer  $(date -R -d "@$SOURCE_DATE_EPOCH")
TEXT
}

# Lists the executable's libraries with versions, checksums and licenses.
sbom() {
    say "writing the SBOM for $1"
    NRI_RUNC_SBOM=$2 NRI_RUNC_SBOM_TARGET=$1-unknown-linux-musl \
        cargo test --locked --quiet --test tidy sbom_names >"$into/sbom.log" 2>&1 ||
        fail "the SBOM cannot be written: $(grep . "$into/sbom.log" | tail -n 1)"
}

# pack ARCH: builds the three packages of an architecture.
pack() {
    case $1 in
    x86_64) ARCH=amd64 ;;
    aarch64) ARCH=arm64 ;;
    *) fail "$1 is no architecture that is packaged" ;;
    esac
    export ARCH
    stage=$into/$1
    rm -rf "$stage"
    cp -R "$into/common" "$stage"
    programs "$1" "$stage"
    if [ -n "$next" ]; then cp "$into/sbom.cdx.json" "$stage"; else sbom "$1" "$stage/sbom.cdx.json"; fi
    chmod -R u=rwX,go=rX "$stage"
    find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    for format in deb rpm; do
        (cd "$stage" && nfpm package --config nfpm.yaml --packager "$format" --target "$into/dist/") >"$into/nfpm.log" 2>&1 ||
            fail "the .$format cannot be made: $(tail -n 1 "$into/nfpm.log")"
    done
    archive "$1"
    cp "$stage/sbom.cdx.json" "$into/dist/nri-runc-$VERSION-$1.cdx.json"
}

# The archive contains what `sh install.sh` installs on any distribution.
archive() {
    name=nri-runc-$VERSION-$1
    root=$into/archive/$name
    rm -rf "$into/archive"
    mkdir -p "$root/contrib/systemd" "$root/contrib/selinux" "$root/man"
    cp -R "$into/$1/plugins" "$root/plugins"
    cp "$into/$1/nri-runc" install.sh README.md SECURITY.md CHANGELOG.md LICENSE "$into/$1/sbom.cdx.json" "$root"
    cp contrib/systemd/* "$root/contrib/systemd"
    cp contrib/selinux/nri-runc.cil "$root/contrib/selinux"
    cp -R hooks "$root/hooks"
    cp -R "$into/$1/completions" "$root/completions"
    chmod -R u=rwX,go=rX "$into/archive"
    for page in "$into/$1"/man/*.gz; do gzip -dc "$page" >"$root/man/$(basename "$page" .gz)"; done
    mkdir "$root/docs"
    copy_pages "$root/docs"
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu \
        -C "$into/archive" -cf - "$name" | gzip -9n >"$into/dist/$name.tar.gz"
}

if [ -n "$next" ]; then
    # The program differs in one unused byte, so that it counts as another version.
    [ -x "$into/x86_64/nri-runc" ] || fail "there are no packages of this version: make package"
    rm -rf "$into/next"
    [ -x "$into/x86_64/plugins/resource-defaults" ] || fail "the packages are of an older version: make package"
    mkdir -p "$into/next"
    { cat "$into/x86_64/nri-runc"; echo; } >"$into/next/program"
    cp "$into/x86_64/plugins/resource-defaults" "$into/next/resource-defaults"
    cp -R "$into/common" "$into/x86_64/sbom.cdx.json" "$into/next"
    VERSION=$VERSION+next
    into=$into/next
    binaries=x86_64=$into/program
fi
rm -rf "$into/dist"
mkdir -p "$into/dist" "$tools"
[ -n "$next" ] || common
for arch in $arches; do pack "$arch"; done
(cd "$into/dist" && sha256sum -- * >SHA256SUMS)
say "packages of nri-runc $VERSION, in ${into#"$top"/}/dist:"
cat "$into/dist/SHA256SUMS"
