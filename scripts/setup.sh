#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prepares what `make demo` and `make test` need, below target/tools, without disturbing the
# machine: Debian packages are downloaded and unpacked, not installed. Run again, it is quick.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
target=x86_64-unknown-linux-musl

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
# What apt said last tells more than any sentence of ours.
fail_apt() { tail -n 20 "$tools/apt.log" >&2; fail "$*; all of it is in $tools/apt.log"; }

command -v cargo >/dev/null || fail "cargo is missing; install Rust (rustup) first"
command -v cc >/dev/null || fail "no C linker (cc); install gcc"

if [ "$(uname -m)" != x86_64 ]; then
    say "no musl build on $(uname -m): falling back to glibc"
elif ! rustc --print target-libdir --target $target >/dev/null 2>&1 ||
    [ ! -d "$(rustc --print target-libdir --target $target)" ]; then
    if command -v rustup >/dev/null && rustup target add $target >/dev/null 2>&1; then
        say "added the Rust target $target"
    else
        say "the Rust target $target cannot be had: falling back to glibc"
    fi
fi

# One package: download, unpack into its own folder, link its programs into target/tools/bin.
unpack() {
    package=$1
    shift
    dir=$tools/$package
    if [ ! -e "$dir/.done" ]; then
        command -v apt-get >/dev/null || fail "apt-get is missing: put $* into $tools/bin by hand"
        rm -rf "$dir"
        mkdir -p "$dir/deb"
        if ! (cd "$dir/deb" && apt-get download "$package" >/dev/null 2>&1); then
            if [ "$(id -u)" = 0 ]; then
                say "refreshing the package lists"
                apt-get update >"$tools/apt.log" 2>&1 || fail_apt "apt-get update failed"
            fi
            (cd "$dir/deb" && apt-get download "$package" >"$tools/apt.log" 2>&1) ||
                fail_apt "the package $package cannot be downloaded"
        fi
        dpkg -x "$dir"/deb/*.deb "$dir"
        rm -rf "$dir/deb"
        touch "$dir/.done"
        say "unpacked $package"
    fi
    for program in "$@"; do
        found=$(find "$dir" -path "*bin/*" -type f -name "$program" -perm -u+x | head -n 1)
        [ -n "$found" ] || fail "the package $package has no $program"
        ln -sf "$found" "$tools/bin/$program"
    done
}

mkdir -p "$tools/bin"
unpack busybox-static busybox
unpack containerd containerd containerd-shim-runc-v2 ctr
if ! ldconfig -p 2>/dev/null | grep -q 'libseccomp\.so\.2'; then
    [ "$(id -u)" = 0 ] || fail "libseccomp2 is missing (runc needs it)"
    apt-get install -y --no-install-recommends libseccomp2 >"$tools/apt.log" 2>&1 ||
        fail_apt "libseccomp2 cannot be installed"
    say "installed libseccomp2 (runc needs it)"
fi
unpack runc runc
# For the tests in which each system call fails once.
(unpack strace strace) || say "strace cannot be had: its tests are skipped"
# Podman, with the libraries that it alone needs.
podman() {
    unpack podman podman
    mkdir -p "$tools/lib"
    for library in libassuan0 libgpgme11 libsubid4; do
        unpack "$library"
        find "$tools/$library" -name 'lib*.so.*' -exec ln -sf {} "$tools/lib/" \;
    done
    unpack conmon conmon
}
(podman) || say "Podman cannot be had: its tests are skipped"
# Docker: its client, its daemon, and the library that only the daemon needs.
docker() {
    unpack docker.io dockerd
    # Later releases of Debian have the client in a package of its own.
    client=docker.io
    ! apt-cache show docker-cli >/dev/null 2>&1 || client=docker-cli
    unpack "$client" docker
    mkdir -p "$tools/lib"
    unpack libdevmapper1.02.1
    find "$tools/libdevmapper1.02.1" -name 'lib*.so.*' -exec ln -sf {} "$tools/lib/" \;
}
(docker) || say "Docker cannot be had: its tests are skipped"
