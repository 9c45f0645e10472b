#!/usr/bin/python3
"""use_test.py USE_MD: checks that the code in docs/use.md is code that a test runs.

A block whose paragraph above names a file of tests/ or examples/ in backquotes must occur in that file, line by line.
All code of a section must fit into 30 lines.
"""
import os
import re
import sys

MAX_LINES = 30

page = os.path.realpath(sys.argv[1])
root = os.path.dirname(os.path.dirname(page))  # The source tree: the file in the runfiles is a link into it.
with open(page, encoding="utf-8") as text:
    sections = re.split(r"^## ", text.read(), flags=re.MULTILINE)[1:]

errors, compared = [], 0
for section in sections:
    title = section.split("\n", 1)[0]
    lines = 0
    path = None
    for part in re.split(r"(^```.*?^```$)", section.split("\n### ", 1)[0], flags=re.MULTILINE | re.DOTALL):
        if not part.startswith("```"):
            named = re.findall(r"`((?:tests|examples|clients)/[\w./]+\.?\w+)`", part)
            path = named[-1] if named else path if not part.strip() else None
            continue
        code = part.split("\n", 1)[1].rsplit("```", 1)[0]
        lines += len([line for line in code.splitlines() if line.strip()])
        if path is None:
            continue
        compared += 1
        try:
            with open(os.path.join(root, path), encoding="utf-8") as source:
                if code not in source.read():
                    errors.append(f'section "{title}": a block differs from {path}:\n{code}')
        except OSError as error:
            errors.append(f'section "{title}": cannot read {path}: {error.strerror}')
    if lines > MAX_LINES:
        errors.append(f'section "{title}" has {lines} lines of code, more than {MAX_LINES}')
if compared < len(sections):
    errors.append(f"compared {compared} blocks in {len(sections)} sections, expected at least one for each")
for error in errors:
    print("FAIL:", error)
sys.exit(bool(errors))
