#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds an OCI image for Kubernetes nodes, target/image/nri-runc-VERSION.tar, with only tar, gzip
# and sha256sum: no Docker, no base image, no network. It has an index of architectures, and for
# each a manifest, a configuration with labels and one layer with nri-runc, its helper and the
# license. The build is reproducible.
#
#   scripts/image.sh [--name NAME:TAG] [--out FILE] [--sbom FILE] ARCH=NRI_RUNC,HELPER...
#   scripts/image.sh --plugin NAME [...] ARCH=PROGRAM...     an image of one plugin instead: /NAME
#
# ARCH: amd64 or arm64. --sbom: a CycloneDX document, attached as an artifact that refers to the image.
# SOURCE_DATE_EPOCH: the time of all files (default: that of the last commit).
set -eu
cd "$(dirname "$0")/.."

fail() { printf 'image: %s\n' "$*" >&2; exit 1; }

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
name='' out='' sbom='' programs='' plugin=''
while [ $# -gt 0 ]; do
    case $1 in
    --name) [ $# -gt 1 ] || fail "--name requires NAME:TAG"; name=$2; shift ;;
    --out) [ $# -gt 1 ] || fail "--out requires a file"; out=$2; shift ;;
    --sbom) [ $# -gt 1 ] || fail "--sbom requires a file"; sbom=$2; shift ;;
    --plugin) [ $# -gt 1 ] || fail "--plugin requires a name"; plugin=$2; shift ;;
    amd64=?* | arm64=?*) programs="$programs $1" ;;
    *) fail "unknown argument $1 (ARCH=NRI_RUNC,HELPER with ARCH amd64 or arm64)" ;;
    esac
    shift
done
[ -n "$programs" ] || fail "no program is named: amd64=NRI_RUNC,HELPER"
case $plugin in *[!a-z0-9-]*) fail "$plugin is not the name of a plugin: letters, digits and -" ;; esac
for pair in $programs; do
    case $plugin:$pair in :*,* | ?*:*) ;; *) fail "$pair has no helper: ARCH=NRI_RUNC,HELPER" ;; esac
done
what=${plugin:-nri-runc}
name=${name:-localhost/$what:$version}
entrypoint='"/nri-runc","nri","node"' description='NRI plugins for every container engine'
[ -z "$plugin" ] || { entrypoint="\"/$plugin\""; description='a sample NRI plugin'; }
case $name in *[!a-zA-Z0-9./:_-]* | *:) fail "$name is not the name of an image" ;; *:*) ;; *) name=$name:$version ;; esac
out=${out:-target/image/$what-$version.tar}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || :)}
case $epoch in '' | *[!0-9]*) fail "this is no git checkout: set SOURCE_DATE_EPOCH to the time of the release, in seconds" ;; esac
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
created=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
export LC_ALL=C TZ=UTC
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
blobs=$work/layout/blobs/sha256
mkdir -p "$blobs"

# put FILE: adds a file to the layout and prints its digest.
put() {
    sum=$(sha256sum "$1" | cut -d ' ' -f 1)
    cp "$1" "$blobs/$sum"
    echo "$sum"
}
size() { stat -c %s "$blobs/$1"; }
# descriptor TYPE DIGEST [MORE]: prints a descriptor as JSON.
descriptor() { printf '{"mediaType":"%s","digest":"sha256:%s","size":%s%s}' "$1" "$2" "$(size "$2")" "${3:-}"; }
archive() {
    tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -C "$1" -cf "$2" .
}
# Reads the processor from the ELF header.
is_for() {
    machine=$(od -An -tx1 -j18 -N2 "$2" 2>/dev/null | tr -d ' ')
    case $1:$machine in amd64:3e00 | arm64:b700) ;; *) fail "$2 is no program for $1" ;; esac
    # The image has no libraries, so a program must be static.
    ! grep -aq -e '/lib64/ld-linux' -e '/lib/ld-linux' "$2" || fail "$2 is not static"
}

TYPE=application/vnd.oci.image
LABELS="\"org.opencontainers.image.title\":\"$what\",\"org.opencontainers.image.description\":\"$description\",\"org.opencontainers.image.version\":\"$version\",\"org.opencontainers.image.revision\":\"$revision\",\"org.opencontainers.image.created\":\"$created\",\"org.opencontainers.image.licenses\":\"Apache-2.0\",\"org.opencontainers.image.url\":\"$(sh scripts/address.sh site)\""
source=$(sh scripts/address.sh repository)
[ -z "$source" ] || LABELS="$LABELS,\"org.opencontainers.image.source\":\"$source\""

manifests=''
for pair in $programs; do
    arch=${pair%%=*} files=${pair#*=}
    for file in "${files%%,*}" "${files#*,}"; do
        [ -f "$file" ] || fail "$file is missing"
        is_for "$arch" "$file"
    done
    root=$work/root-$arch
    mkdir -p "$root/licenses"
    install -m 0755 "${files%%,*}" "$root/$what"
    [ -n "$plugin" ] || install -m 0755 "${files#*,}" "$root/nri-runc-node-helper"
    install -m 0644 LICENSE "$root/licenses/nri-runc"
    [ -z "$sbom" ] || install -m 0644 "$sbom" "$root/sbom.cdx.json"
    archive "$root" "$work/layer.tar"
    inside=$(sha256sum "$work/layer.tar" | cut -d ' ' -f 1)
    gzip -9nf "$work/layer.tar"
    layer=$(put "$work/layer.tar.gz")
    printf '{"created":"%s","architecture":"%s","os":"linux","config":{"User":"0:0","Env":["PATH=/"],"Entrypoint":[%s],"WorkingDir":"/","Labels":{%s}},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"history":[{"created":"%s","created_by":"scripts/image.sh"}]}' \
        "$created" "$arch" "$entrypoint" "$LABELS" "$inside" "$created" >"$work/config"
    config=$(put "$work/config")
    printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","config":%s,"layers":[%s],"annotations":{%s}}' "$TYPE" \
        "$(descriptor "$TYPE.config.v1+json" "$config")" "$(descriptor "$TYPE.layer.v1.tar+gzip" "$layer")" "$LABELS" >"$work/manifest"
    manifest=$(put "$work/manifest")
    its=$(descriptor "$TYPE.manifest.v1+json" "$manifest" ",\"platform\":{\"architecture\":\"$arch\",\"os\":\"linux\"}")
    manifests=$manifests${manifests:+,}$its
done
printf '{"schemaVersion":2,"mediaType":"%s.index.v1+json","manifests":[%s],"annotations":{%s}}' "$TYPE" "$manifests" "$LABELS" >"$work/index"
index=$(put "$work/index")
top=$(descriptor "$TYPE.index.v1+json" "$index" ",\"annotations\":{\"io.containerd.image.name\":\"$name\",\"org.opencontainers.image.ref.name\":\"${name##*:}\"}")
if [ -n "$sbom" ]; then
    printf '{}' >"$work/empty"
    empty=$(put "$work/empty")
    document=$(put "$sbom")
    printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","artifactType":"application/vnd.cyclonedx+json","config":%s,"layers":[%s],"subject":%s,"annotations":{"org.opencontainers.image.created":"%s"}}' \
        "$TYPE" "$(descriptor application/vnd.oci.empty.v1+json "$empty")" \
        "$(descriptor application/vnd.cyclonedx+json "$document")" "$(descriptor "$TYPE.index.v1+json" "$index")" "$created" >"$work/referrer"
    referrer=$(put "$work/referrer")
    top=$top,$(descriptor "$TYPE.manifest.v1+json" "$referrer" ',"artifactType":"application/vnd.cyclonedx+json"')
fi
printf '{"schemaVersion":2,"mediaType":"%s.index.v1+json","manifests":[%s]}' "$TYPE" "$top" >"$work/layout/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$work/layout/oci-layout"
mkdir -p "$(dirname "$out")"
archive "$work/layout" "$out.part"
mv -f "$out.part" "$out"
printf 'image: %s is %s (sha256:%s)\n' "$out" "$name" "$index"
