#!/usr/bin/env python3
"""Every mutant of tools/mutants.json applies to the tree, and tools/mutate interprets the output of Bazel."""

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


def result(returncode, stdout):
    return types.SimpleNamespace(returncode=returncode, stdout=stdout)


class Mutate(unittest.TestCase):
    def test_every_mutant_applies_to_the_tree(self):
        mutants = mutate.read_list(mutate.ROOT)
        self.assertGreaterEqual(len(mutants), 100)
        self.assertEqual(mutate.stale(mutants, mutate.ROOT), [])

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

    def test_list_is_shown_without_running_anything(self):
        shown = subprocess.run([TOOL, "--list", "--only=rpc.held"], capture_output=True, text=True, check=True).stdout
        held = [m["id"] for m in mutate.read_list(mutate.ROOT) if m["id"].startswith("rpc.held")]
        self.assertEqual([line.split()[0] for line in shown.splitlines()], held)


if __name__ == "__main__":
    unittest.main()
