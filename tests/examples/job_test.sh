#!/usr/bin/env bash
# Runs a job under the launcher, as a user does, and checks a number in its last line.
# Arguments: LAUNCH PROGRAM PROCESSES PREFIX below|above BOUND
# The last line must begin with PREFIX, which the number follows.
set -euo pipefail
launch=$1
program=$2
processes=$3
prefix=$4
side=$5
bound=$6

started=$SECONDS
output=$("$launch" --standalone --nproc_per_node="$processes" "$program")
echo "$output" | tail -n 12
echo "took $((SECONDS - started)) s"
last=$(echo "$output" | tail -n 1)
[[ $last == "$prefix"* ]] || { echo "FAIL: the last line is: $last; expected: $prefix..."; exit 1; }
[[ ${last#"$prefix"} =~ ^([0-9]+\.?[0-9]*)( |$) ]] || { echo "FAIL: no number in the last line: $last"; exit 1; }
number=${BASH_REMATCH[1]}
case $side in
  below) awk -v n="$number" -v bound="$bound" 'BEGIN { exit !(n < bound) }' ;;
  above) awk -v n="$number" -v bound="$bound" 'BEGIN { exit !(n > bound) }' ;;
  *) echo "usage: job_test.sh LAUNCH PROGRAM PROCESSES PREFIX below|above BOUND"; exit 2 ;;
esac || { echo "FAIL: the number in the last line: got $number, expected $side $bound"; exit 1; }
