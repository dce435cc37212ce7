#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the engine tests on cgroup v2 in a guest under qemu without KVM: Debian's kernel, this
# machine's shell and libraries, the engines of target/tools/newer with their folders of tools
# (made by scripts/engines.sh), and the programs built here. `engines.sh NAME-VERSION...`; Podman takes
# a quarter of an hour. With VM_FIRST=systemd, systemd is the first process, and engines use the systemd
# driver. VM_TESTS selects tests, without the prefix of the engine (default: all). VM_WHY is the reason why the
# others cannot run; without it, a run of selected tests adds no row to the table of engines. The guest's output
# is in target/vm/serial-engines.log. VM_MINUTES limits the run (60).
set -eu
cd "$(dirname "$0")/../.."
vm=${VM_DIR:-$PWD/target/vm}
tools=$PWD/target/tools
built=$PWD/target/debug
root=$vm/disk
sh scripts/vm/packages.sh

# Copies a program, without its debug information, to the same path or to the second argument, and
# the libraries that ldd lists.
put() {
    mkdir -p "$root$(dirname "${2:-$1}")"
    cp -L "$1" "$root${2:-$1}"
    strip "$root${2:-$1}" 2>/dev/null || true
    libraries_of "$1"
}
libraries_of() {
    LD_LIBRARY_PATH=${libraries:-$tools/lib} ldd "$1" 2>/dev/null |
        sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*/\1/p' |
        while read -r library; do
            case $library in
            "$tools"/*) ;;
            */ld-linux*) cp -L "$library" "$root/usr/lib64/" ;;
            *) cp -L "$library" "$root/usr/lib/$(uname -m)-linux-gnu/" ;;
            esac
        done
}

rm -rf "$root"
for folder in proc sys dev run root etc tmp var/lib var/tmp usr/bin usr/sbin usr/lib64 \
    "usr/lib/$(uname -m)-linux-gnu"; do
    mkdir -p "$root/$folder"
done
for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$root/$folder"; done
# Tests mount a file system over /run, which has CRI-O's sockets.
ln -s ../run "$root/var/run"
chmod 1777 "$root/tmp" "$root/var/tmp"
cp -R /etc/passwd /etc/group /etc/hosts /etc/ld.so.conf /etc/ld.so.conf.d "$root/etc/"
touch "$root/etc/resolv.conf"
for program in sh cat cp ln ls mkdir mv rm touch chmod tar mount umount unshare nsenter sed grep \
    find head sleep env sync uname dirname ip ps ldconfig sha256sum cut stat script setpriv chown install setsid; do
    found=$(PATH=/usr/sbin:/usr/bin command -v "$program" | grep '^/') || found=
    [ -n "$found" ] || { echo "vm: no $program here" >&2; exit 2; }
    put "$found"
done
# In some releases, Debian's ldconfig is a wrapper script.
[ ! -e /usr/sbin/ldconfig.real ] || put /usr/sbin/ldconfig.real

cargo build --locked --examples --bins 2>"$vm/build.log" || { cat "$vm/build.log" >&2; exit 1; }
put "$built/nri-runc"
for name in "$@"; do
    mkdir -p "$root$tools/newer/$name.tools"
    cp -R "$tools/newer/$name" "$root$tools/newer/"
    cp -R "$tools/newer/$name.tools/bin" "$root$tools/newer/$name.tools/"
    ln -s "$tools/lib" "$tools/newer" "$root$tools/newer/$name.tools/"
done
for runtime in "$tools"/newer/runc-* "$tools"/newer/crun-*; do
    [ ! -e "$runtime/.done" ] || cp -R "$runtime" "$root$tools/newer/"
done
cargo test --locked --no-run --test engines 2>"$vm/build.log" || { cat "$vm/build.log" >&2; exit 1; }
cases=$(sed -n 's/.*Executable .*(\(.*\))$/\1/p' "$vm/build.log")
# Each word of VM_TESTS must match a test, or the row would claim tests that did not run. Tests that are left out are
# listed.
tests_of() { "$cases" --list "$1" --skip hooks:: 2>/dev/null | sed -n 's/: test$//p'; }
for name in ${VM_TESTS:+"$@"}; do
    engine=${name%%-*}::
    : >"$vm/chosen"
    for word in $VM_TESTS; do
        tests_of "$engine$word" | grep . >>"$vm/chosen" || { echo "vm: no test is $engine$word" >&2; exit 2; }
    done
    tests_of "$engine" | grep -vxFf "$vm/chosen" | sed "s/^/vm: left out, ${VM_WHY:-not asked for}: /" || true
done
# At cargo's path, from which tests derive the folder for their builds.
put "$cases" /target/debug/deps/engines
for program in "$tools"/bin/*; do libraries_of "$program"; done
for package in bin busybox-static conmon containerd docker.io docker-cli podman runc crun libyajl2 lib; do
    [ ! -e "$tools/$package" ] || cp -R "$tools/$package" "$root$tools/"
done
for example in "$built"/examples/*; do
    case ${example##*/} in *[-.]*) ;; *) put "$example" ;; esac
done
printf 'tools=%s\nexport NRI_RUNC_BINARY=%s\n' "$tools" "$built/nri-runc" >"$root/variables"
printf "NRI_RUNC_TESTS='%s'\nexport EXITS='%s'\n" "${VM_TESTS:-}" "${EXITS:-}" >>"$root/variables"
# A plugin that a test here builds: the guest has no compiler.
case ${VM_TESTS:-} in
*template::*)
    NRI_RUNC_TOOLS=$tools cargo test --locked --quiet --test engines -- --exact \
        template::the_template_adjusts_a_bundle_through_restarts_of_the_daemon
    put "$PWD/target/tmp/10-trial" /guest/10-trial
    echo 'export NRI_RUNC_PACKAGED_PLUGIN=/guest/10-trial' >>"$root/variables" ;;
esac
# Read by the comparison with the engine's own NRI.
mkdir -p "$root$PWD/docs"
cp docs/compatibility.md "$root$PWD/docs/"
cp scripts/vm/engines-init "$root/init"
chmod 755 "$root/init"

# systemd with its bus and libraries of its version, at the paths that the other guest's units use.
first=engines
if [ "${VM_FIRST:-}" = systemd ]; then
    first=engines-systemd
    mkdir -p "$root/lib/systemd" "$root/etc/systemd/system" "$root/guest/bin"
    of_systemd=$vm/root/usr/lib/$(uname -m)-linux-gnu
    libraries=$of_systemd/systemd:$of_systemd:$vm/root/lib/$(uname -m)-linux-gnu
    put "$vm/root/lib/systemd/systemd" /lib/systemd/systemd
    put "$vm/root/bin/systemctl" /usr/bin/systemctl
    put "$vm/root/usr/bin/dbus-daemon" /guest/bin/dbus-daemon
    cp scripts/vm/systemd/*.service scripts/vm/systemd/*.socket scripts/vm/systemd/*.target "$root/etc/systemd/system/"
    # As in an engine's unit: systemd disables controllers that no unit requests, and kubelet needs all of them.
    echo Delegate=yes >>"$root/etc/systemd/system/cases.service"
    cp scripts/vm/systemd/bus.conf "$root/guest/bus.conf"
fi

rm -f "$vm/disk.img"
truncate -s 6G "$vm/disk.img"
/usr/sbin/mke2fs -q -t ext4 -d "$root" "$vm/disk.img"
rm -rf "$root"
VM_MINUTES=${VM_MINUTES:-60} VM_DISK=$vm/disk.img sh scripts/vm/boot.sh $first "$@"
kernel=$(sed -n 's/^vm: \([0-9]*\.[0-9]*\).* is up.*/\1/p' "$vm/serial-$first.log")
driver=cgroupfs target='make engines'
[ $first != engines-systemd ] || driver=systemd target='make vm-engines'
if [ -n "${VM_TESTS:-}" ] && [ -z "${VM_WHY:-}" ]; then
    echo "vm: some tests were asked for: target/matrix.csv has no row of them"
    exit 0
fi
for name in "$@"; do
    sh scripts/matrix.sh ran "$target" "${name%%-*}" "${name#*-}" runc $driver v2 "$kernel"
    # Their tests have a container on crun, too.
    case $name in crio-* | podman-*) sh scripts/matrix.sh ran "$target" "${name%%-*}" "${name#*-}" 'crun 1.21' $driver v2 "$kernel" ;; esac
done
