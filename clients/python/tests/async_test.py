#!/usr/bin/python3
"""The client for asyncio. What it shares with the other client is tested there."""

import asyncio
import inspect
import unittest

import support
import grpc
import numpy as np
from fake_gateway import Failure, FakeGateway, pb
from session_test import add_parameter_server, described, tensor_of

import gradwire_client as gw


class Async(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.gateway = FakeGateway()
        self.addCleanup(self.gateway.stop)
        self.gateway.functions["echo"] = lambda request: request.arguments[0]
        self.client = gw.AsyncClient(self.gateway.target, timeout=support.LIMIT)
        self.addAsyncCleanup(self.client.close)

    async def in_time(self, awaitable):
        return await asyncio.wait_for(awaitable, support.LIMIT)

    async def until_cancelled_at_the_gateway(self):
        self.assertTrue(await asyncio.to_thread(self.gateway.cancelled.wait, support.LIMIT))

    async def test_values_small_and_large(self):
        for value in (7, [0.5, 1.5], {"a": "b"}):
            self.assertEqual(await self.client.call("echo", value), value)
            self.assertEqual(await self.client.call("echo", value, small_result=True), value)
        self.assertEqual(self.gateway.paths[-2:], ["CallChunked", "Call"])
        for size in (0, 1 << 20, (1 << 20) + 1, (5 << 20) + 3):
            array = np.arange(size, dtype=np.uint32).astype(np.uint8)
            sent, got = [], []
            result = await self.client.call("echo", array, progress=lambda *each: sent.append(each),
                                            result_progress=lambda *each: got.append(each))
            np.testing.assert_array_equal(result, array)
            self.assertEqual((sent[-1], got[-1]), ((size, size), (size, size)))

    async def test_many_calls_at_a_time(self):
        arrays = [np.full((2 << 20) + i, i, np.uint8) for i in range(8)]
        results = await self.in_time(asyncio.gather(*(self.client.call("echo", each) for each in arrays)))
        np.testing.assert_equal(results, arrays)

    async def test_operators_and_arguments_that_do_not_fit(self):
        self.gateway.functions["aten::add"] = lambda request: pb.Value(
            integer=request.arguments[0].integer + request.keywords[0].value.integer)
        self.assertEqual(await self.client.op("aten::add", 1, alpha=2), 3)
        with self.assertRaisesRegex(gw.InvalidArgument, "argument 1"):
            await self.client.call("echo", object())

    async def test_errors(self):
        def fail(_):
            raise Failure(grpc.StatusCode.UNKNOWN, "it threw", worker="worker1", callee="f")

        self.gateway.functions["f"] = fail
        for options in ({}, {"small_result": True}):
            with self.assertRaisesRegex(gw.RemoteError, "it threw") as caught:
                await self.client.call("f", **options)
            self.assertEqual(caught.exception.worker, "worker1")
        with self.assertRaises(gw.RemoteError):
            await self.client.call("f", np.zeros(2 << 20, np.uint8))
        with self.assertRaises(gw.DeadlineExceeded):
            await self.client.call("block", timeout=0.2)
        await self.until_cancelled_at_the_gateway()

    async def test_the_cancellation_of_a_task(self):
        for arguments, options in (((), {}), ((), {"small_result": True}), ((np.zeros(2 << 20, np.uint8),), {})):
            self.gateway.entered.clear()
            self.gateway.cancelled.clear()
            task = asyncio.create_task(self.client.call("block", *arguments, **options))
            await asyncio.to_thread(self.gateway.entered.wait, support.LIMIT)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await self.until_cancelled_at_the_gateway()

    async def test_close_ends_calls_in_flight(self):
        tasks = [asyncio.create_task(self.client.call("block", **options)) for options in ({}, {"small_result": True})]
        await asyncio.to_thread(self.gateway.entered.wait, support.LIMIT)
        await self.client.close()
        results = await self.in_time(asyncio.gather(*tasks, return_exceptions=True))
        self.assertEqual([type(each) for each in results], [gw.Cancelled, gw.Cancelled])
        with self.assertRaisesRegex(gw.FailedPrecondition, "is closed"):
            await self.client.call("echo", 1)

    async def test_a_progress_function_that_raises(self):
        def stop(done, total):
            if done:
                raise OSError("enough")

        for options in ({"progress": stop}, {"result_progress": stop}):
            with self.assertRaisesRegex(OSError, "enough"):
                await self.client.call("echo", np.zeros(3 << 20, np.uint8), **options)

    async def test_sessions(self):
        name = add_parameter_server(self.gateway)
        async with self.client.session() as session:
            ps = await session.create(name, 2)
            await ps.push(np.ones(2, np.float32))
            np.testing.assert_array_equal(await ps.pull(), [1, 1])
            self.assertTrue(inspect.iscoroutinefunction(ps.push))
            with self.assertRaisesRegex(AttributeError, "no registered method 'pul'"):
                await ps.pul()
            async with await session.call("echo", 5, keep=True) as h:
                self.assertEqual(await h.fetch(), 5)
            self.assertEqual(len(self.gateway.released), 1)
        self.assertEqual(len(self.gateway.released), 2)
        with self.assertRaisesRegex(gw.SessionEnded, "has ended: the program closed it"):
            await ps.pull()

    async def test_a_session_without_a_block(self):
        h = await self.client.session().call("echo", 5, keep=True)
        self.assertEqual(await h.fetch(), 5)
        await self.client.close()
        self.assertEqual(len(self.gateway.released), 1)

    async def test_an_idle_session_sends_signs_of_life(self):
        self.gateway.info.session_idle_ms = 300
        async with self.client.session():
            await asyncio.to_thread(support.wait_until, lambda: self.gateway.pings >= 3, "three requests")

    async def test_a_session_that_the_gateway_ended(self):
        session = await self.client.session().open()
        self.gateway.end_sessions()
        while not session.ended:
            await asyncio.sleep(0.002)
        with self.assertRaisesRegex(gw.SessionEnded, "session 1 at .* has ended: OK, the gateway ended it"):
            await session.call("echo", 1)

    async def test_streams(self):
        self.gateway.streams["generate"] = lambda request: (
            tensor_of(np.full(600_000, i)) for i in range(request.arguments[0].integer))
        found = [each[0] async for each in self.client.stream("generate", 4)]
        self.assertEqual(found, [0, 1, 2, 3])
        async with self.client.stream("generate", 100) as stream:
            self.assertEqual((await anext(stream))[0], 0)
        self.assertEqual([each async for each in stream], [])

        def fail(_):
            yield pb.Value(integer=1)
            raise Failure(grpc.StatusCode.ABORTED, "why", worker="worker1")

        self.gateway.streams["fail"] = fail
        stream = self.client.stream("fail")
        self.assertEqual(await anext(stream), 1)
        with self.assertRaisesRegex(gw.Aborted, "why") as caught:
            await anext(stream)
        self.assertEqual(caught.exception.worker, "worker1")

    async def test_functions_and_methods_that_return_streams(self):
        for kind, name, object_type in ((pb.FUNCTION_KIND_FUNCTION, "count", ""),
                                        (pb.FUNCTION_KIND_METHOD, "Model::count", "Model")):
            self.gateway.listed.append(described(kind, name, ["int64"], "Stream[int64]", object_type=object_type))
            self.gateway.streams[name] = lambda request: (
                pb.Value(integer=i) for i in range(request.arguments[0].integer))
        self.gateway.classes["Model"] = lambda _: object()
        async with self.client.session() as session:
            model = await session.create("Model")
            self.assertEqual([each async for each in model.stream("Model::count", 2)], [0, 1])
            with self.assertRaisesRegex(gw.FailedPrecondition, "Model::count returns a stream: await client.load_fun"):
                await model.count(3)
            functions = await self.client.load_functions()
            self.assertEqual([each async for each in model.count(3)], [0, 1, 2])
            self.assertEqual([each async for each in functions["count"](1)], [0])

    async def test_functions(self):
        with self.assertRaisesRegex(gw.FailedPrecondition, "load_functions"):
            self.client.functions
        self.gateway.listed.append(
            described(pb.FUNCTION_KIND_FUNCTION, "echo", ["int64"], "int64", workers=["worker0"]))
        functions = await self.client.load_functions()
        self.assertEqual(await functions["echo"](4), 4)
        self.assertEqual(self.gateway.paths[-1], "Call")
        self.assertTrue(inspect.iscoroutinefunction(functions["echo"]))
        self.assertIn("(argument1: int, /,", str(inspect.signature(functions["echo"])))
        self.assertEqual([each.name for each in await self.client.workers()], ["gateway0", "worker1", "worker2"])
        self.assertEqual((await self.client.info()).version, "fake")

    async def test_a_gateway_that_restarts(self):
        task = asyncio.create_task(self.client.call("block"))
        await asyncio.to_thread(self.gateway.entered.wait, support.LIMIT)
        session = await self.client.session().open()
        await asyncio.to_thread(self.gateway.stop)
        with self.assertRaises(gw.Unavailable):
            await task
        with FakeGateway(port=self.gateway.port) as second:
            second.functions["f"] = lambda _: pb.Value(integer=2)
            self.assertEqual(await self.client.call("f"), 2)
            while not session.ended:
                await asyncio.sleep(0.002)
            with self.assertRaisesRegex(gw.SessionEnded, "UNAVAILABLE"):
                await session.call("f")

    async def test_a_gateway_that_is_not_there(self):
        await asyncio.to_thread(self.gateway.stop)
        async with gw.AsyncClient(self.gateway.target, connect_timeout=0.3) as client:
            with self.assertRaisesRegex(gw.Unavailable, "cannot connect to the gateway at .* within 0.3 s"):
                await client.call("f")


if __name__ == "__main__":
    support.main()
