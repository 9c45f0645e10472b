#!/usr/bin/env python3
"""Checks that every row in the table of promises of a document names TEST cases that exist.

The last column names targets and cases, each in backquotes: `//rpc/caller:tests`, followed by cases of that
target, `Retry.LostRequestIsSentAgain`. The test searches a case in the .cc file that has the name of the target and
is in its folder, and for a target x_test also in x_cases.cc, which several targets share. For a target whose name ends
in "tests" it searches in all such files of the folder. Cases of a parameterised suite (TEST_P) are named without their
prefix. Any other text in backquotes is a command.
"""
import glob
import os
import re
import sys

HEADER = "| what happens | what is promised | shown by |"
TARGET = re.compile(r"//([\w/]*):(\w+)")
CASE = re.compile(r"([A-Z]\w*)\.([A-Z]\w*)")
# The name of a disabled case begins with DISABLED_, so it does not match the name in the table.
DEFINITION = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")


def rows(text):
    """The cells of each row of the table."""
    lines = iter(text.splitlines())
    for line in lines:
        if line == HEADER:
            break
    next(lines, None)
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def cases_of(package, target):
    """The cases in the source files of a target. Empty if no file exists."""
    cases = set()
    names = (target, re.sub("_test$", "_cases", target))
    paths = [os.path.join(package, name + ".cc") for name in names]
    if target.endswith("tests"):
        paths = glob.glob(os.path.join(package, "*_test.cc")) + glob.glob(os.path.join(package, "*_cases.cc"))
    for path in paths:
        if os.path.exists(path):
            with open(path, encoding="utf-8") as source:
                cases |= {f"{suite}.{case}" for suite, case in DEFINITION.findall(source.read())}
    return cases


def check_row(cells):
    """The errors of a row, a line each."""
    if len(cells) != 3:
        return [f"got {len(cells)} columns, expected 3"]
    errors = []
    current = None  # the target that was named last, and its cases
    named = 0
    for word in re.findall(r"`([^`]*)`", cells[2]):
        target = TARGET.fullmatch(word)
        if target:
            current = (word, cases_of(*target.groups()))
            if not current[1]:
                errors.append(f"no TEST found for {word}: its BUILD file must list the .cc file in promise_tests")
        elif CASE.fullmatch(word):
            named += 1
            if current is None:
                errors.append(f"{word} must follow the name of its target")
            elif word not in current[1]:
                errors.append(f"{current[0]} has no case {word}")
    return errors or ([] if named else ["got no TEST case, expected one or more"])


def self_check():
    """Checks that check_row() accepts a good row and refuses bad ones."""
    good = "`//rpc/agent:tests` `Shutdown.DeadMemberIsNamedByAllSoon`"
    assert check_row(["a", "b", good]) == [], check_row(["a", "b", good])
    for bad in (
        "`//rpc/agent:tests`",
        "`Shutdown.DeadMemberIsNamedByAllSoon`",
        "`//rpc/agent:tests` `Shutdown.NoSuchCase`",
        "`//rpc:no_such_test` `Shutdown.DeadMemberIsNamedByAllSoon`",
        "nothing",
    ):
        assert check_row(["a", "b", bad]), bad


def main():
    self_check()
    with open(sys.argv[1], encoding="utf-8") as page:
        table = list(rows(page.read()))
    if len(table) < 10:
        sys.exit(f"FAIL: the table of promises has {len(table)} rows, expected 10 or more")
    failures = [f"{cells[0]}: {what}" for cells in table for what in check_row(cells)]
    if failures:
        sys.exit("\n".join(["FAIL:"] + failures))
    print(len(table), "promises")


main()
