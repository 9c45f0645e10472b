#!/usr/bin/env bash
# Every C++ example of docs/rpc.md stands in rpc_guide_test.cc, line by line but for the indentation.
set -euo pipefail
python3 - "$@" <<'PYTHON'
import sys


def lines(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


guide, source = (open(path, encoding="utf-8").read() for path in sys.argv[1:])
code = lines(source)
blocks = [part.split("\n```")[0] for part in guide.split("```cpp\n")[1:]]
if not blocks:
    sys.exit("FAIL: the guide has no examples")
for block in blocks:
    wanted = lines(block)
    if not any(code[i : i + len(wanted)] == wanted for i in range(len(code))):
        sys.exit("FAIL: not in the test:\n" + block)
print(len(blocks), "examples")
PYTHON
