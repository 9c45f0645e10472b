#!/usr/bin/env bash
# scaler_server_test.sh LAUNCH SERVER: starts two processes of the server with Gradwire's launcher. Their input is empty,
# so the first one serves for a moment only. The server must find its libraries, libtorch's too, relative to itself.
set -euo pipefail

output=$(timeout 100 "$1" --standalone --nproc_per_node=2 "$2" 127.0.0.1:0 </dev/null 2>&1) || {
  echo "FAIL: the launcher ended with status $?: $output"
  exit 1
}
[[ $output == *serving* ]] || { echo "FAIL: no process served: $output"; exit 1; }

run_path=$(readelf -d "$2" | sed -n 's/.*RUNPATH.*\[\(.*\)\]/\1/p')
[[ -n $run_path && ":$run_path" != *:/* ]] || {
  echo "FAIL: the run path is '$run_path', expected only folders relative to \$ORIGIN"
  exit 1
}
