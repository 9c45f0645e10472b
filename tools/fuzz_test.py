#!/usr/bin/env python3
"""tools/fuzz runs fuzzers, reports their numbers and crashes, and makes corpora. The fuzzers of this test are small programs
that it compiles."""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import subprocess
import tempfile
import unittest
import unittest.mock

TOOL = os.path.realpath(os.path.join(os.path.dirname(__file__), "fuzz"))
LOADER = importlib.machinery.SourceFileLoader("fuzz", TOOL)
fuzz = importlib.util.module_from_spec(importlib.util.spec_from_loader("fuzz", LOADER))
LOADER.exec_module(fuzz)

SOURCE = """
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
static void* volatile last;
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size > 1 && data[0] == 'r') { std::fprintf(stderr, "fuzzer: the answer is wrong\\n"); std::abort(); }
  if (size > 1 && data[0] == 'o') { int numbers[2] = {}; last = numbers; return static_cast<int*>(last)[data[1]]; }
  if (size > 1 && data[0] == 'm') { last = std::malloc(std::size_t{1} << 30); std::free(last); }
  return 0;
}
"""
LOG = """INFO: seed corpus: files: 10
#11	INITED cov: 100 ft: 200 corp: 9/1Kb exec/s: 0 rss: 60Mb
#500	NEW    cov: 110 ft: 250 corp: 12/1Kb lim: 20 exec/s: 100 rss: 60Mb L: 9/9 MS: 1 ChangeByte-
#1000	DONE   cov: 120 ft: 260 corp: 15/2Kb lim: 20 exec/s: 333 rss: 60Mb
stat::number_of_executed_units: 1000
stat::average_exec_per_sec:     333
"""


def printed(function, *arguments):
    """The result of the function, and its output."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        result = function(*arguments)
    return result, output.getvalue()


class Logs(unittest.TestCase):
    def test_numbers(self):
        result = fuzz.Result(LOG, 0)
        self.assertEqual((result.cov, result.features, result.corpus, result.new), (120, 260, 15, 6))
        self.assertEqual((result.runs, result.rate, result.reason, result.input), (1000, 333, None, None))

    def test_log_of_a_program_that_did_not_start(self):
        result = fuzz.Result("", 127)
        self.assertEqual((result.cov, result.reason), (0, "it ended with status 127"))

    def test_reasons(self):
        for log, reason in (
                ("fuzzer: wrong records\n==1== ERROR: libFuzzer: deadly signal\n", "wrong records"),
                ("a.cc:3:1: runtime error: signed integer overflow\nSUMMARY: x\n", "signed integer overflow"),
                ("==1==ERROR: AddressSanitizer: y\nSUMMARY: AddressSanitizer: heap-use-after-free a.cc:3 in f\n",
                 "AddressSanitizer: heap-use-after-free a.cc:3 in f"),
                ("ERROR: it did not end\n", "it did not end"),
        ):
            self.assertEqual(fuzz.Result(LOG + log, 1).reason, reason)


class Programs(unittest.TestCase):
    def setUp(self):
        why = fuzz.has_libfuzzer()
        if why:
            self.skipTest(why)
        self.root = self.enterContext(tempfile.TemporaryDirectory())
        self.fuzzer = fuzz.Fuzzer("//tests/fuzz:fuzz_sample", os.path.join(self.root, "cache"))
        self.fuzzer.seeds = os.path.join(self.root, "corpus")
        self.bin = os.path.join(self.root, "bin")
        program = self.fuzzer.program(self.bin)
        os.makedirs(os.path.dirname(program))
        os.mkdir(self.fuzzer.seeds)
        source = os.path.join(self.root, "sample.cc")
        with open(source, "w", encoding="utf-8") as file:
            file.write(SOURCE)
        subprocess.run([fuzz.CLANG, "-g1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined", source,
                        "-o", program], check=True)

    def seed(self, text):
        with open(os.path.join(self.fuzzer.seeds, "seed"), "w", encoding="utf-8") as file:
            file.write(text)

    def run_it(self):
        return printed(fuzz.run_all, [self.fuzzer], self.bin, 0, 1)

    def test_good_inputs_pass(self):
        self.seed("good")
        failed, output = self.run_it()
        self.assertEqual(failed, 0, output)
        self.assertRegex(output, r"fuzz: sample +passed  cov +[1-9]")

    def test_crashes_are_reported_with_the_input_and_the_command(self):
        for text, reason in (("rx", "the answer is wrong"), ("o\x03", "stack-buffer-overflow"), ("mx", "malloc-limit|out-of-memory")):
            with self.subTest(text):
                self.seed(text)
                failed, output = self.run_it()
                self.assertEqual(failed, 1, output)
                self.assertRegex(output, f"sample: .*({reason})")
                path = output.rsplit(" ", 1)[1].strip()
                self.assertIn(f"to repeat it: bazel run --config=fuzz //tests/fuzz:fuzz_sample -- {path}", output)
                with open(path, encoding="utf-8") as file:
                    self.assertEqual(file.read(), text)
                # The command repeats it.
                repeated = subprocess.run([self.fuzzer.program(self.bin), "-malloc_limit_mb=256", path],
                                          capture_output=True, check=False)
                self.assertNotEqual(repeated.returncode, 0)

    def test_corpus_is_made_from_the_inputs_of_the_test(self):
        test = os.path.join(os.path.dirname(self.fuzzer.program(self.bin)), "sample_fuzzer_test")
        with open(test, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\nprintf ab >"$GRADWIRE_FUZZ_RECORD/1"\nprintf abcd >"$GRADWIRE_FUZZ_RECORD/2"\n')
        os.chmod(test, 0o755)
        self.seed("kept")
        old = "0" * 40
        with open(os.path.join(self.fuzzer.seeds, old), "w", encoding="utf-8"):
            pass
        worked, output = printed(fuzz.reseed, self.fuzzer, self.bin)
        self.assertTrue(worked, output)
        names = os.listdir(self.fuzzer.seeds)
        self.assertIn("seed", names)
        self.assertNotIn(old, names)
        self.assertTrue([name for name in names if fuzz.is_named_by_libfuzzer(name)])


class Sizes(unittest.TestCase):
    def test_largest_inputs_are_left_out_of_a_corpus(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, size in (("a", fuzz.MAX_CORPUS_BYTES - 10), ("b", 10), ("c", fuzz.MAX_CORPUS_BYTES)):
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(b"x" * size)
            fuzz.keep_small(folder)
            self.assertEqual(sorted(os.listdir(folder)), ["a", "b"])


class Options(unittest.TestCase):
    def test_machine_without_libfuzzer_is_reported(self):
        with unittest.mock.patch.object(fuzz, "CLANG", "/missing/clang++"):
            status, output = printed(fuzz.main, ["--list"])
        self.assertEqual(status, fuzz.NO_LIBFUZZER)
        self.assertRegex(output, "^fuzz: skipped: .*/missing/clang")

    def test_wrong_options_are_refused(self):
        for option in ("--second=3", "--jobs=0", "--seconds=x", "--reseed"):
            with contextlib.redirect_stderr(io.StringIO()) as output, self.assertRaises(SystemExit) as end:
                fuzz.main([option])
            self.assertEqual(end.exception.code, 2)
            self.assertIn("usage: tools/fuzz", output.getvalue())


if __name__ == "__main__":
    unittest.main()
