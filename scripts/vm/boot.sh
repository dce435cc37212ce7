#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Boots target/vm/initrd, or the disk VM_DISK, without network or KVM, discards all writes, prints the serial
# output, and stops the guest after VM_MINUTES (10). Arguments: the guest's first process, `systemd`, `v1` (a
# script, with cgroup v1) or any other word (with cgroup v2), and the arguments for the cases. The output is
# also in target/vm/serial-PROCESS.log. VM_CLOCK=0.3 slows the guest's clock to that fraction of this
# machine's, so that no time-out expires while other processes use the CPUs. Succeeds only if the guest reports
# that all cases ran and passed; a skipped case is a failure.
set -eu
cd "$(dirname "$0")/../.."
vm=${VM_DIR:-$PWD/target/vm}
minutes=${VM_MINUTES:-10}
first=$1
shift
words=$(printf '%s,' "$@")
serial=$vm/serial-$first.log
# Debian 12's qemu leaves an address among the flags after CMPXCHG16B; kernels from 6.12 on panic because of it.
set -- -nodefaults -no-user-config -display none -no-reboot -machine pc -accel tcg,thread=multi -cpu max,cx16=off,la57=off \
    -smp 2 -serial stdio -device nvme,drive=disk,serial=vm
options=
if [ -n "${VM_DISK:-}" ]; then
    set -- "$@" -m 4096 -drive "file=$VM_DISK,format=raw,if=none,id=disk,snapshot=on"
    options="root=/dev/nvme0n1 rw init=/init"
    [ "$first" != engines-systemd ] || options="root=/dev/nvme0n1 rw init=/lib/systemd/systemd"
else
    set -- "$@" -m 1024 -initrd "$vm/initrd" -blockdev driver=null-co,node-name=disk,size=67108864
fi
kernel=$(find "$vm/kernel/" -name 'vmlinuz*' | head -n 1)
qemu=$(command -v qemu-system-x86_64) || {
    qemu=$vm/root/usr/bin/qemu-system-x86_64
    LD_LIBRARY_PATH=$vm/root/usr/lib/x86_64-linux-gnu:$vm/root/lib/x86_64-linux-gnu
    export LD_LIBRARY_PATH
    set -- "$@" -L "$vm/root/usr/share/qemu" -L "$vm/root/usr/share/seabios"
}

rm -f "$serial"
: >"$serial"
clock=
[ -z "${VM_CLOCK:-}" ] || clock=$(find "$vm/root/usr/lib" -name libfaketimeMT.so.1)
${clock:+env "LD_PRELOAD=$clock" "FAKETIME=+0 x$VM_CLOCK"} "$qemu" "$@" -kernel "$kernel" \
    -append "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off random.trust_cpu=on first=$first cases=$words systemd.unit=cases.service ${UPDATE_GOLDEN:+golden=1} $options" \
    </dev/null >>"$serial" 2>"$vm/qemu.log" &
pid=$!
trap 'kill $pid 2>/dev/null || true' EXIT INT TERM
tail -n +1 -f --pid=$pid "$serial" &
shown=$!
left=$((minutes * 60))
while kill -0 $pid 2>/dev/null && [ $left -gt 0 ]; do
    sleep 1
    left=$((left - 1))
done
if kill $pid 2>/dev/null; then
    echo "vm: ended after $minutes minutes without a result (VM_MINUTES)" >&2
fi
wait $pid 2>/dev/null || true
trap - EXIT INT TERM
wait $shown 2>/dev/null || true
cat "$vm/qemu.log" >&2
tr -d '\r' <"$serial" >"$serial.new"
mv "$serial.new" "$serial"
if grep '^skipped: ' "$serial" >&2; then exit 1; fi
grep -q '^vm: ended with 0$' "$serial"
