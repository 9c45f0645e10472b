#!/usr/bin/env python3
"""The numbers in the documents are those of the code, and tools/docs_numbers notices if they are not. The glossary is
sorted, and its files exist."""

import importlib.machinery
import importlib.util
import os
import re
import tempfile
import unittest

TOOL = os.path.realpath(os.path.join(os.path.dirname(__file__), "docs_numbers"))
LOADER = importlib.machinery.SourceFileLoader("docs_numbers", TOOL)
docs_numbers = importlib.util.module_from_spec(importlib.util.spec_from_loader("docs_numbers", LOADER))
LOADER.exec_module(docs_numbers)

SOURCE = """
constexpr absl::Duration kPause = absl::Milliseconds(20);  // A comment, with a comma.
constexpr auto kShort = std::chrono::microseconds(100);
absl::Duration long_wait = absl::Minutes(30);
inline constexpr std::size_t kBytes = std::size_t{64} << 10;
static constexpr uint32_t kCalls = 16'384;
constexpr std::size_t kHalf = kBytes / 2;
constexpr int kTwice = 1;
constexpr int kTwice = 2;
constexpr int kUnknown = other();
"""
VERSION = """#define GRADWIRE_VERSION_MAJOR 1
#define GRADWIRE_VERSION_MINOR 2
#define GRADWIRE_VERSION_PATCH 3
"""


class DocsNumbers(unittest.TestCase):
    def problems(self, document, phrase, name):
        """The messages about a document with this text."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in (("a.md", document), ("a.h", SOURCE)):
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return docs_numbers.check_row(root, "a.md", [phrase], "a.h", name)

    def test_the_tree_itself(self):
        self.assertEqual(docs_numbers.check(docs_numbers.ROOT), [])
        self.assertGreaterEqual(len(docs_numbers.QUOTATIONS), 80)

    def test_values_of_constants(self):
        for name, value in (("kPause", 20 * 10**6), ("kShort", 10**5), ("long_wait", 1800 * 10**9), ("kBytes", 65536),
                            ("kCalls", 16384), ("kHalf", 32768), ("kTwice", None), ("kUnknown", None), ("kNone", None)):
            self.assertEqual(docs_numbers.constant_value(SOURCE, name), value, name)

    def test_equal_numbers(self):
        for document, phrase, name in (
                ("It sleeps for 20 ms.", "sleeps for {}", "kPause"),
                ("It sleeps for\n20 ms.", "sleeps for {}", "kPause"),
                ("It sleeps for 0.02 s.", "sleeps for {}", "kPause"),
                ("`long_wait`, by default 30 minutes", "`long_wait`...{}", "long_wait"),
                ("up to 64 KiB and up to 64 KiB", "up to {}", "kBytes"),
                ("at most 16,384 calls", "at most {} calls", "kCalls"),
        ):
            self.assertEqual(self.problems(document, phrase, name), [], document)

    def test_other_numbers(self):
        problem = self.problems("One.\nIt sleeps for 20 s.", "sleeps for {}", "kPause")
        self.assertEqual(len(problem), 1)
        self.assertRegex(problem[0], r"^a\.md:2: kPause of a\.h: the document says 20 s, the code 20000000 .*\b20 ms\b")
        self.assertIn("the document says 64, the code 65536", self.problems("up to 64", "up to {}", "kBytes")[0])
        self.assertEqual(len(self.problems("up to 64 KiB and up to 65 KiB", "up to {}", "kBytes")), 1)

    def test_what_is_gone(self):
        self.assertIn('phrase "sleeps for {}" not found', self.problems("It sleeps.", "sleeps for {}", "kPause")[0])
        self.assertIn("constant kGone not found in a.h", self.problems("for 20 ms", "for {}", "kGone")[0])
        # The short text has no digits.
        self.assertEqual(len(self.problems("`long_wait` of 2 waits, 30 minutes", "`long_wait`...{}", "long_wait")), 1)

    def test_versions(self):
        good = {"base/version.h": VERSION, "CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n## 1.2.3\n\n## 1.2.2\n",
                "docs/stability.md": "The version is 1.2.3.\n"}
        for changes, count in (({}, 0), ({"CHANGELOG.md": "## 1.2.2\n"}, 1), ({"docs/stability.md": ""}, 1),
                               ({"base/version.h": VERSION.replace("3", "4")}, 2)):
            with tempfile.TemporaryDirectory() as root:
                for path, text in {**good, **changes}.items():
                    os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                    with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                        file.write(text)
                self.assertEqual(len(list(docs_numbers.check_versions(root))), count, changes)

    def test_unlisted_quantities(self):
        with tempfile.TemporaryDirectory() as root:
            document = docs_numbers.QUOTATIONS[0][0]
            with open(os.path.join(root, document), "w", encoding="utf-8") as file:
                file.write("It takes 17 us.\n\n```\n18 us\n```\n")
            self.assertEqual(list(docs_numbers.unlisted(root)), [(f"{document}:1", "17 us")])


class Glossary(unittest.TestCase):
    def test_terms_are_sorted_and_their_files_exist(self):
        with open(os.path.join(docs_numbers.ROOT, "docs", "glossary.md"), encoding="utf-8") as file:
            rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in file if line.startswith("| ")][1:]
        self.assertGreaterEqual(len(rows), 80)
        keys = [re.sub(r"[^a-z0-9 ]", "", term.lower()) for term, _, _ in rows]
        self.assertEqual(keys, sorted(set(keys)))
        for term, definition, where in rows:
            path = re.sub(r"^`(.*)`$|^\[(.*)\]\(.*\)$", r"\1\2", where)
            self.assertTrue(os.path.exists(os.path.join(docs_numbers.ROOT, path)), f"{term}: {path}")
            self.assertTrue(definition.endswith("."), term)


if __name__ == "__main__":
    unittest.main()
