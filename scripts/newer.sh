#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Newer engines and runtimes than this Debian has, for `make test` and `make bench`: built by
# `go install`, each in its own folder below target/tools/newer. What cannot be had is one line,
# and what needs it is skipped. Run again, it is quick. `newer.sh [NAME-VERSION...]`
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
newer=$tools/newer

say() { printf 'newer: %s\n' "$*"; }

# What is there needs no Go any more.
wanted=
[ $# -gt 0 ] || set -- containerd-2.4.2 runc-1.5.2 runc-1.6.0-rc.1
for name in "$@"; do
    [ -e "$newer/$name/.done" ] || wanted="$wanted $name"
done
[ -n "$wanted" ] || exit 0

minor=$(go env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
if [ "${minor:-0}" -lt 24 ]; then
    say "no Go of at least 1.24 here, without:$wanted"
    exit 0
fi
mkdir -p "$newer"

# The headers and a stand-in for pkg-config: nothing is installed. Where they lie is said by
# variables, which Go's cache of built packages tells apart; what pkg-config says it does not, and
# another clone's folder may be gone.
seccomp() {
    library=$(ldconfig -p 2>/dev/null | sed -n 's/.*libseccomp\.so\.2 .*=> //p' | head -n 1)
    [ -n "$library" ] || return 1
    dir=$tools/libseccomp-dev
    if [ ! -e "$dir/.done" ]; then
        rm -rf "$dir"
        mkdir -p "$dir/deb" "$dir/lib"
        (cd "$dir/deb" && apt-get download libseccomp-dev >"$newer/apt.log" 2>&1) || return 1
        dpkg -x "$dir"/deb/*.deb "$dir"
        rm -rf "$dir/deb"
        ln -sf "$library" "$dir/lib/libseccomp.so"
        cat >"$dir/pkg-config" <<'WORDS'
#!/bin/sh
case "$*" in *--libs*) echo "-lseccomp" ;; esac
WORDS
        chmod +x "$dir/pkg-config"
        touch "$dir/.done"
    fi
    export PKG_CONFIG="$dir/pkg-config"
    export CGO_CFLAGS="-O2 -g -I$dir/usr/include" CGO_LDFLAGS="-O2 -g -L$dir/lib"
}

# A folder appears whole or not at all.
install() {
    name=$1
    shift
    rm -rf "${newer:?}/$name" "$newer/$name.part"
    mkdir "$newer/$name.part"
    say "building $name; this takes a minute or two"
    # The machine's Go may be older than what the module wants; its owner may forbid fetching one.
    if GOBIN=$newer/$name.part GOTOOLCHAIN=${GOTOOLCHAIN:-auto} GOFLAGS='' \
        nice go install -trimpath "-ldflags=-s -w" "$@" >"$newer/$name.log" 2>&1; then
        touch "$newer/$name.part/.done"
        mv "$newer/$name.part" "$newer/$name"
    else
        rm -rf "$newer/$name.part"
        say "$name cannot be built, and is left out: $(grep . "$newer/$name.log" | tail -n 1) ($newer/$name.log)"
    fi
}

tags=
case $wanted in
*runc-*)
    if [ -n "$(pkg-config --modversion libseccomp 2>/dev/null)" ] || seccomp; then
        tags=-tags=seccomp
    else
        say "libseccomp-dev cannot be had: runc is built without seccomp"
    fi ;;
esac
for name in $wanted; do
    version=v${name#*-}
    case $name in
    containerd-*)
        path=github.com/containerd/containerd/v2/cmd
        install "$name" "$path/containerd@$version" "$path/containerd-shim-runc-v2@$version" \
            "$path/ctr@$version" ;;
    runc-*)
        # shellcheck disable=SC2086
        install "$name" $tags "github.com/opencontainers/runc@$version" ;;
    *) say "unknown: $name" ;;
    esac
done
