#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command that runs tests, then lists files, processes and temporary folders that tests left behind: tests should
# only use temporary folders, remove them, and end every process that they start. In CI, a new file that still exists
# after ten seconds is a failure; elsewhere another program may have created it. LEFT_IN: the folders to search. LEFT_OF:
# the text that identifies the command line of a test's process, with which its temporary folders begin.
# NRI_RUNC_FAILED: a file to which failures are appended.
set -u
lists=$(mktemp -d)
trap 'rm -rf "$lists"' EXIT

# Lists files, except where other programs may create files at any time.
list_files() {
    # shellcheck disable=SC2086
    find ${LEFT_IN:-/run /var/lib /etc /opt} -xdev -maxdepth 4 \( -path /run/systemd -o -path /run/user -o -path /run/udev -o -path /run/log \
        -o -path /run/lock -o -path /run/mount -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd \) -prune \
        -o -print 2>/dev/null
}

list_remains() {
    # shellcheck disable=SC2012
    ls -d "${LEFT_OF:-/tmp/.tmp}"* 2>/dev/null | sed 's/^/folder /'
    for process in /proc/[0-9]*; do
        { words=$(tr '\0' ' ' <"$process/cmdline"); } 2>/dev/null || continue
        case $words in *"${LEFT_OF:-/tmp/.tmp}"*) echo "process ${process#/proc/}: $words" ;; esac
    done
}

list_files | LC_ALL=C sort >"$lists/before"
list_remains | LC_ALL=C sort >"$lists/ran"
status=0
"$@" || status=$?
# An exiting engine may take a moment to remove its files.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    list_files | LC_ALL=C sort >"$lists/after"
    LC_ALL=C comm -13 "$lists/before" "$lists/after" >"$lists/new"
    [ -s "$lists/new" ] || break
    sleep "${PAUSE:-1}"
done
if [ -s "$lists/new" ]; then
    echo "left on this machine, by a test unless another program did it:"
    head -n 20 "$lists/new"
    if [ -n "${CI:-}" ] && [ $status = 0 ]; then
        status=1
        sed 's/^/failed: a test left /' "$lists/new" | head -n 5 >>"${NRI_RUNC_FAILED:-/dev/null}"
    fi
fi
list_remains | LC_ALL=C sort | LC_ALL=C comm -13 "$lists/ran" - | sed 's/^/still there, /'
exit $status
