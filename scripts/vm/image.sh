#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds target/vm/initrd: a busybox root with runc, crun, systemd, the built nri-runc and the cases,
# each with the libraries that it loads. Arguments: the programs of nri-runc, of the cases, and of the
# helper that talks to systemd for a DaemonSet's pod.
set -eu
cd "$(dirname "$0")/../.."
binary=$1 cases=$2 helper=$3
vm=$PWD/target/vm
tools=$PWD/target/tools/bin
dir=$vm/image
libraries=$vm/root/usr/lib/x86_64-linux-gnu
found=$libraries/systemd:$libraries:$vm/root/lib/x86_64-linux-gnu

rm -rf "$dir"
mkdir -p "$dir/bin" "$dir/lib" "$dir/lib64" "$dir/guest/bin" "$dir/dev" "$dir/proc" "$dir/sys"
cp "$tools/busybox" "$dir/bin/busybox"
for applet in sh mount mkdir rmdir cp ln touch cat ip sync poweroff switch_root uname insmod; do
    ln -s busybox "$dir/bin/$applet"
done
cp scripts/vm/init "$dir/init"
chmod 755 "$dir/init"

# Copies a program without its debug information, and the libraries that ldd lists.
put() {
    cp -L "$1" "$2"
    strip "$2" 2>/dev/null || true
    LD_LIBRARY_PATH=$found ldd "$1" 2>/dev/null | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p' |
        while read -r library; do
            case $library in
            */ld-linux*) cp -L "$library" "$dir/lib64/" ;;
            *) cp -L "$library" "$dir/lib/" ;;
            esac
        done
}
put "$tools/busybox" "$dir/guest/bin/busybox"
put "$tools/runc" "$dir/guest/bin/runc"
put "$vm/root/usr/bin/crun" "$dir/guest/bin/crun"
# The newer runc versions that were built here.
for newer in "${tools%/bin}"/newer/runc-*; do
    [ -e "$newer/.done" ] || continue
    mkdir -p "$dir/guest/newer/${newer##*/}"
    put "$newer/runc" "$dir/guest/newer/${newer##*/}/runc"
done
# runc looks for CRIU in PATH. The modules, in load order, are for CRIU, which queries the kernel about sockets
# and networks, and for runc, which opens a socket of every netlink family when it moves a network device.
put "$vm/root/usr/sbin/criu" "$dir/bin/criu"
mkdir -p "$dir/modules"
number=10
for module in libcrc32c nfnetlink nf_tables tun veth xfrm_algo xfrm_user \
    inet_diag tcp_diag udp_diag unix_diag af_packet_diag netlink_diag; do
    find "$vm/kernel/lib/modules/" -name "$module.ko*" | while read -r file; do
        case $file in
        *.xz) xz -dc "$file" >"$dir/modules/$number-$module.ko" ;;
        *) cp "$file" "$dir/modules/$number-$module.ko" ;;
        esac
    done
    number=$((number + 1))
done
put "$binary" "$dir/guest/bin/nri-runc"
put "$cases" "$dir/guest/cases"
put "$helper" "$dir/guest/bin/nri-runc-node-helper"
mkdir -p "$dir/lib/systemd" "$dir/etc/systemd/system"
put "$vm/root/lib/systemd/systemd" "$dir/lib/systemd/systemd"
put "$vm/root/bin/systemctl" "$dir/guest/bin/systemctl"
put "$vm/root/lib/systemd/systemd-journald" "$dir/lib/systemd/systemd-journald"
# `nri audit` looks for it in PATH.
put "$vm/root/bin/journalctl" "$dir/bin/journalctl"
put "$vm/root/usr/bin/dbus-daemon" "$dir/guest/bin/dbus-daemon"
cp scripts/vm/systemd/*.service scripts/vm/systemd/*.socket scripts/vm/systemd/*.target "$dir/etc/systemd/system/"
cp scripts/vm/systemd/bus.conf "$dir/guest/bus.conf"
(cd "$dir" && find . | "$tools/busybox" cpio -o -H newc 2>/dev/null) >"$vm/initrd.new"
mv "$vm/initrd.new" "$vm/initrd"
rm -rf "$dir"
