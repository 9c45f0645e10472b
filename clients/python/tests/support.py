"""Runs the tests of one file with the package from its wheel: FILE WHEEL [unittest's arguments]."""

import os
import sys
import time
import unittest
import xml.etree.ElementTree as xml

# Seconds until a test gives up waiting for an event.
LIMIT = 30


def use_wheel():
    """Makes the package of the wheel importable. A wheel of pure Python needs no installation for this."""
    try:
        import google.protobuf
        import grpc
        import numpy
    except ImportError as error:
        sys.exit(f"cannot test the Python client: {error}; install python3-grpcio, python3-protobuf and python3-numpy")
    wheel = os.path.abspath(sys.argv.pop(1))
    sys.path.insert(0, wheel)
    return wheel


WHEEL = use_wheel()


def needs(resource, reason):
    """Skips the test if there is a reason to; fails it if this machine must have the resource."""
    if reason and resource in os.environ.get("GRADWIRE_TEST_MUST_HAVE", "").split(","):
        raise AssertionError(f"this machine must have {resource}: {reason}")
    if reason:
        raise unittest.SkipTest(reason)


def wait_until(condition, what):
    """Waits for something that another thread does, and that has no event."""
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"after {LIMIT} s still not: {what}")
        time.sleep(0.002)


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
