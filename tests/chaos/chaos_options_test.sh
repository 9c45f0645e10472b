#!/usr/bin/env bash
# A chaos test with a number of runs below 1 must fail.
set -u
for options in --runs=0 --runs=-1 --runs=x; do
  if "$1" $options >/dev/null 2>&1; then
    echo "FAIL: chaos_test $options succeeds"
    exit 1
  fi
done
if GRADWIRE_CHAOS_RUNS=0 "$1" >/dev/null 2>&1; then
  echo "FAIL: chaos_test without runs succeeds"
  exit 1
fi
