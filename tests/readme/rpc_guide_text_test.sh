#!/usr/bin/env bash
# rpc_guide_test.cc contains every C++ example of docs/rpc.md, line by line. The indentation may differ.
set -euo pipefail
python3 - "$@" <<'PYTHON'
import sys


def lines(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


guide, source = (open(path, encoding="utf-8").read() for path in sys.argv[1:])
code = lines(source)
blocks = [part.split("\n```")[0] for part in guide.split("```cpp\n")[1:]]
if not blocks:
    sys.exit("FAIL: docs/rpc.md has no C++ examples")
for block in blocks:
    wanted = lines(block)
    if not any(code[i : i + len(wanted)] == wanted for i in range(len(code))):
        sys.exit("FAIL: rpc_guide_test.cc does not contain this example of docs/rpc.md:\n" + block)
print(len(blocks), "examples")
PYTHON
