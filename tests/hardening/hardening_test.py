#!/usr/bin/env python3
"""The binaries of --config=opt have the protections that tools/hardening checks, and these work. tools/hardening names each
protection that a binary lacks.

usage: hardening_test.py PROGRAM LIBRARY TOOL
"""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

PROGRAM, LIBRARY, TOOL = map(os.path.realpath, sys.argv[1:4])


def run(*command):
    # The messages of the C library go to the terminal if there is one.
    return subprocess.run(command, env={**os.environ, "LIBC_FATAL_STDERR_": "1"}, capture_output=True, encoding="utf-8",
                          check=False)


class Optimised(unittest.TestCase):
    def test_has_all_protections(self):
        result = run(TOOL, "--fortified", PROGRAM, LIBRARY)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_works(self):
        self.assertEqual(run(PROGRAM).stdout, "short \n")

    def test_overflow_into_the_next_member_ends_the_program(self):
        result = run(PROGRAM, "fortify")
        self.assertEqual(result.returncode, -signal.SIGABRT)
        self.assertIn("buffer overflow detected", result.stderr)

    def test_overflow_of_numbers_on_the_stack_ends_the_program(self):
        result = run(PROGRAM, "stack")
        self.assertEqual(result.returncode, -signal.SIGABRT)
        self.assertIn("stack smashing detected", result.stderr)


class Tool(unittest.TestCase):
    def report(self, *flags, tool_flags=()):
        """The lines that tools/hardening prints about a program that g++ builds with these flags."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "built")
            source = os.path.join(folder, "built.cc")
            with open(source, "w", encoding="utf-8") as file:
                file.write("#include <cstdio>\n#include <cstring>\n"
                           "int main(int n, char** v) { char b[8]; std::strcpy(b, v[n - 1]); return std::puts(b); }\n")
            built = run("g++", source, "-o", path, *flags)
            self.assertEqual(built.returncode, 0, built.stderr)
            result = run(TOOL, *tool_flags, path)
            self.assertEqual(result.returncode, 1 if result.stderr else 0)
            return result.stderr.replace(path, "FILE").splitlines()

    GOOD = ("-O2", "-fPIE", "-pie", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,now,-z,noexecstack")

    def test_good_program_has_no_report(self):
        self.assertEqual(self.report(*self.GOOD, tool_flags=["--fortified"]), [])

    def test_each_missing_protection_is_named(self):
        for flag, what in (
                ("-no-pie", "not position-independent"),
                ("-Wl,-z,norelro", "no segment GNU_RELRO"),
                ("-Wl,-z,lazy", "symbols are bound while it runs"),
                ("-Wl,-z,execstack", "its stack is executable"),
                ("-fno-stack-protector", "no check of the stack"),
                ("-U_FORTIFY_SOURCE", "no checks of bounds"),
        ):
            with self.subTest(flag):
                lines = self.report(*self.GOOD, flag, tool_flags=["--fortified"])
                self.assertEqual(len(lines), 1, lines)
                self.assertTrue(lines[0].startswith(f"hardening: FILE: {what}; build it with --config=opt"), lines[0])

    def test_missing_checks_of_bounds_are_allowed_in_builds_without_optimisation(self):
        self.assertEqual(self.report(*self.GOOD, "-U_FORTIFY_SOURCE"), [])

    def test_other_files_are_refused(self):
        result = run(TOOL, __file__)
        self.assertEqual(result.returncode, 2)
        self.assertIn("not an ELF file", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
