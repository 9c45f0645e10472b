#!/usr/bin/env python3
"""Runs oracle.py --check, which compares the recorded losses with those that PyTorch for Python computes.

The case counts as skipped on a machine without PyTorch (tools/setup --pytorch), or with another version of it.
"""
import os
import subprocess
import sys
import unittest
import xml.etree.ElementTree as xml

FOLDER = os.path.dirname(os.path.realpath(__file__))
VERSION = "2.11.0"
# The folder where tools/setup --pytorch installs PyTorch.
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
PYTORCH = os.environ.get("GRADWIRE_PYTORCH") or os.path.join(CACHE, "gradwire", "pytorch-" + VERSION)


def environment():
    return dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [PYTORCH, os.environ.get("PYTHONPATH")])))


def missing():
    """Why the oracle cannot run here; empty if it can."""
    asked = subprocess.run([sys.executable, "-c", "import numpy, torch; print(torch.__version__)"], env=environment(),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    if asked.returncode:
        return "PyTorch for Python is not installed (tools/setup --pytorch): " + asked.stderr.strip().splitlines()[-1]
    found = asked.stdout.strip()
    return "" if found.startswith(VERSION) else f"PyTorch for Python is {found}, expected {VERSION}"


class OracleRecording(unittest.TestCase):
    def test_losses_are_those_of_pytorch(self):
        reason = missing()
        if reason and "pytorch" in os.environ.get("GRADWIRE_TEST_MUST_HAVE", "").split(","):
            self.fail("this machine must have pytorch: " + reason)
        if reason:
            self.skipTest(reason)
        checked = subprocess.run([sys.executable, os.path.join(FOLDER, "oracle.py"), "--check"], env=environment(),
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout)


class Result(unittest.TextTestResult):
    """Notes the cases for Bazel's test.xml, from which tools/test counts the skipped ones."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.suites = xml.Element("testsuites")
        self.suite = xml.SubElement(self.suites, "testsuite", name="oracle_recording_test")

    def startTest(self, test):
        super().startTest(test)
        self.case = xml.SubElement(self.suite, "testcase", name=test.id().rpartition(".")[2],
                                   classname=type(test).__name__)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        xml.SubElement(self.case, "skipped", message=f"{os.path.basename(__file__)}\n{reason}")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        xml.SubElement(self.case, "failure", message=str(error[1]))


def main():
    result = unittest.main(exit=False, testRunner=unittest.TextTestRunner(resultclass=Result, verbosity=2)).result
    if os.environ.get("XML_OUTPUT_FILE"):
        xml.ElementTree(result.suites).write(os.environ["XML_OUTPUT_FILE"], encoding="utf-8", xml_declaration=True)
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
