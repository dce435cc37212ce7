#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs nri-runc, or removes exactly what it installed. Engines are told only when asked for, by
# the program itself: `nri-runc nri install ENGINE`.
set -eu

prefix=/usr/local destdir='' binary='' dry='' uninstall='' units=auto hooks='' engines='' default=''
usage() {
    cat <<'TEXT'
usage: install.sh [--binary FILE] [--prefix DIR] [--destdir DIR]
                  [--units | --no-units] [--hooks | --hooks-dir DIR]
                  [--engine containerd|crio|docker|podman]... [--default]
                  [--dry-run]
       install.sh --uninstall [--destdir DIR] [--dry-run]
Without --binary it is built here. --engine registers with an engine; --default
makes nri-runc its default runtime (docs/install.md). --hooks adds OCI hooks for
Podman and CRI-O (docs/hooks.md). A configuration that was edited is never
overwritten or removed.
TEXT
}
fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

while [ $# -gt 0 ]; do
    case $1 in
    --binary) [ $# -gt 1 ] || fail "--binary wants a file"; binary=$2; shift ;;
    --prefix) [ $# -gt 1 ] || fail "--prefix wants a folder"; prefix=$2; shift ;;
    --destdir) [ $# -gt 1 ] || fail "--destdir wants a folder"; destdir=$2; shift ;;
    --units) units=yes ;;
    --no-units) units=no ;;
    --hooks) hooks=${hooks:-/usr/share/containers/oci/hooks.d} ;;
    --hooks-dir) [ $# -gt 1 ] || fail "--hooks-dir wants a folder"; hooks=$2; shift ;;
    --engine) [ $# -gt 1 ] || fail "--engine wants an engine"; engines="$engines $2"; shift ;;
    --default) default=--default ;;
    --dry-run) dry=1 ;;
    --uninstall) uninstall=1 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "unknown option $1" ;;
    esac
    shift
done

here=$(cd "$(dirname "$0")" && pwd)
manifest=$destdir/var/lib/nri-runc/installed
# What is packed with --destdir does not depend on the machine that packs it.
[ "$units" != auto ] || { [ -z "$destdir" ] && [ -d /run/systemd/system ] && units=yes || units=no; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sum() { sha256sum "$1" | cut -d ' ' -f 1; }
recorded() { [ -e "$manifest" ] && awk -v p="$1" '$1 != "dir" && $2 == p { print $1 }' "$manifest"; }

# Folders that did not exist are recorded, so that they go away again.
make_dir() {
    [ -d "$destdir$1" ] && return
    parent=$(dirname "$1")
    [ "$parent" = "$1" ] || make_dir "$parent"
    if [ -n "$dry" ]; then echo "would make  $1"; return; fi
    mkdir "$destdir$1" 2>/dev/null || fail "cannot make $1"
    printf 'dir %s\n' "$1" >>"$work/new"
}

# put FILE PATH MODE: installs unless the same is there; what somebody edited stays.
put() {
    path=$2
    if [ -e "$destdir$path" ]; then
        now=$(sum "$destdir$path")
        if [ "$now" = "$(sum "$1")" ]; then
            [ -n "$dry" ] || { [ -n "$(recorded "$path")" ] || echo "$now $path" >>"$work/new"; }
            echo "is there    $path"
            return
        fi
        if [ "$now" != "$(recorded "$path")" ]; then
            [ "$4" = replace ] || { echo "kept (locally modified): $path"; return; }
        fi
    fi
    make_dir "$(dirname "$path")"
    if [ -n "$dry" ]; then echo "would write $path"; return; fi
    cp "$1" "$destdir$path.new" && chmod "$3" "$destdir$path.new" && mv -f "$destdir$path.new" "$destdir$path" ||
        fail "cannot write $path"
    printf '%s %s\n' "$(sum "$1")" "$path" >>"$work/new"
    echo "wrote       $path"
}

if [ -n "$uninstall" ]; then
    [ -e "$manifest" ] || fail "nri-runc is not installed (no $manifest)"
    if grep -q '/nri-runc\.service$' "$manifest" && [ -z "$dry$destdir" ] && [ -d /run/systemd/system ] &&
        systemctl --quiet is-enabled nri-runc.socket nri-runc.service >/dev/null 2>&1; then
        fail "systemd would miss its units; first: systemctl disable --now nri-runc.socket nri-runc.service"
    fi
    # What engines were told goes first: they would call a program that is gone.
    for record in "$destdir"/var/lib/nri-runc/engines/*.json; do
        [ -e "$record" ] || continue
        program=$destdir$(awk '$2 ~ /\/bin\/nri-runc$/ { print $2 }' "$manifest")
        "$program" nri uninstall "$(basename "$record" .json)" --root "$destdir/" ${dry:+--dry-run} ||
            fail "an engine still needs it, nothing was removed"
    done
    # The daemon executes what goes now; below a folder of packages there is none.
    if [ -z "$destdir" ]; then
        program=$(awk '$2 ~ /\/bin\/nri-runc$/ { print $2 }' "$manifest")
        if [ -n "$dry" ]; then
            echo "would stop  the daemon"
        elif [ -x "$program" ]; then
            # What `stop` prints, that the next container starts it again, is no longer true.
            stopped=$("$program" nri stop) || fail "the daemon could not be stopped, nothing more was removed"
            case $stopped in stopped*) echo "stopped     the daemon" ;; esac
        fi
    fi
    grep -v '^dir ' "$manifest" | while read -r known path; do
        if [ ! -e "$destdir$path" ]; then
            continue
        elif [ "$(sum "$destdir$path")" != "$known" ]; then
            echo "kept (locally modified): $path"
        elif [ -n "$dry" ]; then
            echo "would remove $path"
        else
            rm -f "$destdir$path"
            echo "removed     $path"
        fi
    done
    [ -z "$dry" ] || exit 0
    grep '^dir ' "$manifest" | cut -d ' ' -f 2- | sort -r >"$work/dirs"
    rm -f "$manifest"
    while read -r dir; do rmdir "$destdir$dir" 2>/dev/null || true; done <"$work/dirs"
    exit 0
fi

if [ -z "$binary" ]; then
    command -v make >/dev/null && command -v cargo >/dev/null || fail "no --binary, and no make and cargo to build one"
    make -s -C "$here" build
    binary=$here/$(make -s -C "$here" --no-print-directory path)
fi
[ -f "$binary" ] && [ -x "$binary" ] || fail "$binary is no executable file"

: >"$work/new"
make_dir /var/lib/nri-runc
autostart='# autostart = true'
[ "$units" = no ] || autostart='autostart = false   # systemd runs the daemon'
cat >"$work/config.toml" <<TOML
# nri-runc: see docs/config.md for every key. What is commented out is the default.
$autostart
# runtime = ["runc", "crun", "youki"]
# on_daemon_failure = "continue"

# [nri]
# socket_path = "/var/run/nri/nri.sock"
# plugin_path = "/opt/nri/plugins"
TOML
put "$binary" "$prefix/bin/nri-runc" 0755 replace
put "$work/config.toml" /etc/nri-runc/config.toml 0644 keep
if [ "$units" = yes ]; then
    for unit in nri-runc.service nri-runc.socket; do
        sed "s|@PREFIX@|$prefix|g" "$here/contrib/systemd/$unit" >"$work/$unit"
        put "$work/$unit" "/etc/systemd/system/$unit" 0644 keep
    done
fi
if [ -n "$hooks" ]; then
    case $hooks in /*) ;; *) fail "--hooks-dir wants an absolute path" ;; esac
    for stage in createRuntime poststart poststop; do
        sed "s|/usr/local/bin/nri-runc|$prefix/bin/nri-runc|" "$here/hooks/90-nri-runc-$stage.json" >"$work/hook.json"
        put "$work/hook.json" "$hooks/90-nri-runc-$stage.json" 0644 keep
    done
fi
if [ -z "$dry" ]; then
    # Newer lines win over older ones about the same path.
    { cat "$work/new"; [ ! -e "$manifest" ] || cat "$manifest"; } | awk '!seen[$1 == "dir" ? $0 : $2]++' >"$work/all"
    cp "$work/all" "$manifest.new" && mv -f "$manifest.new" "$manifest" || fail "cannot write $manifest"
fi

if [ "$units" = yes ]; then
    cat <<'TEXT'

systemd: it runs the daemon, so no container starts it; switch it on
systemctl daemon-reload
systemctl enable --now nri-runc.socket nri-runc.service
TEXT
fi

for engine in $engines; do
    if [ -n "$dry" ]; then
        echo "would run   nri-runc nri install $engine $default"
        continue
    fi
    "$destdir$prefix/bin/nri-runc" nri install "$engine" $default --binary "$prefix/bin/nri-runc" --root "$destdir/" ||
        fail "$engine was not told; the rest is installed"
done
if [ -z "$engines$destdir" ]; then
    for pair in containerd:containerd crio:crio dockerd:docker podman:podman; do
        command -v "${pair%:*}" >/dev/null || continue
        echo "to register: $prefix/bin/nri-runc nri install ${pair#*:}"
    done
fi
