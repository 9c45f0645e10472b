#!/usr/bin/env python3
"""Copies source files and builds the deliberate bugs of a simulator into the copies.

usage: with_bugs.py BUGS TABLE SOURCE=COPY...
       with_bugs.py --check BUGS...

BUGS    the list of bugs, in the format below
TABLE   the C++ file to write; it defines all_bugs() of bug.h, which names the bugs
SOURCE  a source file: its path is the path in the list, or ends with it
COPY    the path of the copy to write

--check writes nothing. It checks each list against the files of the working directory, in a second and without a build.

An example of a list:

    # A comment.
    bug forget_deletes: A delete is not remembered for the add that it overtook.
    in rpc/rref/owner_table.cc
       Entry& entry = entries_[rref];
    -  if (!deleted(fork, holder)) entry.forks.try_emplace(fork, holder);
    +  if (!deleted(fork, holder) || simulation::bug("forget_deletes")) entry.forks.try_emplace(fork, holder);

A bug has one or more changes. Each change names a file and is written as a diff. The lines that begin with "-" or a
space are the old text, which must occur in the file exactly once. The lines that begin with "+" or a space are the new
text, which replaces it. Two changes must not touch the same lines. The new text must call simulation::bug() with the
name of the change's bug.
"""

import re
import sys

INCLUDE = '#include "gradwire/tests/simulation/harness/bug.h"'
TABLE = """#include "gradwire/tests/simulation/harness/bug.h"

namespace gradwire::simulation {

std::span<const Bug> all_bugs() {
  static constexpr Bug kBugs[] = {
%s  };
  return kBugs;
}

}  // namespace gradwire::simulation
"""


class Mistake(Exception):
    """An error in the list of bugs."""


class Change:
    def __init__(self, bug, path):
        self.bug = bug
        self.path = path
        self.old = []
        self.new = []

    def __str__(self):
        return f"bug {self.bug} in {self.path}"


def parse(text):
    """Returns the bugs of a list, as a dict from name to description, and their changes."""
    bugs, changes = {}, []
    bug = change = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            change = None
        elif match := re.fullmatch(r"bug (\w+): (.+)", line):
            bug, change = match[1], None
            if bug in bugs:
                raise Mistake(f"line {number}: two bugs are named {bug}")
            bugs[bug] = match[2]
        elif line.startswith("in ") and bug:
            change = Change(bug, line[len("in "):])
            changes.append(change)
        elif line[0] in " -+" and change:
            if line[0] != "+":
                change.old.append(line[1:])
            if line[0] != "-":
                change.new.append(line[1:])
        else:
            raise Mistake(f"line {number}: got {line!r}, expected a bug, a file or a line of a change")
    for change in changes:
        if not change.old:
            raise Mistake(f"{change}: the change has no old text")
        if f'simulation::bug("{change.bug}")' not in "\n".join(change.new):
            raise Mistake(f"{change}: the new text does not call simulation::bug(\"{change.bug}\")")
    for bug in set(bugs) - {change.bug for change in changes}:
        raise Mistake(f"bug {bug}: the bug has no changes")
    return bugs, changes


def apply(text, changes):
    """Returns the text of a file with these changes applied."""
    lines = text.splitlines()
    matches = []
    for change in changes:
        size = len(change.old)
        starts = [i for i in range(len(lines) - size + 1) if lines[i:i + size] == change.old]
        if len(starts) != 1:
            raise Mistake(f"{change}: the old text occurs {len(starts)} times, expected once")
        matches.append((starts[0], starts[0] + size, change))
    # From the last to the first, so that replacing one does not move the lines of those before it.
    matches.sort(key=lambda match: match[0], reverse=True)
    for (_, end, first), (start, _, second) in zip(matches[1:], matches):
        if end > start:
            raise Mistake(f"{first} and {second} change the same lines")
    for start, end, change in matches:
        lines[start:end] = change.new
    return "\n".join(([INCLUDE] if changes else []) + lines) + "\n"


def table(bugs):
    """Returns the C++ file that names the bugs."""
    def quoted(text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return TABLE % "".join(f"      {{{quoted(name)}, {quoted(what)}}},\n" for name, what in bugs.items())


def copy_with_bugs(text_of_list, sources):
    """Returns the C++ file that names the bugs, and a dict from the path of each source to the text of its copy."""
    bugs, changes = parse(text_of_list)
    changes_of = {path: [] for path in sources}
    for change in changes:
        # When another workspace builds this one, the path has a prefix.
        paths = [path for path in sources if path == change.path or path.endswith("/" + change.path)]
        if len(paths) != 1:
            raise Mistake(f"{change}: the simulator compiles {len(paths)} files with this path, expected one")
        changes_of[paths[0]].append(change)
    return table(bugs), {path: apply(text, changes_of[path]) for path, text in sources.items()}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def check(lists):
    """Prints a line for each list that cannot be built into the files that it names. Returns whether there was none."""
    good = True
    for path in lists:
        try:
            text_of_list = read(path)
            names = {change.path for change in parse(text_of_list)[1]}
            copy_with_bugs(text_of_list, {name: read(name) for name in names})
        except (Mistake, OSError) as mistake:
            print(f"{path}: {mistake}", file=sys.stderr)
            good = False
    return good


def main():
    if sys.argv[1:2] == ["--check"]:
        sys.exit(0 if check(sys.argv[2:]) else 1)
    bugs, table_path = sys.argv[1:3]
    copies = dict(argument.split("=", 1) for argument in sys.argv[3:])
    try:
        text, texts = copy_with_bugs(read(bugs), {source: read(source) for source in copies})
    except Mistake as mistake:
        sys.exit(f"{bugs}: {mistake}")
    write(table_path, text)
    for source, copy in copies.items():
        write(copy, texts[source])


if __name__ == "__main__":
    main()
