#!/usr/bin/env python3
"""Checks the table of examples/README.md: the lines of each example, and that it is not much longer than its original.

A row has links to the folder or the files of an example, the title of the tutorial, the lines of its program in Python, and
the lines of the example. Lines that are empty or have only a comment do not count. An example may have at most 1.5 times
as many lines as its original.

usage: lines_test.py README
"""

import os
import re
import sys

ROW = re.compile(r"^\| (\[.*?\)) \| .* \| (\d+) \| (\d+) \|$", re.MULTILINE)
LINK = re.compile(r"\]\(([\w/.]+)\)")
BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
LARGEST_RATIO = 1.5
# The tutorials that must have an example.
TITLES = ("Implementing Batch RPC Processing Using Asynchronous Executions",
          "Getting Started with Distributed RPC Framework",
          "Distributed Pipeline Parallelism Using RPC",
          "Combining Distributed DataParallel with Distributed RPC Framework")


def lines_of_code(path):
    with open(path, encoding="utf-8") as file:
        text = BLOCK_COMMENT.sub("", file.read())
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("//"))


def sources(path):
    if not os.path.isdir(path):
        return [path]
    return [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith((".cc", ".h"))]


def main():
    readme = sys.argv[1]
    with open(readme, encoding="utf-8") as file:
        text = file.read()
    rows = ROW.findall(text)
    problems = [f'no row for the tutorial "{title}"' for title in TITLES if f"| {title}" not in text]
    for links, python, listed in rows:
        names = LINK.findall(links)
        name = " and ".join(names)
        paths = [os.path.join(os.path.dirname(readme), each) for each in names]
        if not all(os.path.exists(path) for path in paths):
            problems.append(f"{name}: does not exist, or is not among the data of this test")
            continue
        counted = sum(lines_of_code(each) for path in paths for each in sources(path))
        print(f"{name}: {counted} lines, {counted / int(python):.2f} times those in Python")
        if counted != int(listed):
            problems.append(f"{name}: the table says {listed} lines, counted {counted}")
        if counted > LARGEST_RATIO * int(python):
            problems.append(f"{name}: has {counted} lines, expected at most {LARGEST_RATIO} times {python}")
    if len(rows) < len(TITLES):
        problems.append(f"got {len(rows)} rows, expected at least {len(TITLES)}")
    for problem in problems:
        print(f"FAIL: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
