#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests nri-runc on a real k3s, one server with its containerd, built from its Go module: registers
# nri-runc in the template, restarts k3s, lets the sample plugin adjust a pod, unregisters nri-runc, and
# compares the rendered file with the original. Differs from a usual node: no registry, cgroup v1 or no
# CAP_SYS_RESOURCE, and a separate pod network. `k3s.sh`
set -eu
cd "$(dirname "$0")/.."
repository=$PWD
tools=$PWD/target/tools
k3s=$tools/newer/k3s-1.32.0
data=/var/lib/rancher/k3s
. scripts/machine.sh

say() { printf 'k3s: %s\n' "$*"; }
fail() {
    printf 'k3s: %s\n' "$*" >&2
    [ ! -e "${work:-/none}/k3s.log" ] || grep -v 'level=info\|^[IW]' "$work/k3s.log" | tail -n 15 >&2
    exit 1
}

# wait_for WHAT COMMAND...: retries the command for at most two minutes.
wait_for() {
    what=$1
    shift
    for _second in $(seq 120); do
        if "$@" >"$work/waited" 2>&1; then return; fi
        sleep 1
    done
    cat "$work/waited" >&2
    fail "waited too long until $what"
}

# Installs the programs that k3s normally unpacks, with Debian's shim and runc, and the pod network,
# which k3s is configured not to create.
put_programs() {
    bin=$data/data/current/bin
    mkdir -p "$bin" "$data/agent/images" /opt/cni/bin /etc/cni/net.d "$work/image"
    cp "$k3s/server" "$bin/k3s"
    for name in containerd ctr kubectl crictl; do ln -s k3s "$bin/$name"; done
    cp "$tools/bin/containerd-shim-runc-v2" "$bin/"
    # An infrastructure container's oom_score_adj of -998 requires CAP_SYS_RESOURCE.
    cat >"$bin/runc" <<RUNC
#!/bin/sh
before=
for word; do
    [ "\$before" != --bundle ] || sed -i 's/"oomScoreAdj": *-998/"oomScoreAdj":0/' "\$word/config.json"
    before=\$word
done
exec $tools/bin/runc "\$@"
RUNC
    cp tests/kube/pods-network.sh /opt/cni/bin/pods
    cat >/opt/cni/bin/loopback <<'LOOPBACK'
#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}' ;;
ADD)
    nsenter --net="$CNI_NETNS" ip link set lo up
    echo '{"cniVersion": "0.3.1", "interfaces": [{"name": "lo"}], "ips": []}' ;;
esac
LOOPBACK
    chmod 755 "$bin/runc" /opt/cni/bin/pods /opt/cni/bin/loopback
    echo '{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "pods"}]}' >/etc/cni/net.d/10-pods.conflist
    (cd "$work/image" && sh "$repository/fixtures/images/busybox.sh" "$tools/bin/busybox")
    mv "$work/image/image.tar" "$data/agent/images/busybox.tar"
    ln -s "$bin/k3s" /usr/local/bin/k3s
    cp target/debug/nri-runc /usr/local/bin/nri-runc
    export PATH="$bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    export KUBECONFIG=/etc/rancher/k3s/k3s.yaml
}

start() {
    k3s server --node-name node --node-ip 10.88.0.1 --snapshotter native --pause-image localhost/busybox:1 \
        --disable traefik,servicelb,metrics-server,local-storage,coredns --flannel-backend none \
        --disable-network-policy --disable-kube-proxy --disable-cloud-controller --disable-helm-controller \
        --kubelet-arg cgroup-driver=cgroupfs --kubelet-arg "cgroup-root=${work##*/}" --kubelet-arg oom-score-adj=0 \
        --kubelet-arg fail-cgroupv1=false --kubelet-arg make-iptables-util-chains=false \
        --kubelet-arg local-storage-capacity-isolation=false --kubelet-arg "eviction-hard=nodefs.available<0%" \
        >>"$work/k3s.log" 2>&1 &
    server=$!
    wait_for "the node is ready" kubectl wait --for=condition=Ready node/node --timeout=1s
}

restart() {
    kill "$server"
    wait "$server" 2>/dev/null || :
    start
}

has_loaded() { nri-runc nri check 2>/dev/null | grep -q 'registered with containerd .*containerd has loaded it'; }
is_adjusted() { nri-runc nri explain default/web/web | grep -q '20-resource-defaults  linux.resources.cpu.shares .* 512'; }

inside() {
    work=$1
    make_machine
    ip route add default via 10.88.0.1
    keep_outside_overlay rancher /var/lib/rancher
    put_programs
    start
    rendered=$data/agent/etc/containerd/config.toml
    cp "$rendered" "$work/before.toml"
    say "ok: the node is ready"

    nri-runc nri install containerd >"$work/said"
    grep -q "^wrote $rendered.tmpl$" "$work/said" || fail "install: $(cat "$work/said")"
    grep -q '^next: systemctl restart k3s$' "$work/said" || fail "install: $(cat "$work/said")"
    cmp -s "$rendered" "$work/before.toml" || fail "install wrote the file that k3s renders"
    restart
    wait_for "k3s has loaded the handler" has_loaded
    say "ok: registered in the template; k3s has loaded the handler"

    nri-runc nri daemon 2>>"$work/daemon.log" &
    target/debug/examples/resource_defaults --reconnect 2>>"$work/plugin.log" &
    cat >"$work/pod.yaml" <<'POD'
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nri-runc}
handler: nri-runc
---
apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations: {resources.nri-runc.dev: '{"cpu": {"shares": 512}}'}
spec:
  runtimeClassName: nri-runc
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: localhost/busybox:1
    imagePullPolicy: Never
    command: [/bin/sleep, "10000"]
    resources: {requests: {cpu: 100m}}
POD
    wait_for "the plugin is connected" sh -c 'nri-runc nri plugins | grep -q "20-resource-defaults  *synchronized"'
    wait_for "the pod is accepted" kubectl apply -f "$work/pod.yaml"
    wait_for "the pod runs" kubectl wait --for=condition=Ready pod/web --timeout=1s
    is_adjusted || fail "the plugin adjusted nothing: $(nri-runc nri explain default/web/web)"
    say "ok: a pod of k3s is adjusted by a plugin"

    if nri-runc nri uninstall containerd >"$work/said" 2>&1; then fail "uninstall took the runtime from a pod"; fi
    grep -q 'still use' "$work/said" || fail "uninstall: $(cat "$work/said")"
    kubectl delete -f "$work/pod.yaml" >/dev/null
    wait_for "no container uses nri-runc" nri-runc nri uninstall containerd
    restart
    wait_for "k3s renders the file that it rendered before" cmp "$rendered" "$work/before.toml"
    [ ! -e "$rendered.tmpl" ] && [ ! -e /var/lib/nri-runc ] || fail "uninstall left something"
    say "ok: unregistered; k3s renders the file that it rendered before"
}

# kubelet requires its root cgroup to exist; a new cpuset cgroup has no CPUs.
make_cgroup() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        mkdir "/sys/fs/cgroup/$1"
        return
    fi
    for hierarchy in /sys/fs/cgroup/*/; do
        mkdir -p "$hierarchy$1" 2>/dev/null || continue
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$hierarchy$file" ] || cat "$hierarchy$file" >"$hierarchy$1/$file"
        done
    done
}

case ${1:-} in
inside) inside "$2"; exit ;;
'') ;;
*) fail "usage: k3s.sh" ;;
esac
[ "$(id -u)" = 0 ] || fail "real containers need root"
sh scripts/newer.sh k3s-1.32.0
[ -e "$k3s/.done" ] || fail "k3s is not there"
cargo build --locked --bins --examples
work=$(mktemp -d /tmp/nri-k3s.XXXXXX)
trap 'remove_cgroups; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
make_cgroup "${work##*/}"
unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc sh "$0" inside "$work"
sh scripts/matrix.sh ran 'make k3s' k3s 1.32.0 runc
say "all of it holds"
