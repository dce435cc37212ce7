#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs nri-runc, or removes exactly what it installed. It registers with an engine only if --engine
# asks for it, and the executable itself does so: `nri-runc nri install ENGINE`.
set -eu

prefix=/usr/local destdir='' binary='' dry='' uninstall='' rollback='' prefix_named='' unchecked='' units=auto hooks='' engines='' default='' nri=''
usage() {
    cat <<'TEXT'
usage: install.sh [--binary FILE] [--prefix DIR] [--destdir DIR]
                  [--units | --no-units] [--hooks | --hooks-dir DIR]
                  [--engine containerd|crio|docker|isulad|podman]... [--default]
                  [--take-over-nri | --beside[=SOCKET]] [--dry-run]
       install.sh --rollback [--destdir DIR] [--dry-run]
       install.sh --uninstall [--destdir DIR] [--dry-run]
Without --binary, the executable beside this script is installed; if there is
none, nri-runc is built first. It must run on this machine and answer as nri-runc;
with --destdir, --unchecked installs one for another machine. The executable that
is replaced stays beside it as nri-runc.previous: --rollback exchanges the two.
--engine registers it with an engine; --default
makes it that engine's default runtime; --take-over-nri or --beside is required
where that engine serves NRI itself (docs/install.md). --hooks adds OCI hooks for
Podman and CRI-O (docs/hooks.md). Files that were edited are never overwritten or
removed.
TEXT
}
fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

while [ $# -gt 0 ]; do
    case $1 in
    --binary) [ $# -gt 1 ] || fail "--binary requires a file"; binary=$2; shift ;;
    --prefix) [ $# -gt 1 ] || fail "--prefix requires a directory"; prefix=$2 prefix_named=1; shift ;;
    --destdir) [ $# -gt 1 ] || fail "--destdir requires a directory"; destdir=$2; shift ;;
    --units) units=yes ;;
    --no-units) units=no ;;
    --hooks) hooks=${hooks:-/usr/share/containers/oci/hooks.d} ;;
    --hooks-dir) [ $# -gt 1 ] || fail "--hooks-dir requires a directory"; hooks=$2; shift ;;
    --engine) [ $# -gt 1 ] || fail "--engine requires an engine"; engines="$engines $2"; shift ;;
    --default) default=--default ;;
    --take-over-nri | --beside | --beside=*) nri=$1 ;;
    --dry-run) dry=1 ;;
    --uninstall) uninstall=1 ;;
    --rollback) rollback=1 ;;
    --unchecked) unchecked=1 ;;
    -h | --help) usage; exit 0 ;;
    *) fail "unknown option $1 (install.sh --help lists the options)" ;;
    esac
    shift
done

[ -z "$unchecked" ] || [ -n "$destdir" ] || fail "--unchecked requires --destdir"
here=$(cd "$(dirname "$0")" && pwd)
manifest=$destdir/var/lib/nri-runc/installed
# A package that is built with --destdir must not depend on the build machine.
[ "$units" != auto ] || { [ -z "$destdir" ] && [ -d /run/systemd/system ] && units=yes || units=no; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sum() { sha256sum "$1" | cut -d ' ' -f 1; }
recorded() { [ -e "$manifest" ] && awk -v p="$1" '$1 != "dir" && $2 == p { print $1 }' "$manifest"; }

# What a program answers as nri-runc on this machine; nothing, and the reason in $work/why, if it does not.
version_of() {
    : >"$work/why"
    # The shell itself says which signal ended it.
    {
        said=$(timeout 10 "$1" nri --version </dev/null) || {
            [ $? -ne 124 ] || echo "it did not answer within 10 seconds" >&2
            said=''
        }
    } 2>"$work/why"
    case $said in "nri-runc "*) printf '%s\n' "$said" ;; esac
}
why() {
    reason=$(tr -cd '\n[:print:]' <"$work/why" | grep . | tail -n 1)
    printf '%s\n' "${reason:-it printed no version of nri-runc}"
}

# Puts a file in place in one step; a half of it does not stay.
place() {
    { cp "$1" "$3.new" && chmod "$2" "$3.new" && mv -f "$3.new" "$3"; } 2>"$work/why" && return
    rm -f "$3.new" 2>/dev/null || true
    fail "cannot write $3: $(why)"
}

# Directories that this script creates are recorded, so that --uninstall removes them.
make_dir() {
    [ -d "$destdir$1" ] && return
    parent=$(dirname "$1")
    [ "$parent" = "$1" ] || make_dir "$parent"
    if [ -n "$dry" ]; then echo "would make  $1"; return; fi
    mkdir "$destdir$1" 2>/dev/null || fail "cannot make $1"
    printf 'dir %s\n' "$1" >>"$work/new"
}

# put FILE PATH MODE POLICY: installs FILE unless PATH is identical; "keep" leaves an edited PATH.
put() {
    path=$2
    if [ -e "$destdir$path" ]; then
        now=$(sum "$destdir$path")
        if [ "$now" = "$(sum "$1")" ]; then
            [ -n "$dry" ] || { [ -n "$(recorded "$path")" ] || echo "$now $path" >>"$work/new"; }
            echo "unchanged   $path"
            return
        fi
        if [ "$now" != "$(recorded "$path")" ]; then
            [ "$4" = replace ] || { echo "kept (locally modified): $path"; return; }
        fi
    fi
    make_dir "$(dirname "$path")"
    if [ -n "$dry" ]; then echo "would write $path"; return; fi
    place "$1" "$3" "$destdir$path"
    printf '%s %s\n' "$(sum "$1")" "$path" >>"$work/new"
    echo "wrote       $path"
}

# For each path, a newer line replaces an older one.
record() {
    [ -z "$dry" ] || return 0
    { cat "$work/new"; [ ! -e "$manifest" ] || cat "$manifest"; } | awk '!seen[$1 == "dir" ? $0 : $2]++' >"$work/all"
    place "$work/all" 644 "$manifest"
}

# The running daemon becomes the program in place: plugins stay connected, and no container waits. $1 is the
# sum of the program before.
become() {
    [ -z "$dry$destdir" ] && [ -n "$1" ] && [ "$1" != "$(sum "$program")" ] || return 0
    if replaced=$("$program" nri reexec 2>&1); then
        case $replaced in re-executed*) echo "$replaced" ;; esac
        return
    fi
    echo "$replaced" >&2
    case $replaced in
    *"took the daemon's place"*) ;;
    *) echo "the daemon still runs the program before: $program nri restart, or systemctl restart nri-runc" >&2 ;;
    esac
    [ -n "$rollback" ] || [ ! -e "$program.previous" ] || echo "to go back: install.sh --rollback" >&2
}

if [ -n "$rollback" ]; then
    [ -e "$manifest" ] || fail "nri-runc is not installed (no $manifest)"
    # The newest line comes first; --prefix names another one.
    program=$(awk '$1 != "dir" && $2 ~ /\/bin\/nri-runc$/ { print $2; exit }' "$manifest")
    [ -z "$prefix_named" ] || program=$prefix/bin/nri-runc
    [ -f "$destdir$program.previous" ] || fail "there is no previous program: no $program.previous"
    before=$(version_of "$destdir$program.previous")
    [ -n "$before" ] || fail "$program.previous does not answer as nri-runc on this machine: $(why); nothing was changed"
    cp "$destdir$program.previous" "$work/previous" && cp "$destdir$program" "$work/program" || fail "cannot read $program"
    was=$(sum "$work/program")
    : >"$work/new"
    put "$work/previous" "$program" 0755 replace
    put "$work/program" "$program.previous" 0755 replace
    record
    become "$was"
    [ -n "$dry" ] || echo "rolled back to $before"
    exit 0
fi

if [ -n "$uninstall" ]; then
    [ -e "$manifest" ] || fail "nri-runc is not installed (no $manifest)"
    if grep -q '/nri-runc\.service$' "$manifest" && [ -z "$dry$destdir" ] && [ -d /run/systemd/system ] &&
        systemctl --quiet is-enabled nri-runc.socket nri-runc.service >/dev/null 2>&1; then
        fail "systemd still uses its units; first: systemctl disable --now nri-runc.socket nri-runc.service"
    fi
    # Registrations go first: an engine must not call an executable that no longer exists.
    registered() { find "$destdir/var/lib/nri-runc/engines" -name '*.json' 2>/dev/null | sed 's|.*/||; s|\.json$||' | sort; }
    unregister() {
        "$destdir$(awk '$2 ~ /\/bin\/nri-runc$/ { print $2 }' "$manifest")" nri uninstall "$1" --root "$destdir/" $2
    }
    # Everything that can refuse comes before anything is changed.
    for engine in $(registered); do
        unregister "$engine" --dry-run >"$work/planned" || fail "$engine is still registered; nothing was changed"
        [ -z "$dry" ] || cat "$work/planned"
    done
    done=''
    for engine in $([ -n "$dry" ] || registered); do
        unregister "$engine" '' ||
            fail "unregistered: ${done:-none}; still registered: $(registered | xargs); no file was removed. To go on: install.sh --uninstall"
        done="$done${done:+ }$engine"
    done
    # The daemon runs the executable that is removed next; below --destdir no daemon runs.
    if [ -z "$destdir" ]; then
        program=$(awk '$2 ~ /\/bin\/nri-runc$/ { print $2 }' "$manifest")
        if [ -n "$dry" ]; then
            echo "would stop  the daemon"
        elif [ -x "$program" ]; then
            # `stop` also prints that the next container starts the daemon again, which is wrong here.
            stopped=$("$program" nri stop) || fail "the daemon could not be stopped; nothing else was removed"
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
            rm -f "$destdir$path" 2>"$work/why" || fail "cannot remove $path: $(why)"
            echo "removed     $path"
        fi
    done
    [ -z "$dry" ] || exit 0
    grep '^dir ' "$manifest" | cut -d ' ' -f 2- | sort -r >"$work/dirs"
    rm -f "$manifest"
    while read -r dir; do rmdir "$destdir$dir" 2>/dev/null || true; done <"$work/dirs"
    exit 0
fi

# An archive of a release has the executable beside this script.
[ -n "$binary" ] || [ ! -x "$here/nri-runc" ] || binary=$here/nri-runc
if [ -z "$binary" ]; then
    command -v make >/dev/null && command -v cargo >/dev/null || fail "no --binary given, and building requires make and cargo"
    make -s -C "$here" build WITH_SAMPLE=1
    binary=$here/$(make -s -C "$here" --no-print-directory path)
fi
[ -f "$binary" ] && [ -x "$binary" ] || fail "$binary is not an executable file"
case $binary in */*) ;; *) binary=./$binary ;; esac
[ -n "$unchecked" ] || [ -n "$(version_of "$binary")" ] ||
    fail "$binary does not answer as nri-runc on this machine ($binary nri --version): $(why); nothing was changed"

program=$prefix/bin/nri-runc
: >"$work/new"
make_dir /var/lib/nri-runc
autostart='# autostart = true'
[ "$units" = no ] || autostart='autostart = false   # systemd runs the daemon'
cat >"$work/config.toml" <<TOML
# nri-runc: docs/config.md lists all keys. Lines that are commented out show the default.
$autostart
# runtime = ["runc", "crun", "youki"]
# on_daemon_failure = "continue"

# [nri]
# socket_path = "/var/run/nri/nri.sock"
# plugin_path = "/opt/nri/plugins"
TOML
was=''
[ ! -e "$destdir$program" ] || was=$(sum "$destdir$program")
if [ -n "$was" ] && [ "$was" != "$(sum "$binary")" ] && [ -n "$(version_of "$destdir$program")" ]; then
    put "$destdir$program" "$program.previous" 0755 replace
fi
put "$binary" "$program" 0755 replace
put "$work/config.toml" /etc/nri-runc/config.toml 0644 keep
# The sample plugin of the quick starts: an archive has it, a build has it beside the program. Nothing launches it
# from there.
missing=''
for sample in "$here/plugins/resource-defaults" "$(dirname "$binary")/resource-defaults" ''; do
    [ -n "$sample" ] || missing="the sample plugin (make release WITH_SAMPLE=1, beside the program)"
    [ -f "$sample" ] && [ -x "$sample" ] || continue
    put "$sample" "$prefix/lib/nri-runc/plugins/resource-defaults" 0755 replace
    break
done
# The archive of a release has man pages and completions; of a checkout, `make manual` writes them.
manual=$here
[ -d "$manual/man" ] || manual=$here/target/manual
if [ -d "$manual/man" ]; then
    for page in "$manual"/man/*.[578]; do
        put "$page" "$prefix/share/man/man${page##*.}/$(basename "$page")" 0644 replace
    done
    put "$manual/completions/nri-runc.bash" "$prefix/share/bash-completion/completions/nri-runc" 0644 replace
    put "$manual/completions/_nri-runc" "$prefix/share/zsh/site-functions/_nri-runc" 0644 replace
    put "$manual/completions/nri-runc.fish" "$prefix/share/fish/vendor_completions.d/nri-runc.fish" 0644 replace
else
    missing="$missing${missing:+, }man pages and completions (make manual)"
fi
[ -z "$missing" ] || echo "left out    $missing"
if [ "$units" = yes ]; then
    for unit in nri-runc.service nri-runc.socket; do
        sed "s|@PREFIX@|$prefix|g" "$here/contrib/systemd/$unit" >"$work/$unit"
        put "$work/$unit" "/etc/systemd/system/$unit" 0644 keep
    done
fi
if [ -n "$hooks" ]; then
    case $hooks in /*) ;; *) fail "--hooks-dir requires an absolute path" ;; esac
    for stage in createRuntime poststart poststop; do
        sed "s|/usr/local/bin/nri-runc|$prefix/bin/nri-runc|" "$here/hooks/90-nri-runc-$stage.json" >"$work/hook.json"
        put "$work/hook.json" "$hooks/90-nri-runc-$stage.json" 0644 keep
    done
fi
record
become "$was"

if [ "$units" = yes ]; then
    cat <<'TEXT'

systemd runs the daemon. Enable it with:
systemctl daemon-reload
systemctl enable --now nri-runc.socket nri-runc.service
TEXT
fi

for engine in $engines; do
    if [ -n "$dry" ]; then
        echo "would run   nri-runc nri install $engine $default $nri"
        continue
    fi
    "$destdir$prefix/bin/nri-runc" nri install "$engine" $default ${nri:+"$nri"} --binary "$prefix/bin/nri-runc" --root "$destdir/" ||
        fail "nri-runc is installed but not registered with $engine"
done
if [ -z "$engines$destdir" ]; then
    for pair in containerd:containerd crio:crio dockerd:docker podman:podman; do
        command -v "${pair%:*}" >/dev/null || continue
        [ ! -e "/var/lib/nri-runc/engines/${pair#*:}.json" ] || continue # it is registered
        echo "to register: $prefix/bin/nri-runc nri install ${pair#*:}"
    done
fi
