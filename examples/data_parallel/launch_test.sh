#!/usr/bin/env bash
# Runs a job under the launcher, as a user does. Arguments: LAUNCH PROGRAM PROCESSES LEAST_ACCURACY LINE
# The job must print LINE, the result of comparing its ranks.
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
grep -qxF "$line" <<<"$output" || { echo "FAIL: line not printed: $line"; exit 1; }
