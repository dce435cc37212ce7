#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs, upgrades (with the daemon running), removes and purges the packages of target/package/dist in
# separate namespaces, with a temporary overlay over this machine's files. Needs root and Debian's
# packages lintian, rpm, mandoc, zsh, fish, secilc and qemu-user.
#
#   scripts/package-test.sh [deb|rpm|pages|archive|arm]...
set -eu
cd "$(dirname "$0")/.."
top=$PWD
dist=$top/target/package/dist
next=$top/target/package/next/dist
parts=${*:-pages deb rpm archive arm}
packages='lintian rpm mandoc zsh fish secilc qemu-user'

say() { printf 'package-test: %s\n' "$*"; }
fail() { printf 'package-test: FAILED: %s\n' "$*" >&2; exit 1; }
passed() { printf '  ok  %s\n' "$*"; }

# --- inside -------------------------------------------------------------------------------------

# Lists every file that a package could leave behind.
listing() {
    find /etc /usr /lib /opt /var /run/nri-runc -xdev \( -path '/var/lib/dpkg' -o -path '/var/lib/rpm' \
        -o -path '/var/cache' -o -path '/var/log' -o -path '/var/lib/systemd' \) -prune -o -print 2>/dev/null | sort
}

nothing_is_left() {
    listing >/tmp/after
    diff /tmp/before /tmp/after >/tmp/left || { head -n 20 /tmp/left >&2; fail "$1 leaves or takes files"; }
    passed "$1 leaves nothing"
}

# Installs a plugin that the daemon starts, and a bundle whose process prints the value that the plugin sets.
node() {
    mkdir -p /opt/nri/plugins /etc/nri/conf.d /srv/data /srv/bundle/rootfs/bin /srv/bundle/rootfs/proc /etc/containerd
    cp "$top/target/debug/examples/demo_plugin" /opt/nri/plugins/10-greeter
    printf 'data=/srv/data\nsaw=/srv/saw\n' >/etc/nri/conf.d/10-greeter.conf
    cp "$top/target/tools/bin/busybox" /srv/bundle/rootfs/bin/
    for applet in sh sleep; do ln -s busybox "/srv/bundle/rootfs/bin/$applet"; done
    printf 'version = 2\n# by an operator\n' >/etc/containerd/config.toml
    cp /etc/containerd/config.toml /srv/containerd.before
}

bundle() {
    cat >/srv/bundle/config.json <<JSON
{"ociVersion": "1.0.2", "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "env": ["PATH=/bin"],
 "args": ["sh", "-c", "$2"]}, "root": {"path": "rootfs"},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"cgroupsPath": "/$cgroup/$1", "namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "ipc"}]}}
JSON
}

# Runs one container from create to delete; fails unless its process has the plugin's value.
live() {
    bundle "$1" 'echo greeting=$GREETING'
    said=$(nri-runc --root /run/containers-of-test run --bundle /srv/bundle "$1" </dev/null 2>&1)
    [ "$said" = greeting=hello-from-a-plugin ] || { echo "$1: $said"; return 1; }
}

number() { nri-runc nri --json "$1" | grep -o "\"$2\":[0-9]*" | head -n 1 | cut -d : -f 2; }

# Creates a container that stays, as an engine keeps one.
keep() {
    bundle kept 'exec sleep 1000'
    nri-runc --root /run/containers-of-test create --bundle /srv/bundle kept </dev/null >/tmp/kept.log 2>&1 ||
        fail "a container cannot be created: $(cat /tmp/kept.log)"
    nri-runc --root /run/containers-of-test start kept
}

# upgrade NAME COMMAND...: creates and deletes containers while the package is replaced.
upgrade() {
    kind=$1
    shift
    daemon=$(number status pid) plugin=$(number plugins pid)
    : >/tmp/lives
    (
        index=0
        while [ ! -e /tmp/enough ]; do
            index=$((index + 1))
            live "$kind$index" >>/tmp/lives.wrong 2>&1 || { echo wrong >>/tmp/lives; break; }
            echo right >>/tmp/lives
        done
    ) &
    lives=$!
    sleep 1
    "$@" >/tmp/upgrade.log 2>&1 || fail "the upgrade fails: $(tail -n 3 /tmp/upgrade.log)"
    sleep 1
    touch /tmp/enough
    wait $lives || :
    rm /tmp/enough
    ! grep -q wrong /tmp/lives || fail "a container missed the plugin during the upgrade: $(cat /tmp/lives.wrong)"
    [ "$(wc -l </tmp/lives)" -gt 4 ] || fail "too few containers lived during the upgrade"
    grep -q '^re-executed' /tmp/upgrade.log || fail "the daemon was not re-executed: $(cat /tmp/upgrade.log)"
    [ "$(number status pid)" = "$daemon" ] || fail "the daemon is another process"
    [ "$(number plugins pid)" = "$plugin" ] || fail "the plugin was restarted"
    cmp -s "/proc/$daemon/exe" /usr/bin/nri-runc || fail "the daemon still runs the previous program"
    passed "$kind: upgrade with a running daemon; $(wc -l </tmp/lives) containers meanwhile, each with its plugin"
}

# refused WHY COMMAND...: the removal must fail with this reason and keep the program and its registration.
refused() {
    why=$1
    shift
    ! "$@" >/tmp/remove.log 2>&1 || fail "removed in spite of: $why"
    grep -q "$why" /tmp/remove.log || fail "the refusal does not say '$why': $(cat /tmp/remove.log)"
    [ -x /usr/bin/nri-runc ] && nri-runc nri status >/dev/null || fail "a refused removal has broken it"
}

removal_is_refused_while_needed() {
    nri-runc nri install containerd --take-over-nri >/tmp/install.log 2>&1 || fail "cannot register: $(cat /tmp/install.log)"
    refused 'need it until they are deleted' "$@"
    task=/run/containerd/io.containerd.runtime.v2.task/k8s.io/of-containerd
    mkdir -p "$task"
    printf /usr/bin/nri-runc >"$task/runtime"
    refused 'still uses /usr/bin/nri-runc: of-contain' "$@"
    grep -q nri-runc /etc/containerd/config.toml || fail "a refused removal has unregistered it"
    rm -r /run/containerd
    nri-runc --root /run/containers-of-test kill kept KILL
    sleep 0.3
    nri-runc --root /run/containers-of-test delete kept
    sleep 0.3
    passed "removal is refused while containers need it"
}

removal_undoes_registrations() {
    daemon=$1
    ! kill -0 "$daemon" 2>/dev/null || fail "the daemon outlives its program"
    cmp -s /etc/containerd/config.toml /srv/containerd.before || fail "containerd's file is not as it was"
    [ ! -e /usr/bin/nri-runc ] || fail "the program is still there"
    passed "removal undoes the registration byte for byte and stops the daemon"
}

deb() {
    lintian --allow-root --fail-on error,warning,info "$dist"/*_amd64.deb >/tmp/lintian.log 2>&1 ||
        fail "lintian: $(cat /tmp/lintian.log)"
    passed "lintian: clean, but for the overrides that the package explains"
    export DEBIAN_FRONTEND=noninteractive
    listing >/tmp/before
    dpkg -i "$dist"/*_amd64.deb >/tmp/dpkg.log 2>&1 || fail "cannot install: $(tail -n 3 /tmp/dpkg.log)"
    [ -z "$(dpkg --verify nri-runc)" ] || fail "files are not as packaged: $(dpkg --verify nri-runc)"
    ! nri-runc nri status >/dev/null 2>&1 || fail "installing has started a daemon"
    [ -x /usr/lib/nri-runc/plugins/resource-defaults ] || fail "the sample plugin is missing"
    passed "deb: installed; nothing runs"
    man -w nri-runc nri-runc-nri-status nri-runc-config nri-runc-plugins >/dev/null || fail "man does not find the pages"
    echo '# an operator was here' >>/etc/nri-runc/config.toml
    printf 'runtime = ["%s"]\n' "$top/target/tools/bin/runc" >/etc/nri-runc/config.d/10-runtime.toml
    keep
    live first || fail "the plugin's value is missing"
    upgrade deb dpkg -i "$next"/*_amd64.deb
    grep -q 'an operator was here' /etc/nri-runc/config.toml || fail "the upgrade has replaced an edited file"
    removal_is_refused_while_needed dpkg -r nri-runc
    daemon=$(number status pid)
    dpkg -r nri-runc >/tmp/dpkg.log 2>&1 || fail "cannot remove: $(cat /tmp/dpkg.log)"
    removal_undoes_registrations "$daemon"
    grep -q 'an operator was here' /etc/nri-runc/config.toml || fail "a removal takes the configuration"
    rm /etc/nri-runc/config.d/10-runtime.toml
    dpkg -P nri-runc >/tmp/dpkg.log 2>&1 || fail "cannot purge: $(cat /tmp/dpkg.log)"
    ! grep -q warning /tmp/dpkg.log || fail "purging warns: $(cat /tmp/dpkg.log)"
    nothing_is_left "deb: purge"
}

rpm_() { rpm --force-debian --nodeps "$@"; }

rpm_part() {
    # The filesystem packages of rpm distributions create these folders.
    mkdir -p /usr/share/licenses /usr/share/selinux/packages /usr/share/zsh/site-functions
    listing >/tmp/before
    rpm_ -i "$dist"/*.x86_64.rpm >/tmp/rpm.log 2>&1 || fail "cannot install: $(cat /tmp/rpm.log)"
    changed=$(rpm --force-debian -V nri-runc || :)
    [ -z "$changed" ] || fail "files are not as packaged: $changed"
    [ -x /usr/lib/nri-runc/plugins/resource-defaults ] || fail "the sample plugin is missing"
    passed "rpm: installed; nothing runs"
    echo '# an operator was here' >>/etc/nri-runc/config.toml
    printf 'runtime = ["%s"]\n' "$top/target/tools/bin/runc" >/etc/nri-runc/config.d/10-runtime.toml
    keep
    upgrade rpm rpm --force-debian --nodeps -U "$next"/*.x86_64.rpm
    grep -q 'an operator was here' /etc/nri-runc/config.toml || fail "the upgrade has replaced an edited file"
    removal_is_refused_while_needed rpm --force-debian -e nri-runc
    daemon=$(number status pid)
    rpm --force-debian -e nri-runc >/tmp/rpm.log 2>&1 || fail "cannot remove: $(cat /tmp/rpm.log)"
    removal_undoes_registrations "$daemon"
    grep -q 'an operator was here' /etc/nri-runc/config.toml.rpmsave || fail "an edited file is not kept"
    rm -r /etc/nri-runc
    nothing_is_left "rpm: removal"
}

# The man pages are valid roff, the completions load, and the SELinux module is valid.
pages() {
    folder=/tmp/unpacked
    rm -rf $folder
    dpkg-deb -x "$dist"/*_amd64.deb $folder
    for page in $folder/usr/share/man/man*/*.gz; do
        gzip -dc "$page" >/tmp/page
        mandoc -T lint -W warning /tmp/page >/tmp/lint.log 2>&1 || fail "$(basename "$page"): $(head -n 3 /tmp/lint.log)"
        groff -K utf8 -man -T utf8 -ww /tmp/page >/tmp/page.txt 2>/tmp/lint.log || fail "groff: $(cat /tmp/lint.log)"
        [ ! -s /tmp/lint.log ] || fail "$(basename "$page"): $(head -n 3 /tmp/lint.log)"
        passed "$(basename "$page"): $(wc -l </tmp/page.txt) lines, mandoc and groff warn of nothing"
    done
    bash -n $folder/usr/share/bash-completion/completions/nri-runc || fail "bash"
    zsh -n $folder/usr/share/zsh/vendor-completions/_nri-runc || fail "zsh"
    fish -n $folder/usr/share/fish/vendor_completions.d/nri-runc.fish || fail "fish"
    offered=$(fish -c "source $folder/usr/share/fish/vendor_completions.d/nri-runc.fish; complete -C 'nri-runc nri unin'" 2>&1)
    case $offered in uninstall*) ;; *) fail "fish does not offer uninstall: $offered" ;; esac
    passed "completions: bash, zsh and fish read them, fish offers a verb"
    # The types come from container-selinux; here, from a policy that only declares them.
    { cat "$top/contrib/selinux/types-for-test.cil" $folder/usr/share/selinux/packages/nri-runc.cil; } >/tmp/policy.cil
    secilc -o /tmp/policy -f /tmp/contexts /tmp/policy.cil >/tmp/secilc.log 2>&1 || fail "secilc: $(cat /tmp/secilc.log)"
    grep -q '^/usr/bin/nri-runc.*container_runtime_exec_t' /tmp/contexts || fail "no file context: $(cat /tmp/contexts)"
    passed "selinux: the module compiles, $(wc -l </tmp/contexts) file contexts"
}

# The archive's script installs everything, with man pages and completions, and removes it again.
archive_part() {
    listing >/tmp/before
    mkdir /tmp/archive
    tar -xzf "$dist"/nri-runc-*-x86_64.tar.gz -C /tmp/archive --strip-components 1
    (cd "$dist" && sha256sum --quiet -c SHA256SUMS) || fail "SHA256SUMS is wrong"
    sh /tmp/archive/install.sh --no-units >/tmp/archive.log 2>&1 || fail "install.sh: $(cat /tmp/archive.log)"
    man -w nri-runc >/dev/null || fail "man does not find the page of the archive"
    [ -s /usr/local/share/bash-completion/completions/nri-runc ] || fail "no completion for bash"
    /usr/local/bin/nri-runc nri --version >/dev/null || fail "the program of the archive does not run"
    /usr/local/lib/nri-runc/plugins/resource-defaults --help >/dev/null || fail "the sample plugin does not run"
    sh /tmp/archive/install.sh --uninstall >/tmp/archive.log 2>&1 || fail "install.sh --uninstall: $(cat /tmp/archive.log)"
    nothing_is_left "archive: install.sh --uninstall"
}

# Runs the other architecture's program in an emulator: pass-through, adjust and replay.
arm() {
    ls "$dist"/nri-runc-*-aarch64.tar.gz >/dev/null 2>&1 || fail "no aarch64 archive in $dist (make package)"
    mkdir -p /tmp/arm
    tar -xzf "$dist"/nri-runc-*-aarch64.tar.gz -C /tmp/arm --strip-components 1
    program="qemu-aarch64 /tmp/arm/nri-runc"
    $program nri --version | grep -q '^nri-runc' || fail "the aarch64 program does not run"
    printf '#!/bin/sh\necho "runtime: $*"\n' >/tmp/arm/runtime
    chmod +x /tmp/arm/runtime
    printf 'runtime = ["/tmp/arm/runtime"]\nrun_dir = "/tmp/arm/run"\n' >/tmp/arm/config.toml
    export NRI_RUNC_CONFIG=/tmp/arm/config.toml
    said=$($program --root /x state c0)
    [ "$said" = 'runtime: --root /x state c0' ] || fail "aarch64: pass-through says $said"
    passed "aarch64: a verb passes through to the runtime"
    bundle arm true
    echo '{"plugin":"10-arm","env":[{"key":"ARM","value":"64"}]}' >/tmp/arm/adjustment
    $program nri adjust --bundle /srv/bundle --apply /tmp/arm/adjustment --output spec >/tmp/arm/spec ||
        fail "aarch64: adjust fails"
    grep -q 'ARM=64' /tmp/arm/spec || fail "aarch64: adjust changes nothing"
    passed "aarch64: adjust"
    printf '%s\n' '{"id":1,"call":"CreateContainer","request":{"pod":{"id":"p"},"container":{"id":"c"}}}' '{"id":2,"call":"Nonsense"}' |
        $program nri replay --socket /tmp/arm/nri.sock - >/tmp/arm/replay || fail "aarch64: replay fails"
    grep -q '"id":1,"reply"' /tmp/arm/replay && grep -q '"id":2,"error"' /tmp/arm/replay ||
        fail "aarch64: replay answers $(cat /tmp/arm/replay)"
    passed "aarch64: replay"
    unset NRI_RUNC_CONFIG
}

inside() {
    # Container images often omit the man pages of packages.
    sed -i '/^path-exclude/d' /etc/dpkg/dpkg.cfg.d/* 2>/dev/null || :
    say "fetching $packages"
    # shellcheck disable=SC2086
    { apt-get install -y --no-install-recommends $packages || { apt-get update && apt-get install -y --no-install-recommends $packages; }; } \
        >/tmp/apt.log 2>&1 || fail "Debian's packages cannot be had: $(tail -n 2 /tmp/apt.log)"
    node
    for part in $parts; do
        say "$part"
        case $part in
        deb) deb ;;
        rpm) rpm_part ;;
        pages) pages ;;
        archive) archive_part ;;
        arm) arm ;;
        *) fail "unknown part $part" ;;
        esac
    done
}

# --- outside ------------------------------------------------------------------------------------

enter() {
    work=$1
    mount -t tmpfs tmpfs "$work"
    mkdir "$work/upper" "$work/under" "$work/root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/under" "$work/root" ||
        fail "no overlay can be mounted: this needs the rights of a machine's root, not of a container's"
    mount --rbind /sys "$work/root/sys"
    mount --rbind /dev "$work/root/dev"
    mount -t proc proc "$work/root/proc"
    mount -t tmpfs run "$work/root/run"
    mkdir -p "$work/root/run/lock" "$work/root$top"
    # The checkout as it is, even if it is a separate mount; nothing in it is changed.
    mount --bind "$top" "$work/root$top"
    mount -o remount,bind,ro "$work/root$top"
    NRI_RUNC_PACKAGE_TEST=$work exec chroot "$work/root" sh "$top/scripts/package-test.sh" $parts
}

cgroup=nri-runc-package-test
if [ -n "${NRI_RUNC_PACKAGE_TEST:-}" ]; then
    unset NRI_RUNC_PACKAGE_TEST
    inside
    exit
fi
if [ "${1:-}" = enter ]; then
    parts=$3
    enter "$2"
fi
[ "$(id -u)" = 0 ] || fail "packages are installed for real, which needs root"
ls "$dist"/*_amd64.deb >/dev/null 2>&1 || fail "there are no packages: make package"
ls "$next"/*_amd64.deb >/dev/null 2>&1 || fail "there is no next version to upgrade to: make package-test"
[ -x target/debug/examples/demo_plugin ] || fail "the sample plugin is not built: make package-test"
work=$(mktemp -d)
clear_up() {
    find /sys/fs/cgroup -depth -type d -path "*/$cgroup*" -exec rmdir {} + 2>/dev/null || :
    rmdir "$work" 2>/dev/null || :
}
trap clear_up EXIT
trap 'exit 130' INT TERM
unshare --mount --pid --fork --kill-child sh "$top/scripts/package-test.sh" enter "$work" "$parts"
say "all of it passed"
