#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the commands of the README on a fresh machine: a minimal Debian of RELEASE (bookworm, trixie) with git, make,
# ca-certificates and Rust, below target/fresh. It has its own processes, mounts and /run, and an init process that
# reaps promptly; it shares cgroups and network with this machine. It is created for each run and removed afterwards.
# Only downloads and the debootstrap of each release are kept.
#
#   RELEASE=bookworm scripts/fresh.sh                     clones the commit, runs `make demo` and `make test`
#   PARTS='demo podman …' scripts/fresh.sh                uses this checkout and its target/debug: runs the demo
#                                                         and these test programs
#
# MIRROR: a Debian archive (default: the one that this machine uses).
set -eu
cd "$(dirname "$0")/.."
top=$PWD
release=${RELEASE:-bookworm}
fresh=$top/target/fresh
base=$fresh/$release/base
machine=$fresh/$release/machine
cargo_home=${CARGO_HOME:-$HOME/.cargo}
rustup_home=${RUSTUP_HOME:-$HOME/.rustup}

say() { printf 'fresh: %s\n' "$*"; }
fail() { printf 'fresh: FAILED: %s\n' "$*" >&2; exit 1; }

# --- outside ------------------------------------------------------------------------------------

# debootstrap is a script and its keys are files, so unpacking their packages is enough.
unpack() {
    [ ! -e "$fresh/$1/.done" ] || return 0
    rm -rf "${fresh:?}/$1"
    mkdir -p "$fresh/$1"
    (cd "$fresh/$1" && apt-get download "$1" && dpkg -x ./*.deb . && rm ./*.deb) >"$fresh/apt.log" 2>&1 ||
        { tail -n 5 "$fresh/apt.log" >&2; fail "the package $1 cannot be downloaded (apt-get update?)"; }
    touch "$fresh/$1/.done"
}

prepare() {
    mkdir -p "$fresh/cargo" "$fresh/debs/$release"
    touch "$fresh/cargo/.lock"
    # debootstrap downloads with it.
    command -v wget >/dev/null || apt-get install -y --no-install-recommends wget >"$fresh/apt.log" 2>&1 || :
    for program in git setpriv unshare wget dpkg flock; do
        command -v $program >/dev/null || fail "$program is missing on this machine"
    done
    [ -x "$cargo_home/bin/rustup" ] || fail "no rustup in $cargo_home/bin: the machine gets its Rust from this one's rustup"
    unpack debootstrap
    unpack debian-archive-keyring
    # Crates that this machine already has are not downloaded again.
    if [ ! -e "$fresh/cargo/.done" ]; then
        [ ! -d "$cargo_home/registry" ] || cp -a "$cargo_home/registry/." "$fresh/cargo/"
        touch "$fresh/cargo/.done"
    fi
}

clear_up() {
    if [ -n "$child" ]; then
        kill -KILL "$child" 2>/dev/null || :
        wait || :
        sleep 1 # its last processes may still be exiting
    fi
    # Cgroups are not namespaced here. Those of killed tests are named after the tests' folders.
    for folder in "$machine"/tmp/.tmp* "$machine"/tmp/nri*; do
        [ ! -d "$folder" ] || find /sys/fs/cgroup -depth -type d -path "*${folder##*/}*" -exec rmdir {} \; 2>/dev/null || :
    done
    rm -rf "$machine" || :
}

outside() {
    case $release in bookworm | trixie) ;; *) fail "RELEASE is bookworm or trixie" ;; esac
    [ "$(id -u)" = 0 ] || fail "a machine's mounts and containers need root"
    mkdir -p "$fresh/$release"
    exec 9>"$fresh/$release/.lock"
    flock -n 9 || fail "another make fresh works on $release in this checkout"
    prepare
    child=
    trap clear_up EXIT
    trap 'exit 130' INT TERM HUP
    rm -rf "$machine"
    commit=$(git -c safe.directory='*' rev-parse HEAD)
    [ -n "${PARTS:-}" ] || [ -z "$(git -c safe.directory='*' status --porcelain --untracked-files=no)" ] ||
        say "what is not committed is not in it"
    git_dir=$(git -c safe.directory='*' rev-parse --path-format=absolute --git-common-dir)
    # However this script ends, even by SIGKILL, the machine's processes end too, and with them its mounts.
    setpriv --pdeathsig KILL unshare --mount --pid --uts --ipc --fork --kill-child=KILL --mount-proc \
        sh "$top/scripts/fresh.sh" inside "$commit" "$git_dir" 9>&- &
    child=$!
    status=0
    wait "$child" || status=$?
    child=
    exit $status
}

# --- inside -------------------------------------------------------------------------------------

debootstrap() {
    [ ! -e "$base/.done" ] || return 0
    say "debootstrap $release, once"
    rm -rf "$base"
    mkdir -p "$base"
    # The archive that this machine uses if it is Debian's, otherwise debootstrap's default.
    mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' 'Created-By: Packages' 2>/dev/null | head -n 1)}
    # shellcheck disable=SC2086
    DEBOOTSTRAP_DIR=$fresh/debootstrap/usr/share/debootstrap sh "$fresh/debootstrap/usr/sbin/debootstrap" \
        --variant=minbase --include=git,make,ca-certificates --cache-dir="$fresh/debs/$release" \
        --keyring="$fresh/debian-archive-keyring/usr/share/keyrings/debian-archive-keyring.gpg" \
        "$release" "$base" $mirror >"$fresh/$release/debootstrap.log" 2>&1 ||
        { tail -n 20 "$fresh/$release/debootstrap.log" >&2; fail "debootstrap"; }
    touch "$base/.done"
}

# mount_at SOURCE PLACE OPTION...: mounts SOURCE of this machine at PLACE in the new one.
mount_at() {
    source=$1 place=$machine$2
    shift 2
    if [ -d "$source" ]; then mkdir -p "$place"; else mkdir -p "${place%/*}" && touch "$place"; fi
    mount "$@" "$source" "$place"
}

# Copies the network settings of this machine to the new one.
connect() {
    for file in /etc/resolv.conf /etc/hosts; do cp -L $file "$machine$file"; done
    echo "127.0.1.1 fresh" >>"$machine/etc/hosts"
    hostname fresh
    apt-config dump 2>/dev/null | grep -E '^Acquire::(http|https|Check-|Retries|Max-)' >"$machine/etc/apt/apt.conf.d/90acquire" || :
    if [ -n "$(find /usr/local/share/ca-certificates -name '*.crt' 2>/dev/null)" ]; then
        cp -R /usr/local/share/ca-certificates "$machine/usr/local/share/"
        chroot "$machine" update-ca-certificates >/dev/null 2>&1
    fi
}

# Shares rustup with this machine's toolchains, read-only, and only the downloads of cargo's folder.
rust() {
    mount_at "$rustup_home" "$rustup_home" --rbind
    mount -o remount,ro,bind "$machine$rustup_home"
    mkdir -p "$machine$cargo_home/bin"
    cp "$cargo_home/bin/rustup" "$machine$cargo_home/bin/"
    for name in cargo cargo-clippy cargo-fmt clippy-driver rustc rustdoc rustfmt; do
        ln -s rustup "$machine$cargo_home/bin/$name"
    done
    for file in config config.toml; do
        [ ! -e "$cargo_home/$file" ] || cp "$cargo_home/$file" "$machine$cargo_home/"
    done
    mount_at "$fresh/cargo" "$cargo_home/registry" --bind
    # Cargo's lock on its downloads, which the machine of the other release may be using.
    mount_at "$fresh/cargo/.lock" "$cargo_home/.package-cache" --bind
}

# Mounts this checkout read-only at its own path, so that cargo reuses its builds. Everything written to `target` is
# discarded with the machine.
checkout() {
    mount_at "$top" "$top" --bind
    mount -o remount,ro,bind "$machine$top"
    mkdir -p "$machine/over/target/debug" "$machine/over/upper" "$machine/over/work" "$top/target/debug"
    mount --bind "$machine/over/target" "$machine$top/target"
    mount -t overlay overlay "$machine$top/target/debug" \
        -o "lowerdir=$top/target/debug,upperdir=$machine/over/upper,workdir=$machine/over/work"
    # Programs linked with a newer C library are rebuilt.
    built=$top/target/debug/nri-runc
    if [ -e "$built" ] && ! chroot "$machine" "$built" nri --help >/dev/null 2>&1; then
        say "what is built in target/debug does not start on $release: it is built there, which takes minutes"
        umount "$machine$top/target/debug"
    fi
}

# The environment of a login, and the variables that configure network access. As in CI, a test fails instead of
# being skipped if it lacks something that the setup installs; Go is not among that.
enter() {
    set -- HOME="$HOME" PATH="$cargo_home/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
        CARGO_HOME="$cargo_home" RUSTUP_HOME="$rustup_home" NRI_RUNC_DEBS=/var/cache/nri-runc CI=true NRI_RUNC_FRESH=yes "$@"
    for name in $(env | sed -n -E 's/^(LANG|TERM|[a-z]*_proxy|[A-Z]*_PROXY|CARGO_[A-Z_]*|RUST[A-Z_]*|SSL_CERT_[A-Z]*)=.*/\1/p'); do
        case $name in CARGO_HOME | RUSTUP_HOME) continue ;; esac
        set -- "$name=$(printenv "$name")" "$@"
    done
    env -i "$@"
}

inside() {
    commit=$1 git_dir=$2
    mount --make-rprivate /
    debootstrap
    say "a machine of $release: $(cat "$base/etc/debian_version"), Rust of this machine's rustup, read-only"
    cp -a "$base" "$machine"
    rm "$machine/.done"
    mount --bind "$machine" "$machine"
    mount -t proc proc "$machine/proc"
    mount --rbind /sys "$machine/sys"
    mount --rbind /dev "$machine/dev"
    mount -t tmpfs tmpfs "$machine/dev/shm"
    mount -t tmpfs -o mode=755 run "$machine/run"
    echo force-unsafe-io >"$machine/etc/dpkg/dpkg.cfg.d/fresh"
    connect
    rust
    mount_at "$fresh/debs/$release" /var/cache/apt/archives --bind
    mount_at "$fresh/debs/$release" /var/cache/nri-runc --bind
    mount_at "$git_dir" /mnt/git --bind
    mount -o remount,ro,bind "$machine/mnt/git"
    [ -z "${PARTS:-}" ] || checkout
    cp "$top/scripts/fresh.sh" "$machine/fresh.sh"
    mkdir "$machine/before"
    cd "$machine"
    pivot_root . before
    cd /
    umount -l /before
    rmdir /before
    mkdir -p "$HOME"
    status=0
    if [ -n "${PARTS:-}" ]; then
        # shellcheck disable=SC2086
        enter sh /fresh.sh parts "$top" $PARTS || status=$?
    else
        enter sh /fresh.sh readme "$commit" || status=$?
    fi
    exit $status
}

# --- on the new machine ---------------------------------------------------------------------------

# timed NAME COMMAND...: continues after a failure. The output goes through a file, because a process that a test
# left running would keep a pipe open.
timed() {
    name=$1 log=/var/log/fresh/$1 begun=$(date +%s) result=passed
    shift
    mkdir -p /var/log/fresh
    printf '\nfresh: == %s\n' "$name"
    : >"$log"
    "$@" >"$log" 2>&1 &
    tail -n +1 -f --pid=$! "$log" || :
    wait $! || result=FAILED
    [ $result = passed ] || failed=yes
    sums="$sums
fresh: $result: $name, $(($(date +%s) - begun)) s$(awk '
        /^test result: / { passed += $4; failed += $6; sum = 1 }
        /^left on this machine/ { names = names "\nfresh:     files are left on the machine" }
        / \.\.\. FAILED$/ { names = names "\nfresh:     " $2 }
        END { if (sum) printf ", %d tests passed, %d failed%s", passed, failed, names }' "$log")"
}

sums='' failed=''
conclude() {
    printf '%s\n' "$sums"
    [ -z "$failed" ]
}

readme() {
    cd "$HOME"
    git config --global safe.directory '*'
    git init --quiet nri-runc
    cd nri-runc
    git fetch --quiet --depth 1 file:///mnt/git "$1"
    git -c advice.detachedHead=false checkout --quiet FETCH_HEAD
    rm "$HOME/.gitconfig"
    timed "make demo" make demo
    timed "make test" make test
    sums="$sums
fresh: target has $(du -sh target | cut -f 1)"
    conclude
}

# test_target NAME FILTER...: runs a test program, with the lists of skipped tests and of leftovers.
test_target() {
    name=$1
    shift
    NRI_RUNC_TOOLS="$PWD/target/tools" sh scripts/left.sh sh scripts/skips.sh "$name" \
        sh scripts/again.sh cargo test --locked --no-fail-fast --test "$name" -- --test-threads=4 "$@"
}

parts() {
    cd "$1"
    shift
    timed "make setup" make setup
    for part in "$@"; do
        case $part in
        setup) ;;
        demo) timed "make demo" make demo ;;
        *) timed "cargo test --test $part" test_target "$part" ;;
        esac
    done
    conclude
}

case ${1:-} in
'') outside ;;
inside | readme | parts) "$@" ;;
*) fail "unknown: $1" ;;
esac
