#!/bin/sh
# Runs after the files of nri-runc are removed. Debian: `remove` or `purge`; rpm: no version is left (0).
set -e

case ${1:-} in
remove | purge | 0) ;;
*) exit 0 ;; # an upgrade
esac
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
if command -v selinuxenabled >/dev/null 2>&1 && selinuxenabled; then
    semodule -r nri-runc 2>/dev/null || true
fi
# State of this boot, and nothing that an operator wrote.
rm -rf /run/nri-runc /run/nri-runc.rootless
rmdir /var/lib/nri-runc/engines /var/lib/nri-runc 2>/dev/null || true
if [ "$1" = purge ]; then
    rm -rf /var/log/nri-runc
    # Files that an operator wrote stay.
    rmdir /etc/nri-runc/config.d /etc/nri-runc 2>/dev/null || true
fi
