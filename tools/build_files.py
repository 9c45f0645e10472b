"""Reads the targets of a tree from its BUILD files and their macros, without Bazel.

BUILD files and .bzl files are Starlark, which Python can run. Here each rule records its arguments instead of declaring
a target. So macros, constants and globs need no special treatment. Differences from Bazel:

- A select() is a list of the values of all its branches: a dependency of one configuration counts for all.
- A rule that a .bzl file defines has the arguments of its call and the defaults of its attributes.
- If a .bzl file belongs to another repository, or is missing in the tree, each name that is loaded from it is a rule.
"""

import ast
import fnmatch
import os
import re
import sys

# Attributes with labels of packages that the target does not depend on. The last one is that of a package_group.
VISIBILITY = ("visibility", "default_visibility", "packages")
# The macro cc_library (bazel/defs.bzl) moves the headers in a target's `srcs` to a target of its name with this ending.
OWN_HEADERS = ".own_headers"
# The condition of the builds that compile each file alone (bazel/units.bzl). The others depend on more than a target
# declares, so the targets are read as in these builds.
NO_UNITS = "//bazel:no_units"
# The endings of the targets that only those builds use. The last one marks a library that is in a unit.
UNIT_PARTS = (".included", ".unit")
MEMBER = ".member"


class Target:
    """A target, with the arguments of its rule."""

    def __init__(self, package, kind, line, arguments):
        self.package = package
        self.kind = kind  # The rule's name: "cc_library".
        self.line = line  # The line of the BUILD file that calls the rule, or the macro around it.
        self.arguments = arguments
        self.label = f"//{package}:{arguments['name']}"

    def labels(self, attribute):
        """The labels in the attribute, as absolute labels. Labels of other repositories begin with "@"."""
        value = self.arguments.get(attribute) or ()
        return [absolute(each, self.package) for each in ([value] if isinstance(value, str) else value)]

    def is_for_tests(self):
        return bool(self.arguments.get("testonly")) or self.kind.endswith(("_test", "test_suite"))


class Select(list):
    """The values of all branches of a select(), and its conditions, which are labels."""

    def __init__(self, values, conditions=()):
        super().__init__(values)
        self.conditions = list(conditions)

    def __add__(self, other):
        return Select([*self, *other], self.conditions + list(getattr(other, "conditions", ())))

    def __radd__(self, other):
        return Select([*other, *self], self.conditions)


def absolute(label, package):
    """The complete label, "//PACKAGE:NAME". The name of another repository is kept, that of this workspace is removed."""
    label = re.sub(r"^@(gradwire)?//", "//", label)
    if label.startswith(("//", "@")):
        return label if ":" in label or "//" not in label else f"{label}:{label.rpartition('/')[2]}"
    return f"//{package}:{label.lstrip(':')}"


def path_of(label):
    """The file that a label of this tree names, if it names a file."""
    return label[2:].replace(":", "/", 1).lstrip("/")


def forwarded(root, path):
    """The headers for which the header `path` is only a name, under which programs include them: it contains nothing but
    their includes. Empty for any other file."""
    if not path.endswith(".h"):
        return set()
    with open(os.path.join(root, path), encoding="utf-8") as file:
        lines = [line for line in map(str.strip, file) if line and not line.startswith("//")]
    included = [re.fullmatch(r'#include "gradwire/(.+)"', line) for line in lines[1:]]
    return {each[1] for each in included} if lines[:1] == ["#pragma once"] and all(included) else set()


def named_labels(value):
    """All absolute labels in an argument: in lists, in dictionaries, and the conditions of a select()."""
    if isinstance(value, str):
        if re.match(r"@?(gradwire)?//", value):
            yield absolute(value, "")
    elif isinstance(value, dict):
        for pair in value.items():
            yield from named_labels(list(pair))
    elif isinstance(value, (list, tuple)):
        for each in [*value, *getattr(value, "conditions", ())]:
            yield from named_labels(each)


class Native:
    """The object `native` of .bzl files. Its members are the functions that a BUILD file can call by their names."""

    def __init__(self, reader):
        self.__dict__.update(reader.functions())
        self._reader = reader

    def __getattr__(self, name):
        return self._reader.rule(name)


class Attributes:
    """The object `attr` of .bzl files. It keeps only the default of an attribute."""

    def __getattr__(self, name):
        return lambda *args, default=None, **kwargs: default


class Reader:
    """Reads BUILD files, and each .bzl file once."""

    def __init__(self, root):
        self.root = root
        self.targets = []
        self.members = set()  # The labels of the libraries that are compiled together (bazel/units.bzl).
        self.loads = []  # Triples (BUILD or .bzl file, line, label of the .bzl file that it loads).
        self.package = ""
        self.modules = {}  # The path of a .bzl file, and the names that it defines.

    def rule(self, kind, defaults=()):
        def called(*_, **arguments):
            if "name" not in arguments:
                return
            if arguments["name"].endswith(MEMBER):
                self.members.add(f"//{self.package}:{arguments['name'][:-len(MEMBER)]}")
            elif not arguments["name"].endswith(UNIT_PARTS):
                self.targets.append(Target(self.package, kind, self.line(), {**dict(defaults), **arguments}))
        return called

    def line(self):
        """The line of the BUILD file that is being run."""
        frame = sys._getframe()
        while frame and frame.f_code.co_filename != os.path.join(self.root, self.package, "BUILD.bazel"):
            frame = frame.f_back
        return frame.f_lineno if frame else 0

    def glob(self, include=(), exclude=(), **_):
        folder = os.path.join(self.root, self.package)
        names = (os.path.relpath(os.path.join(where, name), folder)
                 for where, _, files in os.walk(folder) for name in files)
        return sorted(name for name in names
                      if any(fnmatch.fnmatch(name, each) for each in include)
                      and not any(fnmatch.fnmatch(name, each) for each in exclude))

    def functions(self):
        def nothing(*_, **__):
            return None

        return {"glob": self.glob, "package": nothing, "exports_files": nothing,
                "package_name": lambda: self.package, "repository_name": lambda: "@", "existing_rules": dict}

    def globals(self, path):
        """The names that a BUILD or .bzl file can use without loading them, except rules."""
        def nothing(*_, **__):
            return None

        def select(branches, **_):
            if NO_UNITS in branches:
                branches = {"//conditions:default": branches[NO_UNITS]}
            values = [each for value in branches.values() for each in ([value] if isinstance(value, str) else value)]
            return Select(values, branches)

        def fail(*args):
            raise ValueError(f"{path}: {' '.join(map(str, args))}")

        kinds = {str: "string", list: "list", Select: "select", dict: "dict", bool: "bool", int: "int"}
        return {
            **self.functions(), "native": Native(self), "attr": Attributes(), "select": select, "fail": fail,
            "load": lambda label, *names, **renamed: self.load(path, label, names, renamed),
            "rule": lambda **arguments: self.rule("rule", arguments.get("attrs", ())),
            "repository_rule": nothing, "provider": nothing, "CcInfo": None, "Label": str,
            "type": lambda value: kinds.get(type(value), type(value).__name__),
            "True": True, "False": False, "None": None,
        }

    def load(self, path, label, names, renamed):
        frame = sys._getframe(2)
        label = absolute(label, os.path.dirname(path))
        self.loads.append((path, frame.f_lineno, label))
        module = self.module(path_of(label)) if label.startswith("//") else None
        for name, original in [*((name, name) for name in names), *renamed.items()]:
            frame.f_globals[name] = self.rule(original) if module is None else module[original]

    def module(self, path):
        """The names that the .bzl file defines; None if the file does not exist in the tree."""
        if path not in self.modules:
            exists = os.path.isfile(os.path.join(self.root, path))
            self.modules[path] = self.run(path, self.globals(path)) if exists else None
        return self.modules[path]

    def run(self, path, names):
        path = os.path.join(self.root, path)
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read(), path)
        if os.path.basename(path) == "BUILD.bazel":
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    names.setdefault(node.func.id, self.rule(node.func.id))
        exec(compile(tree, path, "exec"), names)  # pylint: disable=exec-used
        return names

    def build_file(self, path):
        self.package = os.path.dirname(path)
        self.run(path, self.globals(path))


class Graph:
    """The targets of a tree by label, and the .bzl files that its BUILD and .bzl files load."""

    def __init__(self, root, build_files):
        reader = Reader(root)
        for path in build_files:
            reader.build_file(path)
        self.root = root
        self.loads = reader.loads
        self.members = reader.members
        self.targets = {target.label: target for target in reader.targets}
        self._closures = {}

    def uses(self):
        """Tuples (BUILD file, line, target, label): the target, or the file if it is None, uses the label. Labels in
        VISIBILITY are not uses."""
        for path, line, label in self.loads:
            yield path, line, None, label
        for target in self.targets.values():
            for name, value in target.arguments.items():
                if name not in VISIBILITY:
                    for label in named_labels(value):
                        yield os.path.join(target.package, "BUILD.bazel"), target.line, target, label

    def files(self, label):
        """The files of a label in `srcs` or `hdrs`: the file itself, or the files of a filegroup. For a rule without
        named outputs these are its sources."""
        target = self.targets.get(label)
        if not target:
            return [path_of(label)] if label.startswith("//") else []
        if target.kind == "alias":
            return [path for each in target.labels("actual") for path in self.files(each)]
        if target.arguments.get("outs"):
            return [path_of(each) for each in target.labels("outs")]
        return [path for each in target.labels("srcs") for path in self.files(each)]

    def own_files(self, target):
        return [path for name in ("srcs", "hdrs", "textual_hdrs") for label in target.labels(name)
                for path in self.files(label)]

    def closure(self, label):
        """The labels of the target itself and of its direct and indirect dependencies in this tree."""
        if label not in self._closures:
            self._closures[label] = frozenset()  # Bazel refuses a cycle. Here the recursion ends.
            target = self.targets.get(label)
            below = [target.labels(name) for name in ("deps", "actual")] if target else []
            self._closures[label] = frozenset([label]).union(
                *(self.closure(each) for labels in below for each in labels if each.startswith("//")))
        return self._closures[label]

    def headers(self, label, prefix):
        """The headers of a target that its dependents include as `prefix`/PATH, because the target has this
        `include_prefix`."""
        target = self.targets.get(label)
        if not target or target.arguments.get("include_prefix") not in (prefix, [prefix]):
            return []
        return [path for name in ("hdrs", "textual_hdrs") for each in target.labels(name) for path in self.files(each)]
