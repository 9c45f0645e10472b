#!/usr/bin/env bash
# A program that is started in a wrong way exits with a message that says what to do, and starts no job.
# Arguments: PROGRAM...
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fails EXPECTED COMMAND...: the command exits with 1, and its output has the line or part of a line EXPECTED.
fails() {
  local expected=$1 code=0
  shift
  timeout 60 "$@" >"$work/output" 2>&1 || code=$?
  ((code == 1)) || { echo "FAIL: exit code of $*: got $code, expected 1"; cat "$work/output"; exit 1; }
  grep -qF -e "$expected" "$work/output" || { echo "FAIL: $*: expected: $expected"; cat "$work/output"; exit 1; }
}

for program in "$@"; do
  fails "unexpected argument" "$program" surplus
  fails "Unknown command line flag" "$program" --no_such_flag
  fails "started by the launcher" env -u RANK -u WORLD_SIZE "$program"
  fails "processes" env RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 "$program"
  # Abseil exits with 1 after --help.
  fails "--seed" "$program" --help
done
