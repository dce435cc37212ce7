#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command that runs tests, then prints which files of this machine are new: tests keep to
# folders of their own. Under CI a new file is a failure; elsewhere another program may have made it.
# LEFT_IN: where to look.
set -u
lists=$(mktemp -d)
trap 'rm -rf "$lists"' EXIT

# Without what other programs of a system make at any time.
list_files() {
    # shellcheck disable=SC2086
    find ${LEFT_IN:-/run /var/lib /etc /opt} -xdev -maxdepth 4 \( -path /run/systemd -o -path /run/user -o -path /run/udev -o -path /run/log \
        -o -path /run/lock -o -path /run/mount -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd \) -prune \
        -o -print 2>/dev/null | LC_ALL=C sort
}

list_files >"$lists/before"
status=0
"$@" || status=$?
list_files >"$lists/after"
LC_ALL=C comm -13 "$lists/before" "$lists/after" >"$lists/new"
if [ -s "$lists/new" ]; then
    echo "left on this machine, by a test unless another program did it:"
    head -n 20 "$lists/new"
    [ -z "${CI:-}" ] || [ $status != 0 ] || status=1
fi
exit $status
