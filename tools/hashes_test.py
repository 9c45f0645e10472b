#!/usr/bin/env python3
"""tools/unpack_wheels and tools/check_hash refuse a file whose hash is not the pinned one, and every download of
tools/setup is pinned. No test uses the network: a folder is the package index."""

import base64
import hashlib
import os
import re
import subprocess
import tempfile
import unittest
import zipfile

TOOLS = os.path.dirname(os.path.realpath(os.path.join(os.path.dirname(__file__), "unpack_wheels")))
REQUIREMENTS = os.path.join(TOOLS, "requirements")
WRONG = "0" * 64


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def make_wheel(folder, name, text):
    """Writes a wheel with one module, and returns its path."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    path = os.path.join(folder, f"{name}-1.0-py3-none-any.whl")
    with zipfile.ZipFile(path, "w") as wheel:
        for inner, content in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            wheel.writestr(inner, content)
    return path


class Wheels(unittest.TestCase):
    def setUp(self):
        self.root = self.enterContext(tempfile.TemporaryDirectory())
        self.index = os.path.join(self.root, "index")
        os.mkdir(self.index)
        self.first = make_wheel(self.index, "first", "number = 1\n")
        self.second = make_wheel(self.index, "second", "number = 2\n")

    def unpack(self, requirements):
        """The result of tools/unpack_wheels with this requirements file, and the unpacked files."""
        self.file = write(os.path.join(self.root, "wheels.txt"), requirements)
        folder = os.path.join(self.root, "out")
        result = subprocess.run(
            [os.path.join(TOOLS, "unpack_wheels"), folder, self.file],
            env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.index, "PIP_CONFIG_FILE": os.devnull},
            capture_output=True, encoding="utf-8", check=False)
        wheels = os.path.join(folder, "wheels")
        return result, os.listdir(wheels) if os.path.isdir(wheels) else []

    def both(self, first, second):
        return f"# Two.\nfirst==1.0 \\\n    --hash=sha256:{first}\nsecond==1.0 \\\n    --hash=sha256:{second}\n"

    def test_wheels_with_the_pinned_hashes_are_unpacked(self):
        result, files = self.unpack(self.both(sha256(self.first), sha256(self.second)))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertLessEqual({"first.py", "second.py"}, set(files))

    def test_one_wrong_hash_refuses_everything_in_one_sentence(self):
        good = sha256(self.second)
        result, files = self.unpack(self.both(sha256(self.first), WRONG))
        self.assertEqual(result.returncode, 1)
        self.assertEqual(files, [])
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn(f"wrong hash of second-1.0-py3-none-any.whl: got sha256 {good}, expected {WRONG} ({self.file})",
                      result.stderr)
        self.assertIn("run tools/setup again", result.stderr)
        self.assertIn("do not use the file", result.stderr)

    def test_changed_wheel_is_refused(self):
        requirements = self.both(sha256(self.first), sha256(self.second))
        make_wheel(self.index, "first", "number = 3\n")
        result, files = self.unpack(requirements)
        self.assertEqual((result.returncode, files), (1, []))
        self.assertIn(f"wrong hash of first-1.0-py3-none-any.whl: got sha256 {sha256(self.first)}", result.stderr)

    def test_second_of_two_pinned_hashes_is_accepted(self):
        hashes = f"{WRONG} --hash=sha256:{sha256(self.first)}"
        self.assertEqual(self.unpack(self.both(hashes, sha256(self.second)))[0].returncode, 0)

    def test_requirement_without_a_hash_is_refused(self):
        result, files = self.unpack(f"first==1.0 --hash=sha256:{sha256(self.first)}\nsecond==1.0\n")
        self.assertEqual((result.returncode, files), (1, []))
        self.assertIn("Hashes are required", result.stderr)

    def test_other_failures_of_pip_are_shown(self):
        result, _ = self.unpack(f"third==1.0 --hash=sha256:{WRONG}\n")
        self.assertEqual(result.returncode, 1)
        self.assertIn("No matching distribution found for third==1.0", result.stderr)


class Files(unittest.TestCase):
    def check(self, content, listed):
        with tempfile.TemporaryDirectory() as folder:
            file = write(os.path.join(folder, "server_1.deb"), content)
            names = write(os.path.join(folder, "list.sha256"), f"# A comment.\n{listed}\n")
            return subprocess.run([os.path.join(TOOLS, "check_hash"), file, names],
                                  capture_output=True, encoding="utf-8", check=False)

    def test_hashes(self):
        good = hashlib.sha256(b"content").hexdigest()
        self.assertEqual(self.check("content", f"{good}  server_1.deb").returncode, 0)
        changed = self.check("changed", f"{good}  server_1.deb")
        self.assertEqual(changed.returncode, 1)
        self.assertEqual(changed.stderr.count("\n"), 1)
        got = hashlib.sha256(b"changed").hexdigest()
        self.assertIn(f"wrong hash of server_1.deb: got sha256 {got}, expected {good}", changed.stderr)
        self.assertIn("run tools/setup again", changed.stderr)
        # The name of another version.
        self.assertEqual(self.check("content", f"{good}  server_2.deb").returncode, 3)


class Pins(unittest.TestCase):
    def test_every_wheel_has_an_exact_version_and_a_hash(self):
        for name in ("libtorch.txt", "cuda.txt", "pytorch.txt"):
            with open(os.path.join(REQUIREMENTS, name), encoding="utf-8") as file:
                lines = [line for line in file.read().replace("\\\n", "").splitlines() if line and line[0] != "#"]
            self.assertGreaterEqual(len(lines), 3)
            for line in lines:
                self.assertRegex(line, r"^[a-z0-9-]+==[0-9.]+ +--hash=sha256:[0-9a-f]{64}$")

    def test_setup_downloads_wheels_and_etcd_only_with_the_checks(self):
        with open(os.path.join(TOOLS, "setup"), encoding="utf-8") as file:
            setup = file.read()
        self.assertNotIn("pip install", setup)
        self.assertEqual(re.findall(r'"\$tools/(\w+)" "', setup), ["unpack_wheels", "check_hash"])
        version = re.search(r"^libtorch_version=(\S+)$", setup, re.MULTILINE).group(1)
        with open(os.path.join(REQUIREMENTS, "libtorch.txt"), encoding="utf-8") as file:
            self.assertIn(f"torch=={version} ", file.read())


if __name__ == "__main__":
    unittest.main()
