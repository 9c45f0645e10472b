#!/usr/bin/env bash
# The main job as its user runs it: one server, two trainers, each a process of its own, under the launcher.
set -euo pipefail
launch=$1
parameter_server=$2

output=$("$launch" --standalone --nproc_per_node=3 "$parameter_server")
echo "$output" | tail -n 12
last=$(echo "$output" | tail -n 1)
[[ $last =~ ^held-out\ accuracy:\ (0\.[0-9]{3})$ ]] || { echo "FAIL: the last line is: $last"; exit 1; }
awk -v accuracy="${BASH_REMATCH[1]}" 'BEGIN { exit !(accuracy >= 0.95) }' ||
  { echo "FAIL: the accuracy is below 0.95"; exit 1; }
for worker in ps trainer0 trainer1; do
  grep -q "^$worker  *[0-9]" <<<"$output" || { echo "FAIL: the table has no line for $worker"; exit 1; }
done
