#!/usr/bin/python3
"""environment_test.py ENVIRONMENT_MD: checks that its table has exactly the variables that the sources name."""
import os
import re
import sys

page = os.path.realpath(sys.argv[1])
root = os.path.dirname(os.path.dirname(page))  # The source tree: the file in the runfiles is a link into it.

FOLDERS = ["autograd", "base", "clients", "codec", "collectives", "data_parallel", "deploy", "device", "examples",
           "gateway", "rpc", "security", "store", "tests", "third_party", "tools", "transport"]
# Names of error codes have the form of variables.
CODES = {"ALREADY_EXISTS", "DATA_LOSS", "DEADLINE_EXCEEDED", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND",
         "OUT_OF_RANGE", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"}
# Names of limits of the system have it too.
LIMITS = {"RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_NPROC"}
LITERAL = re.compile(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|OMPI_MCA_\w+)"')
GETENV = re.compile(r'(?:getenv|environment_or|environ\.get)\(\s*"([A-Z]\w*)"')
PYTHON = re.compile(r'environ(?:\.get\(|\[)\s*"(GRADWIRE_\w+)"')
# Tests expect names of macros in errors and advice.
MACRO = re.compile(r"^#define (GRADWIRE_\w+)", re.MULTILINE)
SHELL = re.compile(r"\$\{([A-Z][A-Z0-9_]*):-")


def of_test(path):
    return path.startswith("tests" + os.sep) or path.endswith(("_test.cc", "_test.py", "_test.sh"))


def variables_in(path, text):
    """The variables that a source reads or sets, and all words that could be variables."""
    if path.endswith((".cc", ".h")):
        spelled = set(re.findall(r'"([A-Z]\w*)"', text))
        if of_test(path):
            # Tests also contain other constants, so only names of Gradwire's own variables count.
            return {name for name in LITERAL.findall(text) if name.startswith("GRADWIRE_")}, spelled
        # The launcher builds the names of these variables from "PET_" and the names of its options.
        options = {"PET_<OPTION>"} if '"PET_"' in text else set()
        return options | set(LITERAL.findall(text)) - CODES - LIMITS | set(GETENV.findall(text)), spelled
    if path.endswith(".bzl"):
        return set(GETENV.findall(text)), set()
    if path.endswith(".py"):
        return set(PYTHON.findall(text)), set()
    if os.path.dirname(path) == "tools" and "." not in os.path.basename(path):
        return set(SHELL.findall(text)), set()
    return set(), set()


used, spelled, macros = {}, set(), set()
for folder in FOLDERS:
    for where, _, names in os.walk(os.path.join(root, folder)):
        for name in names:
            path = os.path.relpath(os.path.join(where, name), root)
            if not path.endswith((".cc", ".h", ".bzl", ".py")) and os.path.dirname(path) != "tools":
                continue
            with open(os.path.join(root, path), encoding="utf-8", errors="replace") as source:
                text = source.read()
            found, words = variables_in(path, text)
            spelled |= words
            macros |= set(MACRO.findall(text))
            for variable in found:
                used.setdefault("PET_<OPTION>" if variable.startswith("PET_") else variable, path)

with open(page, encoding="utf-8") as text:
    rows = re.findall(r"^\| `([^`]+)` \|", text.read(), re.MULTILINE)

errors = [f"{name}, used in {used[name]}, is missing in the table" for name in sorted(set(used) - macros - set(rows))]
errors += [f"{name} is in the table, but no source uses it" for name in sorted(set(rows) - set(used) - spelled)]
errors += [f"{name} is in the table more than once" for name in sorted({name for name in rows if rows.count(name) > 1})]
if len(rows) < 20 or len(used) < 20:
    errors.append(f"found {len(rows)} rows and {len(used)} variables, expected 20 or more of each: check the paths")
for error in errors:
    print("FAIL:", error)
print(len(rows), "variables")
sys.exit(bool(errors))
