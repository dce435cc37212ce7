#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The network of the pods of `make kube`, a CNI plugin: a pair of interfaces, one end in the pod,
# the other on the node's bridge `pods`. Addresses come from a counter and are never reused.
set -eu
cat >/dev/null
here=v$(printf '%.12s' "${CNI_CONTAINERID:-}")
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;
ADD)
    exec 9>/run/pods-network.lock
    flock 9
    count=$(($(cat /run/pods-network.count 2>/dev/null || echo 0) + 1))
    echo "$count" >/run/pods-network.count
    exec 9>&-
    address=10.88.$((count / 250 + 1)).$((count % 250 + 2))/16
    ip link add "$here" type veth peer name "$CNI_IFNAME" netns "$CNI_NETNS"
    ip link set "$here" master pods up
    nsenter --net="$CNI_NETNS" ip address add "$address" dev "$CNI_IFNAME"
    nsenter --net="$CNI_NETNS" ip link set "$CNI_IFNAME" up
    printf '{"cniVersion": "1.0.0", "interfaces": [{"name": "%s", "sandbox": "%s"}], "ips": [{"address": "%s", "interface": 0}]}\n' \
        "$CNI_IFNAME" "$CNI_NETNS" "$address"
    ;;
DEL) ip link delete "$here" 2>/dev/null || : ;;
esac
