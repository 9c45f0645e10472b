#!/usr/bin/env bash
# README.md's program, its BUILD rule and its output are the ones of this folder.
set -euo pipefail
readme=$1 source=$2 build=$3 launch=$PWD/$4 hello=$PWD/$5

# The first code block of a language.
block() {
  awk -v fence="\`\`\`$1" '!on && $0 == fence { on = 1; next } on && $0 == "```" { exit } on' "$readme"
}

diff <(block cpp) "$source" || { echo "FAIL: README.md's program is not $source"; exit 1; }

rule=$(block python)
[[ -n $rule && $(<"$build") == *"$rule"* ]] || { echo "FAIL: README.md's BUILD rule is not in $build"; exit 1; }

output=$("$launch" --standalone --nproc_per_node=2 "$hello")
diff <(block text) - <<<"$output" || { echo "FAIL: README.md's program prints something else"; exit 1; }
