#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Follows the documentation as a new user would: runs every command of these pages in order, and
# compares the output with the page (scripts/docs_blocks.py). Each story runs in its own namespaces
# with private copies of /etc, /opt, /usr/local, /var, /run and this directory, which are discarded
# at the end. Engines come from target/tools; existing build results are reused.
# DOCS selects stories, separated by commas. PACKAGE: a .deb to install instead of compiling.
set -eu
cd "$(dirname "$0")/.."
tools=$PWD/target/tools
stories=${DOCS:-bundle,plugin,docker,podman,containerd,howto,cookbook}

package=${PACKAGE:-}
case $package in '' | /*) ;; *) package=$PWD/$package ;; esac

fail() { printf 'docs-test: %s\n' "$*" >&2; exit 1; }

# Prints the blocks of a page, or of the sections whose headings begin with the given words.
follow() {
    python3 scripts/docs_blocks.py "$@" || fail "$1 does not hold; what the engines said: target/docs-test"
}

remove_files() {
    [ -n "$package" ] || { follow docs/howto/remove.md '3. '; return; }
    apt-get remove --yes nri-runc >"$work/logs/remove" 2>&1 || fail "the package cannot be removed: $(tail -n 3 "$work/logs/remove")"
}

shim() {
    cat >"/usr/local/bin/$1"
    chmod +x "/usr/local/bin/$1"
}

# Provides what a machine with the engine has and this one may lack: a service manager, and built files.
lay_out() {
    for program in docker dockerd containerd containerd-shim-runc-v2 ctr runc podman conmon; do
        [ ! -e "$tools/bin/$program" ] || ln -sf "$tools/bin/$program" "/usr/local/bin/$program"
    done
    shim make <<'END'
#!/bin/sh
# The debug build stands in for a release build, which takes minutes.
case $* in install | 'install PROFILE=quick') ;; *) exit 2 ;; esac
exec sh install.sh --binary target/debug/nri-runc
END
    if [ -n "$package" ]; then
        shim make <<END
#!/bin/sh
exec apt-get install --yes --no-install-recommends "$package"
END
        # A container image may omit documentation.
        sed -i '/^path-exclude/d' /etc/dpkg/dpkg.cfg.d/* 2>/dev/null || :
        export DOCS_REPLACE=/usr/local/lib/nri-runc=/usr/lib/nri-runc
    fi
    shim systemctl <<END
#!/bin/sh
case "\$*" in
'restart docker')
    [ ! -e /run/docker.pid ] || { kill "\$(cat /run/docker.pid)"; sleep 2; }
    setsid dockerd >>"$work/logs/dockerd" 2>&1 </dev/null &
    for _try in \$(seq 100); do docker version >/dev/null 2>&1 && exit 0; sleep 0.2; done
    exit 1 ;;
'restart containerd')
    setsid containerd >>"$work/logs/containerd" 2>&1 </dev/null &
    for _try in \$(seq 100); do ctr version >/dev/null 2>&1 && exit 0; sleep 0.2; done
    exit 1 ;;
'reload docker') kill -HUP "\$(cat /run/docker.pid)"; sleep 1 ;;
*) echo "systemctl \$*: no such unit here" >&2; exit 1 ;;
esac
END
    mkdir -p DIR/rootfs/bin image/bin
    cp "$tools/bin/busybox" DIR/rootfs/bin/
    cp "$tools/bin/busybox" image/bin/
    for applet in sh sleep cat env; do
        ln -s busybox "DIR/rootfs/bin/$applet"
        ln -s busybox "image/bin/$applet"
    done
    "$tools/bin/busybox" tar -C image -cf image.tar .
    cat >DIR/config.json <<JSON
{
  "ociVersion": "1.0.2",
  "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "env": ["PATH=/bin"], "args": ["sleep", "1000"]},
  "root": {"path": "rootfs"},
  "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
  "annotations": {"resources.nri-runc.dev": "{\"cpu\": {\"shares\": 512}}"},
  "linux": {
    "cgroupsPath": "/${work##*/}/c1",
    "resources": {"cpu": {"shares": 1024}},
    "namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "ipc"}]
  }
}
JSON
    cp -r DIR bundle
}

# Docker as an administrator configured it, with an image that the pages use.
start_docker() {
    mkdir -p /etc/docker
    cat >/etc/docker/daemon.json <<JSON
{
  "storage-driver": "vfs",
  "iptables": false, "bridge": "none", "cgroup-parent": "/${work##*/}",
  "exec-opts": ["native.cgroupdriver=cgroupfs"], "oom-score-adjust": 0, "shutdown-timeout": 2
}
JSON
    cp /etc/docker/daemon.json daemon.json.before
    systemctl restart docker
    docker import image.tar debian:latest >/dev/null
}

# Runs one story in its namespaces.
tell() {
    case $1 in
    bundle)
        follow docs/quickstart.md
        nri-runc delete --force c1
        remove_files
        ;;
    plugin)
        make install >"$work/logs/install"
        # The plugin is in its author's folder, outside this repository.
        mkdir -p "$work/author"
        # No registry is reachable from here: fetch_crates downloaded what the plugin needs.
        export CARGO_NET_OFFLINE=true
        DOCS_FOLDER=$work/author DOCS_REPLACE="${DOCS_REPLACE:-} /src/nri-runc=$PWD" \
            follow docs/howto/write-a-plugin.md
        ;;
    docker)
        start_docker
        follow docs/quickstart.md 'Install '
        follow docs/quickstart/docker.md
        cmp daemon.json.before /etc/docker/daemon.json || fail "daemon.json is not what it was"
        remove_files
        kill "$(cat /run/docker.pid)"
        ;;
    howto)
        start_docker
        follow docs/quickstart.md 'Install '
        follow docs/quickstart/docker.md '1. ' '2. '
        # The pages describe a Kubernetes pod and their own plugin.
        export DOCS_REPLACE="${DOCS_REPLACE:-} default/web=docker/web 10-greeter=10-resource-defaults prod-eu/web-0=docker/web"
        follow docs/howto/debug-a-plugin.md
        follow docs/howto/limit-plugins.md
        rm -r /etc/nri-runc/config.d
        nri-runc nri reload
        follow docs/howto/record-and-replay.md '1. '
        cp target/debug/nri-runc NEW
        echo >>NEW # a different file that is still the same program
        follow docs/howto/upgrade.md 'nri-runc' 'Roll back'
        docker rm -f web >/dev/null
        follow docs/howto/remove.md
        kill "$(cat /run/docker.pid)"
        ;;
    cookbook)
        start_docker
        follow docs/quickstart.md 'Install '
        rm /opt/nri/plugins/*
        follow docs/quickstart/docker.md '1. '
        echo 'a certificate' >/etc/ssl/corp.pem
        follow docs/cookbook.md Cookbook
        # Each recipe starts on a node without the others.
        sed -n 's/^## //p' docs/cookbook.md | while read -r use; do
            follow docs/cookbook.md "$use" || exit 1
            docker ps --all --quiet | xargs --no-run-if-empty docker rm -f >/dev/null
            rm -rf /etc/nri-runc/config.d /etc/nri/conf.d/* /opt/nri/plugins/*
            nri-runc nri restart >/dev/null
        done
        nri-runc nri uninstall docker >/dev/null
        remove_files
        kill "$(cat /run/docker.pid)"
        ;;
    podman)
        mkdir -p /etc/containers
        cat >/etc/containers/containers.conf <<TOML
[containers]
netns = "none"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
infra_image = "docker.io/library/debian:latest"
infra_command = "/bin/sleep 100000"
conmon_path = ["/usr/local/bin/conmon"]
[engine.runtimes]
runc = ["/usr/local/bin/runc"]
TOML
        echo '{"default": [{"type": "insecureAcceptAnything"}]}' >/etc/containers/policy.json
        cat >/etc/containers/storage.conf <<TOML
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
TOML
        podman import --quiet --change 'CMD ["/bin/sleep","100000"]' image.tar docker.io/library/debian:latest >/dev/null
        follow docs/quickstart.md 'Install '
        follow docs/quickstart/podman.md
        remove_files
        ;;
    containerd)
        systemctl restart containerd
        mkdir archive
        cp image.tar archive/layer.tar
        printf '{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
            "$(sha256sum image.tar | cut -d ' ' -f 1)" >archive/config.json
        echo '[{"Config":"config.json","RepoTags":["debian:latest"],"Layers":["layer.tar"]}]' >archive/manifest.json
        tar -C archive -cf archive.tar .
        ctr image import archive.tar >"$work/logs/import"
        follow docs/quickstart.md 'Install '
        follow docs/quickstart/containerd.md
        remove_files
        kill "$(pidof containerd)"
        ;;
    *) fail "no story is called $1" ;;
    esac
    hash -r # discards the path that this shell cached
    [ "$1" = plugin ] || ! command -v nri-runc >/dev/null || fail "the executable is still there"
}

inside() {
    work=$1 story=$2 clone=$PWD
    programs=usr/local
    [ -z "$package" ] || programs=usr
    for place in etc opt var $programs "${clone#/}"; do
        upper=$work/upper/$place under=$work/under/$place
        mkdir -p "$upper" "$under" "/$place"
        mount -t overlay overlay -o "lowerdir=/$place,upperdir=$upper,workdir=$under" "/$place" ||
            fail "no overlay can be mounted on /$place: the rights of a machine's root are needed"
    done
    cd / # the current directory is still the one below the overlay
    cd "$clone"
    mount -t tmpfs run /run
    # /tmp is private too; what must survive is kept elsewhere.
    mkdir "/run/${work##*/}"
    mount --bind "$work" "/run/${work##*/}"
    work=/run/${work##*/}
    [ -z "$package" ] || package=$work/nri-runc.deb
    mount -t tmpfs tmpfs /tmp
    [ -e /var/run ] || ln -s /run /var/run
    mkdir -p /var/lib/docker /var/lib/containers /var/lib/containerd /var/tmp
    for place in /var/lib/docker /var/lib/containers /var/lib/containerd /var/tmp; do mount -t tmpfs tmpfs "$place"; done
    ip link set lo up 2>/dev/null || :
    lay_out
    PATH=/usr/local/bin:$PATH
    export PATH
    unset DOCKER_HOST NRI_RUNC_CONFIG
    tell "$story"
}

# Downloads the crates that a plugin in its own folder needs into cargo's cache.
fetch_crates() {
    trial=$(mktemp -d /tmp/nri-docs.XXXXXX)
    (
        cd "$trial"
        cargo init --quiet --name trial
        cargo add --quiet nri-plugin --path "$1/crates/nri-plugin"
        cargo fetch --quiet
    ) || { rm -rf "$trial"; fail "the crates of a plugin cannot be fetched"; }
    rm -rf "$trial"
}

clear_up() {
    for _try in 1 2 3 4 5; do
        find /sys/fs/cgroup -depth -type d \( -path "*/${work##*/}*" -o -name libpod_parent \) \
            -exec rmdir {} \; 2>/dev/null || :
        [ -n "$(find /sys/fs/cgroup -type d -name "${work##*/}")" ] || break
        sleep 0.5
    done
    rm -rf target/docs-test
    [ ! -d "$work/logs" ] || cp -r "$work/logs" target/docs-test
    rm -rf "$work"
}

if [ "${1:-}" = inside ]; then
    inside "$2" "$3"
    exit
fi
[ "$(id -u)" = 0 ] || fail "real containers need root"
for program in python3 unshare mount; do
    command -v $program >/dev/null || fail "$program is missing"
done
cargo build --locked --bin nri-runc -p nri-runc -p resource-defaults --bin resource-defaults \
    --example device_injector --example ulimit_adjuster
case ,$stories, in *,plugin,*) fetch_crates "$PWD" ;; esac
for story in $(echo "$stories" | tr , ' '); do
    printf '\n== %s\n' "$story"
    work=$(mktemp -d /tmp/nri-docs.XXXXXX)
    mkdir "$work/logs"
    [ -z "$package" ] || cp "$package" "$work/nri-runc.deb"
    trap clear_up EXIT
    trap 'exit 130' INT TERM
    unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc \
        sh "$0" inside "$work" "$story"
    trap - EXIT
    clear_up
done
echo
echo "docs-test: every command of the stories $stories did what its page says"
