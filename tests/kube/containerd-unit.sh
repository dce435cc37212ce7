#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands in for containerd's systemd unit on the node of `make kube`: start, stop, restart. Returns once
# containerd responds or has exited.
set -eu
pid=/run/containerd-unit.pid

# An exited containerd is a zombie until the machine's first process reaps it.
runs() {
    state=$(sed -n 's/^State:[^A-Z]*\([A-Z]\).*/\1/p' "/proc/$(cat $pid)/status" 2>/dev/null) || return 1
    [ -n "$state" ] && [ "$state" != Z ]
}

# until_so TRIES COMMAND...: retries every tenth of a second.
until_so() {
    tries=$1
    shift
    while [ "$tries" -gt 0 ]; do
        if "$@"; then return 0; fi
        sleep 0.1
        tries=$((tries - 1))
    done
    return 1
}

is_gone() { ! runs; }
answers() { ctr version >/dev/null 2>&1; }

stop() {
    [ -e $pid ] && runs || return 0
    kill "$(cat $pid)"
    until_so 100 is_gone || kill -9 "$(cat $pid)"
}

start() {
    setsid containerd >>"@LOG@" 2>&1 </dev/null &
    echo $! >$pid
    until_so 600 answers
}

case $1 in
start) start ;;
stop) stop ;;
restart) stop; start ;;
*) exit 2 ;;
esac
