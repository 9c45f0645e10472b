#!/usr/bin/python3
"""Tests trim_cache with folders that the test fills."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trim_cache")
BLOCK = 4096


class TrimCache(unittest.TestCase):
    def setUp(self):
        parent = tempfile.TemporaryDirectory()
        self.addCleanup(parent.cleanup)
        self.folder = os.path.join(parent.name, "cache")

    def add(self, name, written, read):
        """Adds a file of ten blocks that was written and read so many days ago."""
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(b"x" * (10 * BLOCK))
            out.flush()
            os.fsync(out.fileno())
        now = time.time()
        os.utime(path, (now - read * 86400, now - written * 86400))

    def trim(self, *arguments):
        run = subprocess.run([sys.executable, PROGRAM, self.folder, *arguments], capture_output=True, text=True,
                             check=False)
        left = sorted(name for _, _, names in os.walk(self.folder) for name in names)
        return run.returncode, left, run.stderr

    def test_removes_what_was_not_read_for_longest(self):
        self.add("ac/1/old", written=9, read=9)
        self.add("cas/1/old_but_read", written=9, read=1)
        self.add("cas/2/written_later_than_read", written=2, read=8)
        self.add("cas/3/new", written=0, read=0)
        code, left, message = self.trim(f"--at_most={35 * BLOCK}", "--keep_free=0")
        self.assertEqual((code, left), (0, ["new", "old_but_read", "written_later_than_read"]))
        self.assertIn("not read for longest", message)
        code, left, _ = self.trim(f"--at_most={15 * BLOCK}", "--keep_free=0")
        self.assertEqual((code, left), (0, ["new"]))

    def test_leaves_what_is_small_enough(self):
        self.add("cas/1/a", written=99, read=99)
        self.assertEqual(self.trim(f"--at_most={10 * BLOCK}", "--keep_free=0"), (0, ["a"], ""))

    def test_removes_more_if_the_file_system_is_full(self):
        self.add("cas/1/a", written=2, read=2)
        self.add("cas/2/b", written=1, read=1)
        total = shutil.disk_usage(self.folder).total
        code, left, _ = self.trim(f"--keep_free={2 * total}")
        self.assertEqual((code, left), (0, []))

    def test_creates_the_folder(self):
        self.assertEqual(self.trim(), (0, [], ""))
        self.assertTrue(os.path.isdir(self.folder))

    def test_refuses_other_arguments(self):
        for wrong in ["--at_most=much", "--at_mots=1", "another"]:
            code, _, message = self.trim(wrong)
            self.assertEqual((wrong, code), (wrong, 2))
            self.assertIn("usage", message)


if __name__ == "__main__":
    unittest.main()
