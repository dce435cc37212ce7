#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Provides what the guest needs and this machine may lack, in target/vm: a kernel, qemu, crun, CRIU, systemd.
# Debian packages are downloaded and unpacked, never installed; a second run is quick. VM_KERNEL: the suite of the
# kernel, such as bookworm-backports. VM_DIR: a folder other than target/vm, for a second guest at the same time.
set -eu
cd "$(dirname "$0")/../.."
vm=${VM_DIR:-$PWD/target/vm}
root=$vm/root
. scripts/suite.sh

missing() { printf 'vm: not available: %s\n' "$*" >&2; exit 2; }

# Prints a package and its dependencies that are not installed on this machine.
with_needs() { apt-get install -s --no-install-recommends "$1" 2>/dev/null | awk '/^Inst/{print $2}'; }

# Downloads and unpacks packages; an interrupted download is repeated.
get() {
    name=$1
    shift
    [ ! -e "$vm/$name.done" ] || return 0
    rm -rf "$vm/deb"
    mkdir -p "$vm/deb" "$root"
    (cd "$vm/deb" && apt-get download "$@" >"$vm/apt.log" 2>&1) ||
        missing "$name: the packages $* cannot be downloaded; see $vm/apt.log (apt-get update?)"
    for package in "$vm"/deb/*.deb; do dpkg -x "$package" "$root"; done
    rm -rf "$vm/deb"
    touch "$vm/$name.done"
    printf 'vm: unpacked %s\n' "$name"
}

# Unpacks the kernel of another Debian suite.
kernel_of() {
    dir=$vm/kernel-$1
    [ ! -e "$dir/.done" ] || return 0
    rm -rf "$dir"
    open_suite "$1" "$dir" >>"$vm/apt.log" 2>&1 || missing "the suite $1; see $vm/apt.log"
    package=$(of_suite apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\).*/\1/p' | head -n 1)
    [ -n "$package" ] || missing "linux-image-cloud-amd64 of $1; see $vm/apt.log"
    # From Linux 7 on, this package depends on packages with the modules and the kernel itself.
    parts=$(of_suite apt-cache depends "$package" | sed -n '/-base/d; s/.*Depends: \(linux-[^ ]*\)$/\1/p')
    # shellcheck disable=SC2086
    unpack_of_suite "$dir" "$package" $parts >>"$vm/apt.log" 2>&1 || missing "$package; see $vm/apt.log"
    [ -e "$dir/lib" ] || ln -s usr/lib "$dir/lib"
    touch "$dir/.done"
    printf 'vm: unpacked %s of %s\n' "$package" "$1"
}

[ "$(uname -m)" = x86_64 ] || missing "a guest for $(uname -m)"
mkdir -p "$vm"
wanted=
for name in kernel crun criu systemd; do [ -e "$vm/$name.done" ] || wanted=yes; done
if [ -n "$wanted" ] ||
    { [ ! -e "$vm/qemu.done" ] && ! command -v qemu-system-x86_64 >/dev/null; }; then
    command -v apt-get >/dev/null || missing "apt-get, to download a kernel and qemu"
    kernel=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: //p' | head -n 1)
    [ -n "$kernel" ] || missing "Debian's package linux-image-cloud-amd64 (apt-get update?)"
    get kernel "$kernel"
    # With its libraries, unless they are installed here.
    needs=$(with_needs crun)
    # shellcheck disable=SC2086
    get crun ${needs:-crun}
    # Only an additional tool needs Python.
    needs=$(with_needs criu | grep -v python)
    # shellcheck disable=SC2086
    get criu ${needs:-criu}
    # Even if these are installed here: the guest's must be of one version.
    needs=$(for package in systemd dbus-daemon; do with_needs $package; done)
    needs=$(printf '%s\n' systemd libsystemd-shared dbus-daemon $needs | sort -u)
    # shellcheck disable=SC2086
    get systemd $needs
    if ! command -v qemu-system-x86_64 >/dev/null; then
        needs=$(with_needs qemu-system-x86)
        # shellcheck disable=SC2086
        get qemu ${needs:-qemu-system-x86}
    fi
fi
[ -z "${VM_CLOCK:-}" ] || get clock libfaketime
kernel=root
if [ -n "${VM_KERNEL:-}" ]; then
    kernel_of "$VM_KERNEL"
    kernel=kernel-$VM_KERNEL
fi
ln -sfn "$kernel" "$vm/kernel"
