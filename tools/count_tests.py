#!/usr/bin/python3
"""Counts the tests of one Bazel run from its build event file.

usage: count_tests.py EVENTS EXIT_STATUS [SLOWEST]

EVENTS       the file that Bazel wrote for --build_event_json_file
EXIT_STATUS  Bazel's exit status
SLOWEST      the number of the slowest test targets to name (default 0)

The first line printed is `PASSED FAILED SKIPPED`:
  PASSED   test targets whose every run and attempt passed
  FAILED   targets that failed to load, to build or to pass; a test that passed at a second attempt has failed
  SKIPPED  test cases that skipped themselves (GTEST_SKIP) inside test targets
The other lines name the failed targets, the skipped cases with their reasons, and the slowest tests.

A Bazel run that failed although no target failed (a wrong option, a crash) counts as one failure.
"""

import json
import re
import sys
import urllib.parse
import urllib.request
import xml.etree.ElementTree


class Run:
    """The results of the targets of one Bazel run, from its events."""

    def __init__(self):
        self.tests = set()
        self.broken = set()
        self.good = {}  # label: whether all events about the target so far are good
        self.seconds = {}  # label: the time of its longest run
        self.xml_files = {}  # label: the test.xml of each of its runs

    def note(self, label, good):
        self.good[label] = self.good.get(label, True) and good

    def add(self, event):
        identity = event.get("id", {})
        if "testSummary" in identity:
            label = identity["testSummary"]["label"]
            self.tests.add(label)
            self.note(label, event.get("testSummary", {}).get("overallStatus") == "PASSED")
        elif "testResult" in identity:
            self.add_result(identity["testResult"]["label"], event.get("testResult", {}))
        elif "targetCompleted" in identity:
            if not event.get("completed", {}).get("success"):
                self.broken.add(identity["targetCompleted"]["label"])
        elif "progress" in identity:
            # A package that does not load has no event: only the progress output names it.
            text = event.get("progress", {}).get("stderr", "")
            for package in re.findall(r"package contains errors: (\S+)", text):
                self.broken.add("//" + package)
        elif "aborted" in event:
            for kind in ("unconfiguredLabel", "configuredLabel", "targetConfigured"):
                if kind in identity:
                    self.broken.add(identity[kind]["label"])
            self.broken.update(identity.get("pattern", {}).get("pattern", []))

    def add_result(self, label, result):
        seconds = int(result.get("testAttemptDurationMillis", 0)) / 1000
        self.seconds[label] = max(self.seconds.get(label, 0), seconds)
        for output in result.get("testActionOutput", []):
            if output.get("name") == "test.xml":
                self.xml_files.setdefault(label, []).append(output.get("uri", ""))

    def counts(self, exit_status):
        """(passed, failed), as the comment at the top of this file defines them."""
        for label in self.broken:
            self.note(label, False)
        passed = sum(1 for label in self.tests if self.good[label])
        failed = sum(1 for good in self.good.values() if not good)
        if exit_status != 0 and failed == 0:
            failed = 1
        return passed, failed

    def failed_labels(self):
        return sorted(label for label, good in self.good.items() if not good)

    def skipped_cases(self):
        """Tuples (label, case, reason) of the test cases that skipped themselves."""
        cases = []
        for label, files in sorted(self.xml_files.items()):
            for uri in files:
                cases += [(label, case, reason) for case, reason in skipped_in(uri)]
        return cases


def skipped_in(uri):
    """Pairs (case, reason) of the skipped cases in a test.xml of GoogleTest."""
    try:
        path = urllib.request.url2pathname(urllib.parse.urlparse(uri).path)
        root = xml.etree.ElementTree.parse(path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return []  # A test that crashed left no file or an incomplete one. It counts as failed.
    cases = []
    for case in root.iter("testcase"):
        mark = case.find("skipped")
        if mark is None and case.get("result") != "skipped":
            continue
        # The message of GoogleTest is `FILE:LINE`, and the reason after it.
        message = (mark.get("message") or mark.text or "") if mark is not None else ""
        reason = " ".join(line for line in message.split("\n")[1:] if line.strip())
        cases.append(("%s.%s" % (case.get("classname", ""), case.get("name", "")), reason))
    return cases


def read(path):
    run = Run()
    try:
        with open(path, encoding="utf-8") as events:
            for line in events:
                try:
                    run.add(json.loads(line))
                except ValueError:
                    pass  # The line is incomplete because Bazel was killed.
    except OSError:
        pass  # Bazel did not start. Its exit status counts.
    return run


def main(arguments):
    if len(arguments) not in (2, 3):
        sys.exit(__doc__)
    run = read(arguments[0])
    passed, failed = run.counts(int(arguments[1]))
    skipped = run.skipped_cases()
    print(passed, failed, len(skipped))
    for label in run.failed_labels():
        print("  failed: %s" % label)
    for label, case, reason in skipped:
        print("  skipped: %s %s: %s" % (label, case, reason or "no reason given"))
    slowest = int(arguments[2]) if len(arguments) > 2 else 0
    for label in sorted(run.seconds, key=run.seconds.get, reverse=True)[:slowest]:
        print("  slow: %s took %.1f s" % (label, run.seconds[label]))


if __name__ == "__main__":
    main(sys.argv[1:])
