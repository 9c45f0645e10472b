#!/usr/bin/python3
"""Programs of PyTorch under the launcher, unchanged.

usage: launch_test.py LAUNCHER PARAMETER_SERVER [unittest's arguments]
"""

import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "../python"))
import report
from free_port import free_port
from process import Process

LAUNCHER, PARAMETER_SERVER = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
PYTHON = "/usr/bin/python3"
# How soon the launchers notice that a node is gone, in seconds.
QUICK = "--rdzv_conf=keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1"


def program(name):
    return os.path.join(HERE, name)


class Launch(unittest.TestCase):
    def setUp(self):
        # One thread for each worker, and no more files than those in the folder that the test removes.
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.environment = {**os.environ, "PYTHONPATH": report.python_torch(), "PYTHON_EXEC": PYTHON,
                            "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": folder.name}

    def start(self, *arguments):
        process = Process(LAUNCHER, *arguments, env=self.environment)
        self.addCleanup(process.stop)
        return process

    def finish(self, process, status=0):
        got = process.wait()
        self.assertEqual(got, status, "\n".join(process.lines))

    def test_ddp_with_two_and_four_ranks(self):
        for size in (2, 4):
            with self.subTest(size=size):
                job = self.start("--standalone", f"--nproc_per_node={size}", program("ddp.py"))
                job.wait_for(f"rank . of {size}, restart 0: replicas are equal", count=size)
                self.finish(job)

    def test_init_method_tcp(self):
        port = free_port()
        job = self.start(f"--master_port={port}", "--nproc_per_node=2", program("ddp.py"), f"tcp://127.0.0.1:{port}")
        job.wait_for("rank . of 2, restart 0: replicas are equal", count=2)
        self.finish(job)

    def test_a_recorded_failure_and_a_restart(self):
        job = self.start("--standalone", "--nproc_per_node=2", "--max_restarts=1", program("ddp.py"), "--fail_once")
        job.wait_for("rank . of 2, restart 1: replicas are equal", count=2)
        self.finish(job)
        output = "\n".join(job.lines)
        self.assertNotIn("restart 0: replicas", output)

    def test_a_failure_without_a_restart_is_in_the_summary(self):
        job = self.start("--standalone", "--nproc_per_node=2", program("ddp.py"), "--fail_once")
        self.finish(job, status=1)
        # The text that PyTorch's @record wrote for the launcher.
        job.wait_for("ValueError: planted failure")

    def test_a_node_that_joins_and_one_that_is_lost(self):
        """Each round has other members, so nothing of an earlier one may be left in the store."""
        port = free_port()
        node = ("--nnodes=1:2", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=job",
                "--max_restarts=1", QUICK)
        first = self.start(*node, program("members.py"))
        first.wait_for("met 1 members, restart 0")
        second = self.start(*node, program("members.py"))
        first.wait_for("met 2 members, restart 0")
        second.wait_for("met 2 members, restart 0")
        second.kill()
        first.wait_for("met 1 members, restart 1")
        third = self.start(*node, program("members.py"))
        third.wait_for("met 2 members, restart 1")
        first.wait_for("met 2 members, restart 1")

    def test_a_trainer_in_python_and_a_parameter_server_in_cpp(self):
        script = f'if [ "$RANK" = 0 ]; then exec "{PARAMETER_SERVER}"; fi; exec {PYTHON} "{program("trainer.py")}"'
        job = self.start("--standalone", "--nproc_per_node=2", "--no_python", "sh", "-c", script)
        job.wait_for("trainer: got 3 4 5 from C..$")
        job.wait_for("server: the sum is 12$")
        self.finish(job)


if __name__ == "__main__":
    report.main()
