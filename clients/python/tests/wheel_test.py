#!/usr/bin/python3
"""The wheel: its contents, its installation, and its types beside another copy of them."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

import support

import gradwire_client as gw

MODULES = ["__init__", "_proto/__init__", "_proto/gateway_pb2", "_proto/gateway_pb2_grpc", "aio", "arrays", "base",
           "client", "errors", "functions", "plans", "progress", "values", "version"]
# Prints what a program sees of the installed package.
USE = """
import gradwire_client, gradwire_client._proto.gateway_pb2 as pb
print(gradwire_client.__version__, gradwire_client.__file__)
assert pb.CallRequest.FromString(pb.CallRequest(function="f").SerializeToString()).function == "f"
gradwire_client.Client("localhost:1").close()
"""
# Imports the package, and a module that protoc generated from the same file, in this order or the other one.
CLASH = """
import sys
from google.protobuf.internal import api_implementation
# Where the implementation in C++ does not exist, Protobuf chooses another one.
assert (api_implementation.Type() == "python") == (sys.argv[1] == "python")

def package():
    from gradwire_client._proto import gateway_pb2, gateway_pb2_grpc
    return gateway_pb2.Value(integer=1)

def copy():
    import gateway_pb2
    return gateway_pb2.Value(integer=1)

first, second = (package, copy) if sys.argv[2] == "package" else (copy, package)
first, second = first(), second()
assert first.SerializeToString() == second.SerializeToString()
assert type(first) is not type(second)
"""


def run(*command, **options):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=support.LIMIT,
                            **options)
    if result.returncode:
        raise AssertionError(f"{command[0]} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


class Wheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_contents(self):
        with zipfile.ZipFile(support.WHEEL) as wheel:
            names = set(wheel.namelist())
            info = f"gradwire_client-{gw.__version__}.dist-info"
            self.assertEqual(names, {*(f"gradwire_client/{each}.py" for each in MODULES),
                                     *(f"{info}/{each}" for each in ("METADATA", "RECORD", "WHEEL", "top_level.txt"))})
            metadata = wheel.read(f"{info}/METADATA").decode()
            self.assertIn("Root-Is-Purelib: true", wheel.read(f"{info}/WHEEL").decode())
        needed = [line.split()[1] for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
        self.assertEqual(sorted(needed), ["grpcio", "numpy", "protobuf"])
        self.assertIn("with Client(", metadata)  # README.md

    def test_the_version_is_that_of_gradwire(self):
        with open(VERSION_HEADER, encoding="utf-8") as file:
            numbers = [line.split()[2] for line in file
                       if re.match("#define GRADWIRE_VERSION_(MAJOR|MINOR|PATCH) ", line)]
        self.assertEqual(".".join(numbers), gw.__version__)

    def test_installation_into_an_empty_folder(self):
        # Debian's packages of the dependencies stay visible.
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-cache-dir",
            "--disable-pip-version-check", "--root-user-action=ignore", "--target", self.folder, support.WHEEL)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": self.folder}
        output = run(sys.executable, "-c", USE, env=environment, cwd=self.folder)
        self.assertEqual(output.split(), [gw.__version__, f"{self.folder}/gradwire_client/__init__.py"])

    def test_another_copy_of_the_protocol(self):
        run("protoc", f"-I{os.path.dirname(PROTO)}", f"--python_out={self.folder}", PROTO)
        for implementation in ("cpp", "python"):
            for first in ("package", "copy"):
                with self.subTest(implementation=implementation, first=first):
                    run(sys.executable, "-c", CLASH, implementation, first,
                        cwd=self.folder, env={"PYTHONPATH": f"{self.folder}:{support.WHEEL}",
                                              "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation})


if __name__ == "__main__":
    # After the wheel, which the module support has taken.
    PROTO, VERSION_HEADER = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
    support.main()
