"""Runs the tests of one file with the package from its wheel: FILE WHEEL [unittest's arguments]."""

import os
import sys
import time

# The folders of this file and of tests/python are beside each other in the source tree and in the runfiles.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../../tests/python"))
from report import main, needs, python_torch

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


def wait_until(condition, what):
    """Waits for something that another thread does, and that has no event."""
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"after {LIMIT} s still not: {what}")
        time.sleep(0.002)
