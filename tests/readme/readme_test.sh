#!/usr/bin/env bash
# README.md contains the program and the BUILD rule of this folder, and the output of the program.
set -euo pipefail
readme=$1 source=$2 build=$3 launch=$PWD/$4 hello=$PWD/$5

# block LANGUAGE: prints the first code block of README.md in this language.
block() {
  awk -v fence="\`\`\`$1" '!on && $0 == fence { on = 1; next } on && $0 == "```" { exit } on' "$readme"
}

diff <(block cpp) "$source" || { echo "FAIL: the program in README.md differs from $source"; exit 1; }

rule=$(block python)
[[ -n $rule && $(<"$build") == *"$rule"* ]] || { echo "FAIL: $build does not contain README.md's BUILD rule"; exit 1; }

output=$("$launch" --standalone --nproc_per_node=2 "$hello")
diff <(block text) - <<<"$output" || { echo "FAIL: the output of the program differs from README.md"; exit 1; }
