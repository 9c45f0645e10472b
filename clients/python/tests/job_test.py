#!/usr/bin/python3
"""The client against a real job: launcher, workers that run the example's program, gateway.

usage: job_test.py WHEEL LAUNCHER WORKER GATEWAY EXAMPLE [unittest's arguments]
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import unittest

import support
import numpy as np

import gradwire_client as gw
from process import LIMIT as START, Process

LAUNCHER, WORKER, GATEWAY, EXAMPLE = (os.path.abspath(sys.argv.pop(1)) for _ in range(4))
NAME = "model::Classifier"


class Job(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        init_method = f"file://{cls.folder.name}/job"
        cls.job = Process(LAUNCHER, "--standalone", "--nproc_per_node=2", WORKER, init_method)
        cls.addClassCleanup(cls.job.stop)
        cls.job.wait_for(" serves$", count=2)
        cls.gateway = Process(GATEWAY, f"--init_method={init_method}", "--address=127.0.0.1:0",
                              "--allow_operators=aten::add,aten::matmul")
        cls.addClassCleanup(cls.gateway.stop)
        cls.target = cls.gateway.wait_for(r"serving at (\S+:\d+) as worker")[0].group(1)

    def setUp(self):
        self.client = gw.Client(self.target, timeout=START)
        self.addCleanup(self.client.close)

    def test_workers_and_functions(self):
        self.assertEqual(sorted((each.name, each.state, each.gateway) for each in self.client.workers()),
                         [("default0", "alive", False), ("default1", "alive", False), ("gateway", "alive", True)])
        functions = self.client.functions
        self.assertIn("model::scale", functions)
        self.assertIn(NAME, functions)
        self.assertEqual(functions["model::scale"].functions[0].signature, "Tensor(Tensor,float64)")
        self.assertEqual(functions["model::scale"].functions[0].workers, ["default0", "default1"])
        self.assertTrue(functions["model::scale"].functions[0].idempotent)

    def test_arrays_of_each_dtype_and_size(self):
        for dtype in ("float32", "float64", "float16", "complex64", "complex128"):
            x = np.arange(6).reshape(2, 3).astype(dtype)
            result = self.client.call("model::scale", x, 2.0)
            self.assertEqual(result.dtype, x.dtype)
            np.testing.assert_array_equal(result, x * x.dtype.type(2))
        bfloat16 = gw.RawArray.from_numpy("bfloat16", np.array([1, 2.5], np.float32))
        result = self.client.call("model::scale", bfloat16, 2.0)
        np.testing.assert_array_equal(result.to_numpy() if isinstance(result, gw.RawArray) else result, [2, 5])
        for count in (0, 1, 1 << 18, (1 << 18) + 1, (5 << 18) + 3):
            x = np.arange(count, dtype=np.float32)
            sent = []
            result = self.client.call("model::scale", x, 2.0, worker="default1",
                                      progress=lambda *each: sent.append(each))
            np.testing.assert_array_equal(result, x * 2)
            self.assertEqual(sent[-1], (x.nbytes, x.nbytes))
        np.testing.assert_array_equal(self.client.call("model::scale", np.array(3.0), 2), 6)
        result = self.client.call("model::scale", np.ones(3, np.float32), 2.0, small_result=True)
        np.testing.assert_array_equal(result, 2)

    def test_streams(self):
        powers = list(self.client.stream("model::powers", np.array([2.0, 3.0]), 4, worker="default1"))
        np.testing.assert_array_equal(powers, [[2, 3], [4, 9], [8, 27], [16, 81]])
        # Large ones, in chunks.
        for i, power in enumerate(self.client.functions["model::powers"](np.full(100_000, 2.0), 5)):
            np.testing.assert_array_equal(power, 2.0 ** (i + 1))
        # A stream without an end, which the program leaves.
        with self.client.stream("model::powers", np.ones(50_000), 1 << 40) as stream:
            np.testing.assert_array_equal(next(stream), 1)
        with self.assertRaisesRegex(gw.InvalidArgument, "returns a stream: use CallStream"):
            self.client.call("model::powers", np.ones(1), 1)
        with self.assertRaisesRegex(gw.InvalidArgument, "returns Tensor, not a stream"):
            next(self.client.stream("model::scale", np.ones(1), 1.0))

    def test_operators(self):
        x = np.arange(4, dtype=np.float32).reshape(2, 2)
        np.testing.assert_array_equal(self.client.op("aten::add", x, x, alpha=3), 4 * x)
        np.testing.assert_array_equal(self.client.op("aten::matmul", x, x, worker="default0"), x @ x)
        with self.assertRaises(gw.PermissionDenied):
            self.client.op("aten::mul", x, x)

    def test_errors(self):
        with self.assertRaises(gw.NotFound):
            self.client.call("model::scal", 1)
        with self.assertRaises(gw.NotFound):
            self.client.call("model::scale", np.ones(1, np.float32), 2.0, worker="nobody")
        with self.assertRaises(gw.InvalidArgument) as caught:
            self.client.call("model::scale", np.ones(1, np.float32), "2")
        error = caught.exception
        self.assertEqual((error.argument, error.wanted, error.got, error.callee),
                         (2, "float64", "text", "model::scale"))

    def test_objects(self):
        random = np.random.default_rng(1)
        x = random.normal(size=(64, 4)).astype(np.float32)
        labels = (x[:, 0] > 0).astype(np.int64)
        with self.client.session() as session:
            classifier = session.create(NAME, 4, 16, 2, worker="default1")
            self.assertEqual((classifier.type, classifier.worker), (NAME, "default1"))
            losses = [classifier.fit(x, labels, 0.5) for _ in range(50)]
            self.assertLess(losses[-1], losses[0] / 2)
            with self.assertRaisesRegex(gw.RemoteError, "x and labels differ in their length") as caught:
                classifier.fit(x, labels[:3], 0.5)
            self.assertEqual(caught.exception.worker, "default1")
            kept = session.call("model::scale", x, 2.0, keep=True, worker="default1")
            np.testing.assert_array_equal(kept.fetch(), 2 * x)
            np.testing.assert_array_equal(session.op("aten::add", kept, 1), 2 * x + 1)
            kept.release()
            with self.client.session() as other:
                with self.assertRaises(gw.InvalidArgument):
                    other.call("model::scale", kept, 2.0)
        with self.assertRaises(gw.SessionEnded):
            classifier.scores(x)

    def test_asyncio(self):
        async def work():
            async with gw.AsyncClient(self.target, timeout=START) as client:
                arrays = [np.full(700_000 + i, i, np.float32) for i in range(4)]
                results = await asyncio.gather(*(client.call("model::scale", each, 2.0) for each in arrays))
                np.testing.assert_equal(results, [2 * each for each in arrays])
                async with client.session() as session:
                    classifier = await session.create(NAME, 4, 8, 2)
                    return await classifier.scores(np.zeros((5, 4), np.float32))

        self.assertEqual(asyncio.run(work()).shape, (5, 2))

    def test_the_example(self):
        result = subprocess.run([sys.executable, EXAMPLE, self.target], env={**os.environ, "PYTHONPATH": support.WHEEL},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=2 * START)
        self.assertEqual(result.returncode, 0, result.stdout)
        accuracy = float(re.search(r"^accuracy: (.*)$", result.stdout, re.MULTILINE).group(1))
        self.assertGreater(accuracy, 0.95)
        self.assertIn("refused: argument 2 wants Tensor", result.stdout)
        self.assertIn("large: 3.0\n", result.stdout)
        self.assertIn("power: [ 8. 27.]\n", result.stdout)


class Death(unittest.TestCase):
    """A worker that is killed while a stream and a call wait for it."""

    def test_a_killed_worker(self):
        with tempfile.TemporaryDirectory() as folder:
            init_method = f"file://{folder}/job"
            # A process without a launcher, which would start another one in its place.
            environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                           "MASTER_PORT": "1"}
            worker = Process(WORKER, init_method, env=environment)
            self.addCleanup(worker.stop)
            worker.wait_for(" serves$")
            gateway = Process(GATEWAY, f"--init_method={init_method}", "--address=127.0.0.1:0")
            self.addCleanup(gateway.stop)
            target = gateway.wait_for(r"serving at (\S+:\d+) as worker")[0].group(1)
            with gw.Client(target, timeout=START) as client:
                stream = client.stream("model::powers", np.ones(50_000), 1 << 40)
                next(stream)
                worker.process.kill()
                with self.assertRaises(gw.Unavailable) as caught:
                    for _ in stream:
                        pass
                self.assertIn("default", caught.exception.worker)


if __name__ == "__main__":
    support.main()
