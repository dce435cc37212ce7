# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154
# A machine made of namespaces, for kube.sh and k3s.sh, which source this file and define `fail`. It has
# its own processes, mounts and network, and private writes to /etc, /opt, /var, /usr/local and /run.
# Everything disappears with its first process, which calls this from namespaces that `unshare`
# created. Its files are in the folder `work`.
make_machine() {
    # Overlays keep writes inside the machine.
    for place in etc opt var usr/local; do
        mkdir -p "$work/upper/$place" "$work/under/$place" "/$place"
        mount -t overlay overlay -o "lowerdir=/$place,upperdir=$work/upper/$place,workdir=$work/under/$place" "/$place" ||
            fail "no overlay can be mounted on /$place: $(id -un) needs the rights of a machine's root, not of a container's"
    done
    mount -t tmpfs run /run
    # As on every node: what an engine mounts there propagates to pods that follow it.
    mount --make-rshared /run
    [ -e /var/run ] || ln -s /run /var/run
    mkdir -p /var/lib/kubelet
    mount -t tmpfs kubelet /var/lib/kubelet
    mount --make-rshared /var/lib/kubelet
    # kubelet sets these for the whole kernel; bind mounts redirect its writes to files.
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

# keep_outside_overlay NAME FOLDER: keeps images and volumes off the overlay, because engines mount
# their own overlays there.
keep_outside_overlay() {
    mkdir -p "$work/$1" "$2"
    mount --bind "$work/$1" "$2"
}

# Cgroups are not part of a namespace, and a killed process leaves its cgroup only after a moment.
remove_cgroups() {
    for _try in 1 2 3 4 5 6 7 8 9 10; do
        find /sys/fs/cgroup -depth -type d -path "*/${work##*/}*" -exec rmdir {} \; 2>/dev/null || :
        [ -n "$(find /sys/fs/cgroup -type d -name "${work##*/}")" ] || break
        sleep 0.5
    done
}
