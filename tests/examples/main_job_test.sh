#!/usr/bin/env bash
# Runs the main job as a user does: the launcher starts one server and two trainers, each as a process of its own.
set -euo pipefail
launch=$1
parameter_server=$2

output=$("$launch" --standalone --nproc_per_node=3 "$parameter_server")
echo "$output" | tail -n 12
last=$(echo "$output" | tail -n 1)
[[ $last =~ ^held-out\ accuracy:\ (0\.[0-9]{3})$ ]] || { echo "FAIL: the last line is: $last"; exit 1; }
awk -v accuracy="${BASH_REMATCH[1]}" 'BEGIN { exit !(accuracy >= 0.95) }' ||
  { echo "FAIL: accuracy too low: got ${BASH_REMATCH[1]}, expected 0.95 or more"; exit 1; }
for worker in ps trainer0 trainer1; do
  grep -q "^$worker  *[0-9]" <<<"$output" || { echo "FAIL: the table has no line for $worker"; exit 1; }
done
