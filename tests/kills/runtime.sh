#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What runc does, as far as we look at it, in steps that a test can end it at, or the daemon. The
# file `die` beside it says where: VERB STEP runtime|daemon; or `- 0 trace`, which lists the steps.
dir=${0%/*}
case $1 in --version | features) exit 0 ;; esac
verb= id= pidfile= bundle=. root=/run/runc n=0
while [ $# -gt 0 ]; do
  case $1 in
  --root) root=$2; shift ;;
  --bundle) bundle=$2; shift ;;
  --pid-file) pidfile=$2; shift ;;
  --log | --log-format | --resources) shift ;;
  -*) ;;
  *) if [ -z "$verb" ]; then verb=$1; elif [ -z "$id" ]; then id=$1; fi ;;
  esac
  shift
done
state=$root/$id

step() {
  n=$((n + 1))
  [ -e "$dir/die" ] || return 0
  read -r at number whom <"$dir/die"
  if [ "$whom" = trace ]; then echo "$verb $n" >>"$dir/steps"; return 0; fi
  [ "$at $number" = "$verb $n" ] || return 0
  rm "$dir/die"
  if [ "$whom" = runtime ]; then kill -9 $$; fi
  read -r daemon <"$dir/daemon"
  kill -9 "$daemon"
}

step
case $verb in
create)
  [ ! -e "$state" ] || { echo "it is there" >&2; exit 1; }
  [ ! -e "$dir/fail" ] || { echo "runtime says no" >&2; exit 1; }
  cat "$bundle/config.json" >"$dir/seen.$id"
  step
  mkdir -p "$state"
  step
  sleep 300 </dev/null >/dev/null 2>&1 &
  echo $! >"$state/pid"
  step
  : >"$state/exec.fifo"
  echo "{\"init_process_pid\": $!}" >"$state/state.json"
  step
  [ -z "$pidfile" ] || echo $! >"$pidfile"
  step ;;
start)
  [ -e "$state/exec.fifo" ] || exit 1
  rm "$state/exec.fifo"
  step ;;
update)
  [ -e "$state/state.json" ] || exit 1
  cat >"$dir/asked.$id"
  step
  cat "$state/state.json" >"$state/new"
  mv "$state/new" "$state/state.json"
  cat "$dir/asked.$id" >"$dir/update.$id"
  step ;;
kill)
  read -r pid <"$state/pid" && kill -9 "$pid" ;;
delete)
  [ ! -e "$state/pid" ] || { read -r pid <"$state/pid"; kill -9 "$pid" 2>/dev/null; }
  step
  rm -rf "$state"
  step ;;
esac
exit 0
