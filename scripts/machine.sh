# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154
# A machine of its own inside this one, for kube.sh and k3s.sh, which read this file and have `fail`.
# Its processes, mounts and network are its own, and so is what it writes to /etc, /opt, /var,
# /usr/local and /run. All of it goes with its first process, the one that calls this; it runs in
# namespaces that `unshare` made. Its files are in the folder `work`.
make_machine() {
    # What would be a link out of it is a folder of its own.
    for place in etc opt var usr/local; do
        mkdir -p "$work/upper/$place" "$work/under/$place" "/$place"
        mount -t overlay overlay -o "lowerdir=/$place,upperdir=$work/upper/$place,workdir=$work/under/$place" "/$place" ||
            fail "no overlay can be mounted on /$place: $(id -un) needs the rights of a machine's root, not of a container's"
    done
    mount -t tmpfs run /run
    # As on every node: what an engine mounts there goes on to pods that follow it.
    mount --make-rshared /run
    [ -e /var/run ] || ln -s /run /var/run
    mkdir -p /var/lib/kubelet
    mount -t tmpfs kubelet /var/lib/kubelet
    mount --make-rshared /var/lib/kubelet
    # kubelet sets these for the whole kernel: here it writes to files.
    for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
        kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
        [ -e "/proc/sys/$setting" ] || continue
        cat "/proc/sys/$setting" >"$work/setting.${setting##*/}"
        mount --bind "$work/setting.${setting##*/}" "/proc/sys/$setting"
    done
    hostname node
    ip link set lo up
    ip link add pods type bridge
    ip address add 10.88.0.1/16 dev pods
    ip link set pods up
}

# keep_outside_overlay NAME FOLDER: images and volumes are not kept on an overlay, since engines
# mount overlays of their own there.
keep_outside_overlay() {
    mkdir -p "$work/$1" "$2"
    mount --bind "$work/$1" "$2"
}

# Cgroups belong to the kernel, not to a namespace; a process that was killed leaves its one late.
remove_cgroups() {
    for _try in 1 2 3 4 5 6 7 8 9 10; do
        find /sys/fs/cgroup -depth -type d -path "*/${work##*/}*" -exec rmdir {} \; 2>/dev/null || :
        [ -n "$(find /sys/fs/cgroup -type d -name "${work##*/}")" ] || break
        sleep 0.5
    done
}
