#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what `make demo` and `make test` need on a minimal Debian with Rust, git and make.
# Engines and runtimes are downloaded and unpacked below target/tools, with the libraries that this
# machine lacks: no engine is installed. Root installs the C linker and the small programs that
# tests call by name. A second run is quick. NRI_RUNC_DEBS: a folder that keeps downloaded packages.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
target=x86_64-unknown-linux-musl
export DEBIAN_FRONTEND=noninteractive

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
# apt's last lines explain the failure best.
fail_apt() { tail -n 20 "$tools/apt.log" >&2; fail "$*; all of it is in $tools/apt.log"; }

# Runs once: the package lists may be empty, or list versions that no longer exist.
refresh() {
    [ ! -e "$tools/.refreshed" ] && [ "$(id -u)" = 0 ] || return 1
    say "refreshing the package lists"
    apt-get update >"$tools/apt.log" 2>&1 || fail_apt "apt-get update failed"
    touch "$tools/.refreshed"
}

# Installs the packages that cannot be unpacked below target/tools. There is no other list of them.
install_system_packages() {
    lacking=
    echo 'int main(void) { return 0; }' | cc -x c -o /dev/null - 2>/dev/null || lacking=" gcc libc6-dev"
    for pair in ip:iproute2 make:make mount:mount ps:procps; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${pair%:*}" >/dev/null || lacking="$lacking ${pair#*:}"
    done
    [ -e /etc/ssl/certs/ca-certificates.crt ] || lacking="$lacking ca-certificates"
    # runc loads this library, even if an engine starts it without this environment.
    ldconfig -p 2>/dev/null | grep -q 'libseccomp\.so\.2' || lacking="$lacking libseccomp2"
    [ -n "$lacking" ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        case $lacking in *gcc*) fail "no C linker (cc): install, by Debian's names,$lacking; root's make setup does it on Debian" ;; esac
        say "tests are skipped because these packages are missing:$lacking; root's make setup installs that on Debian"
        return 0
    fi
    say "installing$lacking"
    # shellcheck disable=SC2086
    for _try in 1 2; do
        ! apt-get install -y --no-install-recommends $lacking >"$tools/apt.log" 2>&1 || return 0
        refresh || break
    done
    fail_apt "these packages cannot be installed:$lacking"
}

# download PACKAGE FOLDER: leaves only this package in the folder, and does not download it twice.
download() {
    mkdir -p "$2"
    before=$(ls "$2")
    for _try in 1 2; do
        if (cd "$2" && apt-get download "$1" >"$tools/apt.log" 2>&1); then
            [ -z "$before" ] || [ "$(ls "$2")" = "$before" ] || rm "$2/$before"
            return
        fi
        refresh || break
    done
    fail_apt "the package $1 cannot be downloaded"
}

# unpack PACKAGE PROGRAM...: unpacks into a separate folder and links the programs in target/tools/bin.
unpack() {
    package=$1
    shift
    dir=$tools/$package
    if [ ! -e "$dir/.done" ]; then
        command -v apt-get >/dev/null || fail "apt-get is missing: put $* into $tools/bin by hand"
        rm -rf "$dir"
        mkdir -p "$dir"
        debs=${NRI_RUNC_DEBS:+$NRI_RUNC_DEBS/$package}
        debs=${debs:-$dir/deb}
        download "$package" "$debs"
        dpkg -x "$debs"/*.deb "$dir" || fail "the package $package cannot be unpacked"
        rm -rf "$dir/deb"
        touch "$dir/.done"
        say "unpacked $package"
    fi
    for program in "$@"; do
        found=$(find "$dir" -path "*bin/*" -type f -name "$program" -perm -u+x | head -n 1)
        [ -n "$found" ] || fail "the package $package has no $program"
        # A relative link, because the checkout may be moved or mounted elsewhere.
        ln -sf "../${found#"$tools/"}" "$tools/bin/$program"
    done
}

# package_with SONAME PACKAGE: prints the package that has a library which PACKAGE needs. Debian names it after the
# soname, with or without a hyphen before the number, and with the suffix t64 if the size of time_t changed. A package
# with several libraries is named after one of them, and is a dependency.
package_with() {
    named=$(package_named "$1")
    [ -z "$named" ] || { echo "$named"; return; }
    for package in $(apt-cache depends --important "$2" | sed -n 's/^ *Depends: \(lib[^ ]*\)$/\1/p'); do
        ! dpkg -s "$package" >/dev/null 2>&1 || continue
        unpack "$package" >&2
        [ -z "$(find "$tools/$package" -name "$1")" ] || { echo "$package"; return; }
    done
}

package_named() {
    apt-cache pkgnames lib | awk -v soname="$1" '
        function plain(name) { gsub(/[^a-z0-9]/, "", name); return name }
        BEGIN { sub(/\.so\./, "", soname); wanted = plain(tolower(soname)) }
        { name = $0; sub(/t64$/, "", name); if (plain(name) == wanted) { print; exit } }'
}

missing_libraries() { LD_LIBRARY_PATH=$2 ldd "$1" 2>/dev/null | sed -n 's/^[[:space:]]*\([^ ]*\) => not found.*/\1/p' | sort -u; }

# libraries PROGRAM...: copies the libraries that these unpacked programs lack on this machine into
# target/tools/lib and sets that folder as their library path. An environment variable would be lost
# when dockerd re-executes itself as `docker-applyLayer` and when Podman starts conmon.
libraries() {
    for program in "$@"; do
        path=$(readlink -f "$tools/bin/$program")
        of=${path#"$tools/"} of=${of%%/*}
        [ -n "$(missing_libraries "$path" '')" ] || continue
        # A library may need another one.
        while lacking=$(missing_libraries "$path" "$tools/lib") && [ -n "$lacking" ]; do
            for soname in $lacking; do
                package=$(package_with "$soname" "$of")
                [ -n "$package" ] || fail "no package has $soname, which $program needs"
                unpack "$package"
                found=$(find "$tools/$package" -name "$soname" | head -n 1)
                [ -n "$found" ] || fail "the package $package has no $soname, which $program needs"
                cp -L "$found" "$tools/lib/$soname"
            done
        done
        unpack patchelf patchelf
        # The loader replaces $ORIGIN with the program's folder.
        library_path="\$ORIGIN/$(realpath --relative-to="${path%/*}" "$tools/lib")"
        "$tools/bin/patchelf" --force-rpath --set-rpath "$library_path" --output "$path.new" "$path" && mv "$path.new" "$path" ||
            fail "the library path of $program cannot be set"
    done
}

command -v cargo >/dev/null || fail "cargo is missing; install Rust (rustup) first"
mkdir -p "$tools/bin" "$tools/lib"
rm -f "$tools/.refreshed"
install_system_packages

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

unpack busybox-static busybox
unpack containerd containerd containerd-shim-runc-v2 ctr
unpack runc runc
# For the tests that make each system call fail once.
strace() {
    unpack strace strace
    libraries strace
}
(strace) || { rm -f "$tools/bin/strace"; say "strace cannot be had: its tests are skipped"; }
crun() {
    unpack crun crun
    libraries crun
}
(crun) || { rm -f "$tools/bin/crun"; say "crun cannot be had: its tests are skipped"; }
podman() {
    unpack podman podman
    unpack conmon conmon
    libraries podman conmon
}
(podman) || { rm -f "$tools/bin/podman"; say "Podman cannot be had: its tests are skipped"; }
docker() {
    unpack docker.io dockerd
    # Later Debian releases have the client in a separate package.
    client=docker.io
    ! apt-cache show docker-cli >/dev/null 2>&1 || client=docker-cli
    unpack "$client" docker
    libraries docker dockerd
}
(docker) || { rm -f "$tools/bin/dockerd"; say "Docker cannot be had: its tests are skipped"; }
uidmap() {
    unpack uidmap newgidmap newuidmap
}
(uidmap) || { rm -f "$tools/bin/newuidmap"; say "newuidmap cannot be had: tests of rootless Docker are skipped"; }
