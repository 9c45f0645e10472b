#!/usr/bin/env bash
# A job as its user runs it, each process its own, under the launcher: LAUNCH PROGRAM PROCESSES LEAST_ACCURACY LINE
# LINE is what the job must say of how its ranks were compared.
set -euo pipefail
launch=$1
program=$2
processes=$3
least=$4
line=$5

output=$("$launch" --standalone --nproc_per_node="$processes" "$program")
echo "$output" | tail -n 6
last=$(echo "$output" | tail -n 1)
[[ $last =~ ^held-out\ accuracy:\ ([01]\.[0-9]{3})$ ]] || { echo "FAIL: the last line is: $last"; exit 1; }
awk -v accuracy="${BASH_REMATCH[1]}" -v least="$least" 'BEGIN { exit !(accuracy >= least) }' ||
  { echo "FAIL: the accuracy is below $least"; exit 1; }
grep -qxF "$line" <<<"$output" || { echo "FAIL: not said: $line"; exit 1; }
