#!/usr/bin/env python3
"""Every row of docs/failure.md's table of promises names TEST cases that exist.

The last column names targets and cases, each in backquotes: `//rpc/caller:retry_test` and then the cases of that target,
`Retry.LostRequestIsSentAgain`. A case is looked for in the source file of the target's name beside its BUILD file.
Instances of a parameterised suite (TEST_P) are named without their prefix. Anything else in backquotes is a command.
"""
import os
import re
import sys

HEADER = "| what happens | what is promised | shown by |"
TARGET = re.compile(r"//([\w/]*):(\w+)")
CASE = re.compile(r"([A-Z]\w*)\.([A-Z]\w*)")
# A disabled case shows nothing.
DEFINITION = re.compile(r"\bTEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")


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
    """The cases in a target's source file; none if there is no such file."""
    path = os.path.join(package, target + ".cc")
    if not os.path.exists(path):
        return set()
    with open(path, encoding="utf-8") as source:
        return {f"{suite}.{case}" for suite, case in DEFINITION.findall(source.read())}


def check_row(cells):
    """What is wrong with a row, a line each."""
    if len(cells) != 3:
        return [f"got {len(cells)} columns, expected 3"]
    wrong = []
    here = None  # the target that was named last, and what it has
    named = 0
    for word in re.findall(r"`([^`]*)`", cells[2]):
        target = TARGET.fullmatch(word)
        if target:
            here = (word, cases_of(*target.groups()))
            if not here[1]:
                wrong.append(f"{word} has no source with a TEST; its BUILD file lists those in promise_tests")
        elif CASE.fullmatch(word):
            named += 1
            if here is None:
                wrong.append(f"no target stands before {word}")
            elif word not in here[1]:
                wrong.append(f"{here[0]} has no case {word}")
    return wrong or ([] if named else ["names no TEST case"])


def self_check():
    """This test finds what it is for."""
    good = "`//rpc/agent:shutdown_test` `Shutdown.DeadMemberIsNamedByAllSoon`"
    assert check_row(["a", "b", good]) == [], check_row(["a", "b", good])
    for bad in (
        "`//rpc/agent:shutdown_test`",
        "`Shutdown.DeadMemberIsNamedByAllSoon`",
        "`//rpc/agent:shutdown_test` `Shutdown.NoSuchCase`",
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
