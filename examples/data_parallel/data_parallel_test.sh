#!/usr/bin/env bash
# The job as its user runs it: two ranks, each a process of its own, under the launcher.
set -euo pipefail
launch=$1
data_parallel=$2

output=$("$launch" --standalone --nproc_per_node=2 "$data_parallel")
echo "$output" | tail -n 6
last=$(echo "$output" | tail -n 1)
[[ $last =~ ^held-out\ accuracy:\ ([01]\.[0-9]{3})$ ]] || { echo "FAIL: the last line is: $last"; exit 1; }
awk -v accuracy="${BASH_REMATCH[1]}" 'BEGIN { exit !(accuracy >= 0.95) }' ||
  { echo "FAIL: the accuracy is below 0.95"; exit 1; }
grep -q "^2 ranks have the same parameters$" <<<"$output" || { echo "FAIL: the ranks were not compared"; exit 1; }
