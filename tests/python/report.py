"""Runs the tests of one file, and notes each case where tools/test counts skipped cases.

A test calls needs() for what a machine may lack, and main() at its end.
"""

import os
import sys
import unittest
import xml.etree.ElementTree as xml


def needs(resource, reason):
    """Skips the test if there is a reason to; fails it if this machine must have the resource."""
    if reason and resource in os.environ.get("GRADWIRE_TEST_MUST_HAVE", "").split(","):
        raise AssertionError(f"this machine must have {resource}: {reason}")
    if reason:
        raise unittest.SkipTest(reason)


def python_torch():
    """The folder in which Python finds PyTorch. Skips the test if tools/setup --pytorch has not made it."""
    with open(os.environ["GRADWIRE_PYTORCH_LOCATION"], encoding="utf-8") as file:
        folder, state = file.read().split("\n")[:2]
    needs("python_torch", f"PyTorch for Python not found in {folder}: run tools/setup --pytorch" if state != "found" else "")
    return folder


class Result(unittest.TextTestResult):
    """Also notes each case for Bazel's test.xml, which tools/test counts skipped cases from."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.suite = xml.Element("testsuite", name=os.path.basename(sys.argv[0]))

    def startTest(self, test):
        super().startTest(test)
        name = test.id().rpartition(".")
        self.case = xml.SubElement(self.suite, "testcase", name=name[2], classname=name[0].rpartition(".")[2])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        # The form of GoogleTest: the place, and then the reason.
        xml.SubElement(self.case, "skipped", message=f"{os.path.basename(sys.argv[0])}\n{reason}")

    def addError(self, test, error):
        super().addError(test, error)
        xml.SubElement(self.case, "failure", message=str(error[1]))

    addFailure = addError


def main():
    """Runs the cases of the main module, and ends the program."""
    program = unittest.main(module="__main__", exit=False, testRunner=unittest.TextTestRunner(resultclass=Result))
    result = program.result
    path = os.environ.get("XML_OUTPUT_FILE")
    if path:
        suites = xml.Element("testsuites")
        suites.append(result.suite)
        xml.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)
    if not result.testsRun:
        sys.exit("no test ran")
    sys.exit(not result.wasSuccessful())
