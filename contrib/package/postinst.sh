#!/bin/sh
# Runs after the files of nri-runc are in place. Arguments: on Debian `configure` and the previous version, if
# any; on rpm the number of installed versions. It registers no engine and starts no daemon.
set -e
nri_runc=/usr/bin/nri-runc

case ${1:-} in
configure) upgraded=${2:-} ;;
1) upgraded='' ;;
[2-9]) upgraded=yes ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
if command -v selinuxenabled >/dev/null 2>&1 && selinuxenabled; then
    semodule -i /usr/share/selinux/packages/nri-runc.cil &&
        restorecon -R "$nri_runc" /etc/nri-runc /run/nri-runc /var/lib/nri-runc 2>/dev/null ||
        echo "nri-runc: SELinux labels were not set; see /usr/share/doc/nri-runc/packages.md" >&2
fi

if [ -n "$upgraded" ]; then
    # The running daemon becomes the new program in place: plugins stay connected, and no container waits.
    if said=$("$nri_runc" nri reexec 2>&1); then
        case $said in re-executed*) echo "$said" ;; esac
    else
        echo "$said" >&2
        echo "nri-runc: the daemon still runs the previous version; then: nri-runc nri restart" >&2
    fi
else
    echo "nri-runc is installed; to use it: nri-runc nri install ENGINE, then nri-runc nri check"
fi
if [ -e /var/lib/nri-runc/installed ]; then
    echo "nri-runc: install.sh has installed it too (/var/lib/nri-runc/installed); remove one of the two" >&2
fi
