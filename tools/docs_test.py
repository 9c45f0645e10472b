#!/usr/bin/env python3
"""The public headers are documented, and tools/docs notices a missing comment."""

import importlib.machinery
import importlib.util
import os
import re
import tempfile
import unittest

TOOL = os.path.realpath(os.path.join(os.path.dirname(__file__), "docs"))
LOADER = importlib.machinery.SourceFileLoader("docs", TOOL)
docs = importlib.util.module_from_spec(importlib.util.spec_from_loader("docs", LOADER))
LOADER.exec_module(docs)

HEADER = """#pragma once

// Separates cats from dogs.
namespace gradwire::store {{

// Something with `size`.
class A {{
 public:
  // Adds `n`.
  void add(int n);
{member}
  A(const A&) = delete;
  ~A();

 private:
  void hidden();
}};

}}  // namespace gradwire::store
"""


class Docs(unittest.TestCase):
    def problems(self, member):
        """The messages of tools/docs about a header whose class has this member."""
        with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as output:
            os.mkdir(os.path.join(root, "store"))
            with open(os.path.join(root, "store/a.h"), "w", encoding="utf-8") as file:
                file.write(HEADER.format(member=member))
            return docs.make(root, output, ["store/a.h"])

    def test_the_header_behind_a_name(self):
        with tempfile.TemporaryDirectory() as root:
            for name, text, expected in (("a.h", '#pragma once\n\n// Text.\n#include "gradwire/b/c.h"\n', {"b/c.h"}),
                                         ("b.h", '#pragma once\n#include "gradwire/b/c.h"\n#include "gradwire/b/d.h"\n',
                                          {"b/c.h", "b/d.h"}),
                                         ("c.h", '#pragma once\n#include "gradwire/b/c.h"\nint i;\n', set())):
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)
                self.assertEqual(docs.build_files.forwarded(root, name), expected)
        self.assertIn("base/futures/future.h", docs.public_headers(docs.ROOT))

    def test_the_tree_itself(self):
        with tempfile.TemporaryDirectory() as output:
            self.assertEqual(docs.make(docs.ROOT, output), [])
            with open(os.path.join(output, "html", "classgradwire_1_1store_1_1Store.html"), encoding="utf-8") as file:
                self.assertIn("A small table of keys and values", file.read())

    def test_a_member_of_the_tree_that_loses_its_comment(self):
        with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as output:
            os.makedirs(os.path.join(root, "store/interface"))
            text = docs.read(docs.ROOT, "store/interface/store.h")
            with open(os.path.join(root, "store/interface/store.h"), "w", encoding="utf-8") as file:
                file.write(re.sub(r"(  //[^\n]*\n)+(  bool delete_key)", r"\n\2", text, count=1))
            problems = docs.make(root, output, ["store/interface/store.h"])
            self.assertEqual(len(problems), 1, problems)
            self.assertRegex(problems[0], r"^store/interface/store\.h:\d+: .*delete_key.*is not documented")

    def test_documented_members(self):
        self.assertEqual(self.problems("""
  // The size.
  int size = 0;
  int other = 0;  // Another.
  // Of a size.
  enum class Kind {
    kSmall,  // 1.
    // 2 `size`.
    kLarge,
  };
  // @param size  what to do <it> with: $x, a@b, #1, --y
  void take(int size);
  int inlined() { return 0; }  // Inline.
"""), [])

    def test_members_without_a_comment(self):
        problems = self.problems("""
  int variable = 0;
  void function();
  using Type = int;
  struct Struct {
    int field;
  };
  // Detached.

  int detached = 0;
  enum class Enum {
    kValue,  // 1.
  };
""")
        for name in ("variable", "function", "Type", "Struct", "field", "detached", "Enum"):
            found = [each for each in problems if f"{name}" in each]
            self.assertTrue(found, name)
            self.assertRegex(found[0], r"^store/a\.h:\d\d: .*is not documented")

    def test_enumerators_without_a_comment(self):
        self.assertEqual(self.problems("  // Of a size.\n  enum class size {\n    kSmall,  // 1.\n    kLarge,\n  };"),
                         ["store/a.h:12: enumerator kLarge of gradwire::store::A::size is not documented."])

    def test_parameters_that_do_not_exist(self):
        problems = self.problems("  // @param wrong  what it is\n  void size(int right);")
        self.assertTrue(any("'wrong'" in each for each in problems), problems)
        self.assertEqual(self.problems("\n  // Adds `wrong`.\n  void size(int right);"),
                         ["store/a.h:12: the comment names `wrong`, which the code beside it does not have"])

    def test_excluded_members_that_are_defined_outside_of_their_namespace(self):
        text = HEADER.format(member="  int size = 0;  // The size.")
        excluded = "namespace a_internal {\nint f(int n);\n}\n\nint a_internal::f(int n) { return n; }\n\n}  // namespace"
        with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as output:
            os.mkdir(os.path.join(root, "store"))
            with open(os.path.join(root, "store/a.h"), "w", encoding="utf-8") as file:
                file.write(text.replace("}  // namespace", excluded))
            self.assertEqual(docs.make(root, output, ["store/a.h"]), [])

    def test_the_filter_keeps_lines(self):
        text = HEADER.format(member="  int size = 0;  // The size.\n  // Code:\n  //   f();\n  void g();")
        lines = docs.as_doxygen(text)
        self.assertEqual(len(lines), len(text.splitlines()))
        self.assertEqual(lines[1:3], ["/// @file", "/// Separates cats from dogs."])
        self.assertEqual(lines[10], "  int size = 0;  ///< The size.")
        self.assertEqual(lines[12].strip(), "/// @code{.cpp}   f(); @endcode")

    def test_public_headers(self):
        headers = docs.public_headers(docs.ROOT)
        for path in ("gradwire.h", "base/futures/future.h", "collectives/functions.h", "rpc/rpc.h", "tools/launch_info.h",
                     "data_parallel/distributed_data_parallel.h", "data_parallel/distributed_sampler.h"):
            self.assertIn(path, headers)
        for path in ("base/mutex.h", "data_parallel/reducer/reducer.h"):
            self.assertNotIn(path, headers)
            self.assertTrue(os.path.exists(os.path.join(docs.ROOT, path)), path)


if __name__ == "__main__":
    unittest.main()
