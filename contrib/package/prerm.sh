#!/bin/sh
# Runs before the files of nri-runc are removed. Debian: `remove`; rpm: no version is left (0). An engine must
# not call an executable that is gone: registrations are undone first, and while containers use
# nri-runc, nothing is removed.
set -e

case ${1:-} in
remove | 0) ;;
*) exit 0 ;; # an upgrade
esac
nri_runc=/usr/bin/nri-runc
[ -x "$nri_runc" ] || exit 0
fail() {
    echo "nri-runc: $*" >&2
    exit 1
}

unregister() {
    for record in /var/lib/nri-runc/engines/*.json; do
        [ -e "$record" ] || continue
        engine=$(basename "$record" .json)
        said=$("$nri_runc" nri uninstall "$engine" "$@" 2>&1) || {
            echo "$said" >&2
            fail "not removed: it is still registered with $engine"
        }
        [ $# -gt 0 ] || echo "$said"
    done
}

# Everything that can refuse comes before anything is changed.
unregister --dry-run
# These containers were created through a manual registration, or by the program's path. The engine
# needs the program to delete them.
if pods=$("$nri_runc" nri pods --json 2>/dev/null); then
    case $pods in
    *'"containers":[{'*)
        fail "not removed: containers were created with it (nri-runc nri pods) and need it until they are deleted. To remove it anyway, first: nri-runc nri stop"
        ;;
    esac
fi
unregister

if [ -d /run/systemd/system ]; then
    systemctl --quiet disable --now nri-runc.socket nri-runc.service || true
fi
"$nri_runc" nri stop >/dev/null || fail "not removed: the daemon could not be stopped"
