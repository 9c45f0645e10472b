#!/usr/bin/env python3
"""Copies source files with the deliberate bugs of a simulator built in.

usage: with_bugs.py BUGS TABLE SOURCE=COPY...

BUGS    the list of bugs, described below
TABLE   the C++ file to write that names them (all_bugs() in bug.h)
SOURCE  a source file, as the list names it or with folders before that; COPY is where its copy is written

A list looks like this:

    # A comment.
    bug forget_deletes: A delete is not remembered for the add that it overtook.
    in rpc/rref/owner_table.cc
       Entry& entry = entries_[rref];
    -  if (!deleted(fork, holder)) entry.forks.try_emplace(fork, holder);
    +  if (!deleted(fork, holder) || simulation::bug("forget_deletes")) entry.forks.try_emplace(fork, holder);

A bug has one or more changes. Each names a file and is written as in a diff: the lines that begin with "-" or with a
space must stand in the file exactly once, one below the other, and are replaced by those that begin with "+" or with a
space. A change may not touch lines of another. What it puts there asks simulation::bug() for the bug it belongs to.
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
    """What is wrong with the list of bugs."""


class Change:
    def __init__(self, bug, path):
        self.bug = bug
        self.path = path
        self.old = []
        self.new = []

    def __str__(self):
        return f"bug {self.bug} in {self.path}"


def parse(text):
    """The bugs of a list, name to description, and their changes."""
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
            raise Mistake(f"{change}: it has no old text")
        if f'simulation::bug("{change.bug}")' not in "\n".join(change.new):
            raise Mistake(f"{change}: its new text does not ask simulation::bug(\"{change.bug}\")")
    for bug in set(bugs) - {change.bug for change in changes}:
        raise Mistake(f"bug {bug}: it changes nothing")
    return bugs, changes


def apply(text, changes):
    """The text of a file with these changes."""
    lines = text.splitlines()
    places = []
    for change in changes:
        size = len(change.old)
        starts = [i for i in range(len(lines) - size + 1) if lines[i:i + size] == change.old]
        if len(starts) != 1:
            raise Mistake(f"{change}: its old text occurs {len(starts)} times, expected once")
        places.append((starts[0], starts[0] + size, change))
    places.sort(key=lambda place: place[0], reverse=True)
    for (_, end, first), (start, _, second) in zip(places[1:], places):
        if end > start:
            raise Mistake(f"{first} and {second} change the same lines")
    for start, end, change in places:
        lines[start:end] = change.new
    return "\n".join(([INCLUDE] if changes else []) + lines) + "\n"


def table(bugs):
    """The C++ file that names the bugs."""
    def quoted(text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return TABLE % "".join(f"      {{{quoted(name)}, {quoted(what)}}},\n" for name, what in bugs.items())


def copy_with_bugs(text_of_list, sources):
    """The table of the bugs, and the copy of each of the sources: path to text."""
    bugs, changes = parse(text_of_list)
    changes_of = {path: [] for path in sources}
    for change in changes:
        # In another workspace the path has folders before it.
        paths = [path for path in sources if path == change.path or path.endswith("/" + change.path)]
        if len(paths) != 1:
            raise Mistake(f"{change}: the simulator compiles {len(paths)} files of this name, expected one")
        changes_of[paths[0]].append(change)
    return table(bugs), {path: apply(text, changes_of[path]) for path, text in sources.items()}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    bugs, where_table = sys.argv[1:3]
    copies = dict(argument.split("=", 1) for argument in sys.argv[3:])
    try:
        text, texts = copy_with_bugs(read(bugs), {source: read(source) for source in copies})
    except Mistake as mistake:
        sys.exit(f"{bugs}: {mistake}")
    write(where_table, text)
    for source, copy in copies.items():
        write(copy, texts[source])


if __name__ == "__main__":
    main()
