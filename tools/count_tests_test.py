#!/usr/bin/python3
"""Tests count_tests.py with build event files that the test writes."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "count_tests.py")


def summary(label, status):
    return {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}}


def completed(label, success):
    return {"id": {"targetCompleted": {"label": label}}, "completed": {"success": True} if success else {}}


def result(label, seconds, xml=None):
    outputs = [{"name": "test.xml", "uri": "file://" + xml}] if xml else []
    return {
        "id": {"testResult": {"label": label}},
        "testResult": {"testAttemptDurationMillis": str(int(seconds * 1000)), "testActionOutput": outputs},
    }


class CountTests(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return path

    def count(self, events, exit_status=0, slowest=0, tail=""):
        path = self.file("events.json", "".join(json.dumps(event) + "\n" for event in events) + tail)
        return self.run_on(path, exit_status, slowest)

    def run_on(self, path, exit_status, slowest=0):
        printed = subprocess.run(
            ["/usr/bin/python3", PROGRAM, path, str(exit_status), str(slowest)],
            check=True, stdout=subprocess.PIPE, universal_newlines=True,
        ).stdout
        return printed.splitlines()

    def test_passed_and_failed_targets_are_counted_and_the_failed_named(self):
        lines = self.count([summary("//a:x", "PASSED"), summary("//a:y", "FAILED"), completed("//a:x", True)], 3)
        self.assertEqual(lines, ["1 1 0", "  failed: //a:y"])

    def test_flaky_and_timed_out_tests_have_failed(self):
        lines = self.count([summary("//a:x", "FLAKY"), summary("//a:y", "TIMEOUT")], 3)
        self.assertEqual(lines[0], "0 2 0")

    def test_target_that_does_not_build_has_failed(self):
        lines = self.count([completed("//a:library", False), summary("//a:x", "PASSED")], 1)
        self.assertEqual(lines, ["1 1 0", "  failed: //a:library"])

    def test_test_that_does_not_build_has_failed_once(self):
        lines = self.count([completed("//a:x", False), summary("//a:x", "NO_STATUS")], 1)
        self.assertEqual(lines[0], "0 1 0")

    def test_package_that_does_not_load_has_failed(self):
        lines = self.count([{"id": {"progress": {}}, "progress": {"stderr": "package contains errors: a/b"}}], 1)
        self.assertEqual(lines, ["0 1 0", "  failed: //a/b"])

    def test_bazel_that_fails_without_a_target_is_one_failure(self):
        self.assertEqual(self.count([], 2), ["0 1 0"])
        self.assertEqual(self.run_on("/nowhere", 37), ["0 1 0"])

    def test_half_a_line_of_a_killed_bazel_is_passed_over(self):
        self.assertEqual(self.count([summary("//a:x", "PASSED")], 8, tail='{"id": {"testSu'), ["1 1 0"])

    def test_skipped_cases_are_counted_and_named_with_their_reason(self):
        xml = self.file("test.xml", """<?xml version="1.0"?>
<testsuites><testsuite name="Ipv6">
  <testcase name="Works" status="run" result="completed" classname="Ipv6"/>
  <testcase name="Skips" status="run" result="skipped" classname="Ipv6">
    <skipped message="store/x_test.cc:12&#x0A;this test needs ipv6: no address&#x0A;"><![CDATA[]]></skipped>
  </testcase>
</testsuite></testsuites>""")
        lines = self.count([summary("//a:x", "PASSED"), result("//a:x", 1, xml)])
        self.assertEqual(lines, ["1 0 1", "  skipped: //a:x Ipv6.Skips: this test needs ipv6: no address"])

    def test_missing_or_broken_test_xml_counts_nothing(self):
        broken = self.file("test.xml", "<testsuites><tests")
        events = [summary("//a:x", "PASSED"), result("//a:x", 1, broken), result("//a:x", 1, "/nowhere")]
        self.assertEqual(self.count(events), ["1 0 0"])

    def test_slowest_targets_are_named_slowest_first(self):
        events = [result("//a:x", 1), result("//a:y", 30.26), result("//a:z", 2)]
        self.assertEqual(self.count(events, slowest=2)[1:], ["  slow: //a:y took 30.3 s", "  slow: //a:z took 2.0 s"])

    def test_wrong_arguments_are_an_error(self):
        self.assertNotEqual(subprocess.run(["/usr/bin/python3", PROGRAM], stderr=subprocess.DEVNULL).returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
