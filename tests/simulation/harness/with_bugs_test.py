#!/usr/bin/env python3
"""Tests with_bugs.py: it builds a list of deliberate bugs into copies of sources, or rejects the list."""

import importlib.util
import os
import subprocess
import tempfile
import unittest

TOOL = os.path.join(os.path.dirname(os.path.realpath(__file__)), "with_bugs.py")
SPEC = importlib.util.spec_from_file_location("with_bugs", TOOL)
with_bugs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(with_bugs)

SOURCE = """int f(int x) {
  if (x < 0) return 0;
  return x;
}

int g(int x) {
  if (x < 0) return 0;
  return 2 * x;
}
"""
LIST = """# What may go wrong.
bug keep_sign: Negative numbers are not cut off.
in a/f.cc
 int f(int x) {
-  if (x < 0) return 0;
+  if (x < 0 && !simulation::bug("keep_sign")) return 0;

bug twice: g() "doubles" nothing.
in a/f.cc
+  if (simulation::bug("twice")) return x;
   return 2 * x;
"""


def copy(text_of_list, source=SOURCE, path="a/f.cc"):
    names, copies = with_bugs.copy_with_bugs(text_of_list, {path: source, "a/other.cc": "int other;\n"})
    return names, copies[path], copies["a/other.cc"]


class WithBugs(unittest.TestCase):
    def refuses(self, text_of_list, *words, **arguments):
        with self.assertRaises(with_bugs.Mistake) as raised:
            copy(text_of_list, **arguments)
        for word in words:
            self.assertIn(word, str(raised.exception))

    def test_changes_are_in_the_copy(self):
        _, changed, other = copy(LIST)
        self.assertEqual(changed, with_bugs.INCLUDE + """
int f(int x) {
  if (x < 0 && !simulation::bug("keep_sign")) return 0;
  return x;
}

int g(int x) {
  if (x < 0) return 0;
  if (simulation::bug("twice")) return x;
  return 2 * x;
}
""")
        self.assertEqual(other, "int other;\n")

    def test_folders_before_the_path_do_not_matter(self):
        _, changed, _ = copy(LIST, path="external/gradwire/a/f.cc")
        self.assertIn('simulation::bug("twice")', changed)

    def test_bugs_are_named_in_the_order_of_the_list(self):
        names, _, _ = copy(LIST)
        self.assertIn('{"keep_sign", "Negative numbers are not cut off."},\n'
                      '      {"twice", "g() \\"doubles\\" nothing."},\n', names)

    def test_missing_old_text_is_refused(self):
        self.refuses(LIST, "keep_sign", "a/f.cc", "0 times", source=SOURCE.replace("f(int", "h(int"))

    def test_repeated_old_text_is_refused(self):
        self.refuses(LIST.replace(" int f(int x) {\n", ""), "keep_sign", "a/f.cc", "2 times")

    def test_part_of_a_line_is_not_the_line(self):
        self.refuses(LIST, "twice", "0 times", source=SOURCE.replace("2 * x;", "2 * x;  // doubled"))

    def test_changes_of_the_same_lines_are_refused(self):
        self.refuses(LIST.replace("in a/f.cc\n+ ", "in a/f.cc\n   if (x < 0) return 0;\n+ ")
                     .replace(" int f(int x) {\n", "").replace("&& !simu", "&& simu")
                     .replace('return 0;\n\nbug', 'return 0;\n   return 2 * x;\n\nbug'), "same lines",
                     source=SOURCE)

    def test_file_that_is_not_compiled_is_refused(self):
        self.refuses(LIST.replace("in a/f.cc\n+", "in a/g.cc\n+"), "twice", "a/g.cc")

    def test_change_without_the_switch_is_refused(self):
        self.refuses(LIST.replace('simulation::bug("twice")', "true"), "twice", "does not call")

    def test_switch_of_another_bug_is_refused(self):
        self.refuses(LIST.replace('simulation::bug("twice")', 'simulation::bug("keep_sign")'), "twice", "does not call")

    def test_change_without_old_text_is_refused(self):
        self.refuses(LIST.replace("   return 2 * x;\n", ""), "twice", "no old text")

    def test_bug_without_a_change_is_refused(self):
        self.refuses(LIST + "bug idle: Nothing.\n", "idle", "has no changes")

    def test_bug_that_is_named_twice_is_refused(self):
        self.refuses(LIST + LIST, "keep_sign")

    def test_check_names_the_list_that_does_not_fit(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "a"))
            with_bugs.write(os.path.join(folder, "a", "f.cc"), SOURCE)
            with_bugs.write(os.path.join(folder, "good.txt"), LIST)
            with_bugs.write(os.path.join(folder, "old.txt"), LIST.replace("return 2 * x", "return 3 * x"))
            with_bugs.write(os.path.join(folder, "moved.txt"), LIST.replace("a/f.cc", "b/f.cc"))

            def check(*lists):
                result = subprocess.run([TOOL, "--check", *lists], cwd=folder, capture_output=True, encoding="utf-8",
                                        check=False)
                return result.returncode, result.stderr

            self.assertEqual(check("good.txt"), (0, ""))
            status, errors = check("old.txt", "good.txt", "moved.txt")
            self.assertEqual(status, 1)
            self.assertRegex(errors, r"^old\.txt: .*\nmoved\.txt: .*\n$")

    def test_unknown_line_is_refused(self):
        self.refuses(LIST + "buggy: x\n", "buggy")


if __name__ == "__main__":
    unittest.main()
