#!/usr/bin/env python3
"""Every mutant of tools/mutants.json applies to the tree and cannot be made by tools/mutations.py. tools/mutate makes the
others, and interprets the output of Bazel."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import tempfile
import types
import unittest

TOOL = os.path.realpath(os.path.join(os.path.dirname(__file__), "mutate"))
LOADER = importlib.machinery.SourceFileLoader("mutate", TOOL)
mutate = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutate", LOADER))
LOADER.exec_module(mutate)


mutations = mutate.mutations


def made(line, before=None):
    return {changed.strip() for changed, _ in mutations.mutants_of_line(line, before)}


def result(returncode, stdout):
    return types.SimpleNamespace(returncode=returncode, stdout=stdout)


class Mutate(unittest.TestCase):
    def test_every_mutant_applies_to_the_tree(self):
        mutants = mutate.read_list(mutate.ROOT)
        self.assertGreaterEqual(len(mutants), 100)
        self.assertEqual(mutate.stale(mutants, mutate.ROOT), [])

    def test_listed_mutants_cannot_be_made(self):
        def squeezed(text):
            return "".join(text.split()).replace("{}", "")

        superfluous = []
        for mutant in mutate.read_list(mutate.ROOT):
            with open(os.path.join(mutate.ROOT, mutant["file"]), encoding="utf-8") as file:
                text = file.read()
            wanted = squeezed(mutate.changed_text(text, mutant))
            if "survives" not in mutant and any(squeezed(mutate.changed_text(text, each)) == wanted
                                                for each in mutations.mutants_of(mutant["file"], text)):
                superfluous.append(mutant["id"])
        self.assertEqual(superfluous, [])

    def test_stale_mutants_are_named(self):
        with tempfile.TemporaryDirectory() as root:
            os.mkdir(os.path.join(root, "a"))
            with open(os.path.join(root, "a", "x.cc"), "w", encoding="utf-8") as file:
                file.write("one\ntwo\ntwo\n")
            with open(os.path.join(root, "a", "BUILD.bazel"), "w", encoding="utf-8") as file:
                file.write('cc_test(name = "x_test")\n')

            def problem(old, **changes):
                good = {"id": "m", "file": "a/x.cc", "old": old, "new": "", "tests": ["//a:x_test"], "what": "."}
                return mutate.problem_of({**good, **changes}, root)

            self.assertIsNone(problem("one\n"))
            self.assertIn("occurs 0 times", problem("three"))
            self.assertIn("occurs 2 times", problem("two"))
            self.assertIn("file a/y.cc not found", problem("one", file="a/y.cc"))
            self.assertIn("target //a:y_test not found", problem("one", tests=["//a:y_test"]))
            self.assertIn("changes nothing", problem("one", new="one"))
            self.assertIn("does not name a test", problem("one", tests=[]))
            self.assertIn("unknown", problem("one", why="."))

    def test_mutants_of_a_line(self):
        for line, expected in {
                "  if (closed_) return;": {"{}"},
                "  if (closed_) drop(all);": {"if (true) drop(all);", "{}"},
                "  if (size > limit_) {": {"if (true) {", "if (false) {", "if (size >= limit_) {"},
                "  if (const auto found = table.find(id); found != table.end()) {": {
                    "if (const auto found = table.find(id); true) {", "if (const auto found = table.find(id); false) {"},
                "  if (auto* held = find(id)) {": set(),
                "  return open && ready(a, b);": {"return open;", "return ready(a, b);"},
                "      !closed && (size < most || last)) {": {
                    "!closed) {", "!closed && (size <= most || last)) {", "!closed && (size < most)) {",
                    "!closed && (last)) {"},
                "  const int n = std::min(count, most + 1);": {
                    "const int n = count;", "const int n = most + 1;", "const int n = std::min(count, most);"},
                "  changed_.notify_all();": {"{}"},
                "  ++calls_;": {"{}"},
                "  failures_.fetch_add(1, std::memory_order_relaxed);": {"{}"},
                "  state_ = State::kClosed;": {"{}"},
                "  const int state = read();": set(),
                "  peer->close(reason);": {"{}"},
                "  Table table(entries);": set(),
                '    return absl::NotFoundError("a < b && c");': {'return absl::UnavailableError("a < b && c");'},
                "  if (code == absl::StatusCode::kAborted) return true;  // a == b": {
                    "{}", "if (code == absl::StatusCode::kInternal) return true;  // a == b",
                    "if (code == absl::StatusCode::kAborted) return false;  // a == b"},
                "  return a == b && (c || d);": {
                    "return a == b;", "return (c || d);", "return a != b && (c || d);", "return a == b && (c);",
                    "return a == b && (d);"},
                "  std::vector<std::pair<int, int>> pairs;": set(),
                "#include <a>": set(),
                "// if (a < b) return;": set(),
                "  bool operator==(const Id& other) const = default;": set(),
        }.items():
            self.assertEqual(made(line), expected, line)
        # The rest of a statement.
        self.assertEqual(made("      limit(most));", "  const int n ="), set())

    def test_mutants_change_one_line(self):
        text = "void f() {\n  if (a) return;\n  ++b;\n}\n"
        mutants = mutations.mutants_of("x/y.cc", text)
        self.assertEqual([mutant["id"] for mutant in mutants], ["x/y.cc:2a", "x/y.cc:3a"])
        self.assertEqual(mutate.changed_text(text, mutants[1]), "void f() {\n  if (a) return;\n  {}\n}\n")
        self.assertEqual([mutant["id"] for mutant in mutations.mutants_of("x/y.cc", text, {3})], ["x/y.cc:3a"])

    def test_lines_that_changed(self):
        with tempfile.TemporaryDirectory() as root:
            def git(*arguments):
                subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *arguments], cwd=root,
                               check=True, stdout=subprocess.DEVNULL)

            def write(name, text):
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)

            git("init", "--quiet")
            lines = [f"  ++count_{i};\n" for i in range(40)]
            for name in ("kept.cc", "moved.cc", "kept_test.cc"):
                write(name, "".join(lines))
            git("add", ".")
            git("commit", "--quiet", "--message=one")
            write("kept.cc", "".join(lines[:5] + ["  a();\n", "  b();\n"] + lines[6:]))
            write("kept_test.cc", "a();\n")
            os.rename(os.path.join(root, "moved.cc"), os.path.join(root, "other.cc"))
            git("add", ".")
            git("commit", "--quiet", "--message=two")
            self.assertEqual(mutations.changed_lines(root, "HEAD~1"), {"kept.cc": {6, 7}})

    def test_options_of_the_list_and_of_made_mutants_exclude_each_other(self):
        for options in (["--in", "base", "--only", "a"], ["--in", "base", "--check"], ["--changed", "--check"],
                        ["--limit", "3"], ["--limit", "0", "--list"]):
            done = subprocess.run([TOOL, *options], stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(done.returncode, 2, options)
            self.assertRegex(done.stderr, "(leave them out|add --changed)", options)

    def test_outcomes(self):
        self.assertEqual(mutate.judge(result(0, ""))[0], "survived")
        self.assertEqual(mutate.judge(result(1, "x.cc:3:1: error: no such thing"))[0], "does not build")
        caught = mutate.judge(result(3, "[  FAILED  ] Table.Drops (3 ms)\n[  FAILED  ] Table.Drops\n//a:x_test FAILED in 1s\n"))
        self.assertEqual(caught, ("caught", "Table.Drops"))
        hung = mutate.judge(result(3, "//a:x_test                 TIMEOUT in 120.0s\n"))
        self.assertEqual(hung, ("caught", "//a:x_test (TIMEOUT)"))

    def test_survivors_without_an_explanation_fail_the_run(self):
        mutants = [{"id": str(i), "file": "f", "what": "."} for i in range(100)]
        results = {mutant["id"]: ("caught", "") for mutant in mutants}
        self.assertTrue(mutate.summarise(mutants, results))
        results["7"] = ("survived", "")
        self.assertFalse(mutate.summarise(mutants, results))
        mutants[7]["survives"] = "It is equivalent."
        self.assertTrue(mutate.summarise(mutants, results))
        for i in range(6):
            results[str(i)] = ("survived", "")
            mutants[i]["survives"] = "It is equivalent."
        self.assertFalse(mutate.summarise(mutants, results))

    def test_mutants_that_do_not_build_do_not_count(self):
        mutants = [{"id": str(i), "what": ".", "old": "a", "new": "b"} for i in range(100)]
        results = {mutant["id"]: ("caught", "") for mutant in mutants}
        results.update({str(i): ("does not build", "") for i in range(50)})
        for i in range(50, 53):
            self.assertTrue(mutate.summarise_made(mutants, results))
            results[str(i)] = ("survived", "")
        self.assertFalse(mutate.summarise_made(mutants, results))

    def test_list_is_shown_without_running_anything(self):
        shown = subprocess.run([TOOL, "--list", "--only=rpc.held"], capture_output=True, text=True, check=True).stdout
        held = [m["id"] for m in mutate.read_list(mutate.ROOT) if m["id"].startswith("rpc.held")]
        self.assertEqual([line.split()[0] for line in shown.splitlines()], held)


if __name__ == "__main__":
    unittest.main()
