#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests a real one-node Kubernetes on containerd with nri-runc: builds it into target/tools/kube (once;
# tests/kube/go.mod has the versions), then runs tests/kube in a machine made of namespaces
# (machine.sh). `kube.sh build` only builds. KUBE selects rows, separated by commas.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
kube=$tools/kube
# Pinned, because the tests check its output.
HELM=v3.22.0
. scripts/machine.sh
version=$(sed -n 's/.*k8s.io\/kubernetes v//p' tests/kube/go.mod)

say() { printf 'kube: %s\n' "$*"; }
fail() { printf 'kube: %s\n' "$*" >&2; exit 1; }

build() {
    stamp="$(cat tests/kube/go.mod tests/kube/go.sum | cksum) $version"
    [ "$(cat "$kube/.done" 2>/dev/null)" != "$stamp" ] || return 0
    minor=$(go env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
    [ "${minor:-0}" -ge 24 ] ||
        fail "Kubernetes is built from source with Go of at least 1.24, which is not here: install Go, then run make kube again"
    say "building etcd and Kubernetes $version into target/tools/kube; this takes some minutes, once"
    rm -rf "$kube.part"
    mkdir -p "$kube.part"
    name=k8s.io/component-base/version
    set -- apiserver controller-manager scheduler
    # shellcheck disable=SC2046
    (cd tests/kube && nice -n 10 go build -mod=readonly -trimpath -o "$kube.part/" \
        -ldflags "-s -w -X $name.gitVersion=v$version -X $name.gitMajor=${version%%.*} -X $name.gitMinor=$(echo "$version" | cut -d . -f 2)" \
        $(printf 'k8s.io/kubernetes/cmd/kube-%s ' "$@") \
        k8s.io/kubernetes/cmd/kubelet k8s.io/kubernetes/cmd/kubectl \
        go.etcd.io/etcd/server/v3) >"$tools/kube.log" 2>&1 ||
        fail "Kubernetes cannot be built: $(grep . "$tools/kube.log" | tail -n 1) (all of it: target/tools/kube.log)"
    mv "$kube.part/server" "$kube.part/etcd"
    echo "$stamp" >"$kube.part/.done"
    rm -rf "$kube"
    mv "$kube.part" "$kube"
}

# Whether one of these rows was selected.
wants() {
    for row in "$@"; do
        case ",${KUBE:-$row}," in *,"$row",*) return 0 ;; esac
    done
    return 1
}

helm() {
    [ ! -x "$tools/helm-$HELM/helm" ] || return 0
    say "building helm $HELM into target/tools, once"
    GOBIN=$tools/helm-$HELM GOFLAGS=-trimpath nice -n 10 go install -ldflags "-s -w" "helm.sh/helm/v3/cmd/helm@$HELM" \
        >"$tools/helm.log" 2>&1 || fail "helm cannot be built: $(grep . "$tools/helm.log" | tail -n 1) (all of it: target/tools/helm.log)"
}

# Builds the DRA driver of the tests from the same modules.
driver() {
    (cd tests/kube && nice -n 10 go build -mod=readonly -trimpath -ldflags "-s -w" -o "$tools/kube-driver" ./driver) \
        >"$tools/kube-driver.log" 2>&1 ||
        fail "the DRA driver of the tests cannot be built: $(grep . "$tools/kube-driver.log" | tail -n 1)"
}

# Builds the helper for this machine, with the systemd of its tests.
helper() {
    cargo build --locked --bins --examples --manifest-path contrib/kubernetes/node-helper/Cargo.toml --target-dir target/node-helper
}

# Builds what the chart installs: an image of this version, and one of the next, whose program differs in one
# unused byte.
chart() {
    sh scripts/node-image.sh --quick --arch x86_64 --name localhost/nri-runc:kube --out target/image/kube.tar
    below=x86_64-unknown-linux-musl/quick
    { cat "target/static/$below/nri-runc"; echo; } >target/image/next
    sh scripts/image.sh --name localhost/nri-runc:next --out target/image/kube-next.tar \
        "amd64=$PWD/target/image/next,$PWD/target/image/helper/$below/nri-runc-node-helper"
}

inside() {
    work=$1
    make_machine
    keep_outside_overlay containerd /var/lib/containerd
    echo "$work" >/run/nri-runc-kube
    NRI_RUNC_KUBE=$work CARGO_NET_OFFLINE=true \
        cargo test --locked --quiet --test kube -- --nocapture
}

clear_up() {
    remove_cgroups
    rm -rf target/kube
    mkdir -p target/kube
    [ ! -d "$work/logs" ] || mv "$work/logs" target/kube/
    rm -rf "$work"
}

case ${1:-} in
inside) inside "$2"; exit ;;
build) build; exit ;;
'') ;;
*) fail "usage: kube.sh [build]" ;;
esac
[ "$(id -u)" = 0 ] || fail "real containers need root"
for program in ip unshare mount; do
    command -v $program >/dev/null || fail "$program is missing: install iproute2, util-linux and mount"
done
build
sh scripts/newer.sh containerd-2.4.2 runc-1.5.2
[ -e "$tools/newer/containerd-2.4.2/.done" ] || fail "containerd 2.4.2 is not there (make newer)"
export NRI_RUNC_TOOLS="$tools"
cargo build --locked --examples --bins
if wants manifests chart; then helm; fi
if wants chart reports; then helper; fi
if wants chart; then chart; fi
if wants claims; then driver; fi
case ",${KUBE:-}," in
*,examples,*) sh scripts/node-image.sh --plugin ulimit-adjuster --arch x86_64 --out target/image/kube-plugin.tar ;;
esac
export NRI_RUNC_HELM="$tools/helm-$HELM/helm" NRI_RUNC_NODE_HELPER="$PWD/target/node-helper/debug"
cargo test --locked --no-run --test kube
work=$(mktemp -d /tmp/nri-kube.XXXXXX)
trap clear_up EXIT
trap 'exit 130' INT TERM
status=0
unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc sh "$0" inside "$work" || status=$?
[ $status = 0 ] || say "what every program said is in target/kube/logs"
[ $status != 0 ] || [ -n "${KUBE:-}" ] || sh scripts/matrix.sh ran 'make kube' kubernetes "$version" runc
exit $status
