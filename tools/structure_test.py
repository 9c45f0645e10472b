#!/usr/bin/env python3
"""Dependencies of the tree point one way, and tools/structure notices those that do not."""

import importlib.machinery
import importlib.util
import os
import tempfile
import unittest

TOOL = os.path.realpath(os.path.join(os.path.dirname(__file__), "structure"))
LOADER = importlib.machinery.SourceFileLoader("structure", TOOL)
structure = importlib.util.module_from_spec(importlib.util.spec_from_loader("structure", LOADER))
LOADER.exec_module(structure)

LINE = "base < codec, store < rpc\n"


class Structure(unittest.TestCase):
    def problems(self, files, documents=(LINE, LINE), large=()):
        """What tools/structure says of a tree of these files: path to text."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in [*zip(structure.DOCUMENTS, documents), *files.items()]:
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return structure.check(root, dict(large))

    def test_the_tree_itself(self):
        self.assertEqual(structure.check(structure.ROOT), [])
        self.assertGreaterEqual(len(list(structure.uses(structure.ROOT))), 1000)

    def test_dependencies_and_includes_that_point_down(self):
        self.assertEqual(self.problems({
            "rpc/BUILD.bazel": 'load("//bazel:defs.bzl", "x")\ncc_library(name = "a", deps = ["//base", "//codec/torch:b", ":c"])',
            "store/BUILD.bazel": 'cc_library(name = "a", deps = ["//base:x"], visibility = ["//rpc:__pkg__"])',
            "rpc/link/a.cc": '#include "gradwire/base/x.h"\n#include "gradwire/rpc/a.h"\n#include "google/x.h"\n',
        }), [])

    def test_a_dependency_that_points_up(self):
        self.assertEqual(self.problems({"store/BUILD.bazel": 'cc_library(\n    name = "a",\n    deps = ["//rpc/link:b"],\n)'}),
                         ["store/BUILD.bazel:3: store uses rpc, which is not below it"])

    def test_an_include_that_points_aside(self):
        self.assertEqual(self.problems({"codec/torch/a.h": "#pragma once\n#include \"gradwire/store/x.h\"\n"}),
                         ["codec/torch/a.h:2: codec uses store, which is not below it"])

    def test_labels_and_includes_in_other_forms(self):
        self.assertEqual(self.problems({"store/BUILD.bazel": 'cc_library(name = "a", deps = ["@//rpc:b"], data = ["//:LICENSE"])',
                                        "store/defs.bzl": 'DEPS = ["//base", "//rpc:c"]',
                                        "codec/a.h": "#include <gradwire/rpc/a.h>\n"}),
                         ["codec/a.h:1: codec uses rpc, which is not below it",
                          "store/BUILD.bazel:1: store uses rpc, which is not below it",
                          "store/defs.bzl:1: store uses rpc, which is not below it"])

    def test_a_folder_in_no_layer(self):
        self.assertEqual(self.problems({"new/a.h": '#include "gradwire/base/x.h"\n'}), ["new is in no layer"])

    def test_only_tests_use_tests(self):
        rule = '{}(name = "a", deps = ["//tests/x:y"]{})'
        for call in (rule.format("cc_test", ""), rule.format("cc_library", ", testonly = True")):
            self.assertEqual(self.problems({"rpc/BUILD.bazel": call, "tests/x/y.h": ""}), [])
        self.assertEqual(self.problems({"rpc/BUILD.bazel": rule.format("cc_library", ""), "tests/x/y.h": ""}),
                         ["rpc/BUILD.bazel:1: rpc uses tests, which is in no layer"])

    def test_documents_that_disagree(self):
        self.assertEqual(self.problems({}, (LINE, "base < store < codec < rpc\n")),
                         ["CONTRIBUTING.md: other layers than in ARCHITECTURE.md"])
        self.assertEqual(self.problems({}, (LINE, "no line\n")), ["CONTRIBUTING.md: no line of layers"])

    def test_packages_and_build_files_that_are_too_large(self):
        at_the_limit = {f"base/{i}.cc": "" for i in range(40)}
        at_the_limit["base/BUILD.bazel"] = "\n" * 250
        self.assertEqual(self.problems(at_the_limit), [])
        self.assertEqual(self.problems({**at_the_limit, "base/x.h": "", "base/BUILD.bazel": "\n" * 251}),
                         ["base: has 41 source files, expected at most 40; split the package",
                          "base/BUILD.bazel: has 251 lines, expected at most 250; split the package"])

    def test_an_include_without_the_prefix(self):
        self.assertEqual(self.problems({"base/x.h": "", "base/a.cc": '\n#include "base/x.h"\n#include "google/x.h"\n',
                                        "third_party/b.cc": '#include "base/x.h"\n'}),
                         ["base/a.cc:2: includes base/x.h, expected gradwire/base/x.h"])

    def large_class(self, lines, methods):
        """A class in two files: a header with a method in a line, a source file with the last one, which has the rest."""
        header = "class A {\n" + "".join(f"  void m{i}(int x);\n" for i in range(methods)) + "};\n"
        return {"base/a.h": f"namespace n {{\n{header}}}\n",
                "base/a.cc": "namespace n {\nvoid A::m0(int y) {" + "\n" * (lines - methods - 3) + "}\n}\n"}

    def test_classes_that_are_too_large(self):
        self.assertEqual(self.problems(self.large_class(420, 25)), [])
        message = "n::A: has {} lines and {} methods, expected at most 420 and 25; split it"
        self.assertEqual(self.problems(self.large_class(421, 25)), [message.format(421, 25)])
        self.assertEqual(self.problems(self.large_class(420, 26)), [message.format(420, 26)])

    def test_classes_that_are_known_to_be_large_may_not_grow(self):
        self.assertEqual(self.problems(self.large_class(500, 30), large={"n::A": (500, 30)}), [])
        self.assertEqual(self.problems(self.large_class(501, 30), large={"n::A": (500, 30)}),
                         ["n::A: has 501 lines and 30 methods, expected at most 500 and 30; split it"])
        self.assertEqual(self.problems(self.large_class(420, 25), large={"n::A": (500, 30)}),
                         ["n::A: is within the limits or gone; take it out of LARGE_CLASSES"])

    def test_headers_behind_a_header(self):
        with tempfile.TemporaryDirectory() as root:
            for name, text in (("a.h", '#include "gradwire/b.h"\n#include <c>\n'),
                               ("b.h", '#include "gradwire/a.h"\n#include "gradwire/c.h"\n'),
                               ("c.h", "")):
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)
            self.assertEqual(structure.headers_behind(root, "a.h"), {"b.h", "c.h"})


if __name__ == "__main__":
    unittest.main()
