#!/usr/bin/python3
"""How arguments and results travel: chunks, progress, limits, and gateways that send nonsense."""

import io
import threading
import unittest

import support
import numpy as np
from fake_gateway import FakeGateway, pb

import gradwire_client as gw

MIB = 1 << 20


def pattern(size):
    """An array of so many bytes, in which each part differs from the others."""
    return (np.arange(size, dtype=np.uint32) * 2654435761 >> 13).astype(np.uint8)


class Transfer(unittest.TestCase):
    def setUp(self):
        self.gateway = FakeGateway()
        self.addCleanup(self.gateway.stop)
        self.gateway.functions["echo"] = lambda request: request.arguments[0]
        self.gateway.functions["all"] = lambda request: pb.Value(tuple=pb.List(values=request.arguments))
        self.client = gw.Client(self.gateway.target, timeout=support.LIMIT)
        self.addCleanup(self.client.close)

    def test_sizes_around_a_chunk(self):
        for size in (0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB, 3 * MIB + 1, 5 * MIB + 17):
            with self.subTest(size=size):
                array = pattern(size)
                sent, got = [], []
                result = self.client.call("echo", array, progress=lambda *each: sent.append(each),
                                          result_progress=lambda *each: got.append(each))
                np.testing.assert_array_equal(result, array)
                self.assertEqual(self.gateway.requests[-1].arguments[0].tensor.data, array.tobytes())
                for calls in (sent, got):
                    self.assertEqual(calls, sorted(calls))
                    self.assertEqual(calls[-1], (size, size))
                    self.assertGreaterEqual(len(calls), size // MIB)

    def test_several_tensors_in_one_call(self):
        arrays = [pattern(size) for size in (MIB + 1, 0, 3, MIB, 2 * MIB, 1024, 1025)]
        nested = {"a": [arrays[0], (arrays[1], arrays[2])], "b": arrays[3]}
        result = self.client.call("all", nested, arrays[4], 7, arrays[5], arrays[6])
        np.testing.assert_equal(result, (nested, arrays[4], 7, arrays[5], arrays[6]))

    def test_keys_of_maps_are_sent_before_values(self):
        # A dict cannot have arrays as keys. A mapping of the program may.
        class Pairs(dict):
            def keys(self):
                return [pattern(MIB + 1), pattern(MIB + 2)]

            def values(self):
                return [pattern(MIB + 3), pattern(MIB + 4)]

        result = self.client.call("echo", Pairs())
        for (key, value), sizes in zip(result, ((MIB + 1, MIB + 3), (MIB + 2, MIB + 4))):
            np.testing.assert_array_equal(key, pattern(sizes[0]))
            np.testing.assert_array_equal(value, pattern(sizes[1]))

    def test_keyword_arguments_follow_the_others(self):
        self.gateway.functions["aten::f"] = lambda request: pb.Value(
            tuple=pb.List(values=[request.arguments[0], request.keywords[0].value]))
        result = self.client.op("aten::f", pattern(MIB + 5), other=pattern(MIB + 6))
        np.testing.assert_equal(result, (pattern(MIB + 5), pattern(MIB + 6)))

    def test_many_small_tensors_that_do_not_fit_into_one_message(self):
        self.gateway.chunk_above = 100
        arrays = [pattern(1000) for _ in range(4200)]
        np.testing.assert_equal(self.client.call("echo", arrays), arrays)

    def test_chunks_of_the_size_that_the_gateway_wants(self):
        self.gateway.info.max_chunk_bytes = 1000
        self.gateway.info.max_unary_bytes = 2000
        sent = []
        self.client.call("echo", pattern(5500), progress=lambda done, total: sent.append(done))
        self.assertEqual(sent, [0, 1000, 2000, 3000, 4000, 5000, 5500])

    def test_the_way_of_a_call(self):
        def path(*arguments, **options):
            self.client.call(*arguments, **options)
            return self.gateway.paths[-1]

        self.assertEqual(path("echo", 1), "CallChunked")  # Its result may be large.
        self.assertEqual(path("echo", 1, small_result=True), "Call")
        self.assertEqual(path("echo", pattern(2 * MIB), small_result=True), "CallChunked")
        self.gateway.listed.append(pb.Function(kind=pb.FUNCTION_KIND_FUNCTION, name="echo", signature="int64(int64)",
                                               parameters=["int64"], result="int64"))
        self.client.load_functions()
        self.assertEqual(path("echo", 1), "Call")

    def test_a_result_that_is_not_small(self):
        self.gateway.functions["large"] = lambda _: pb.Value(data=bytes(4 * MIB))
        with self.assertRaisesRegex(gw.ResourceExhausted, "use CallChunked") as caught:
            self.client.call("large", small_result=True)
        self.assertEqual(caught.exception.limit, "max_unary_bytes")

    def test_arguments_over_the_limits(self):
        self.gateway.info.max_call_bytes = 100
        expected = "echo: got tensors of 101 bytes, expected at most 100"
        with self.assertRaisesRegex(gw.ResourceExhausted, expected) as caught:
            self.client.call("echo", pattern(101))
        self.assertEqual(caught.exception.limit, "max_call_bytes")
        with self.assertRaisesRegex(gw.ResourceExhausted, "send long lists, strings and bytes as tensors") as caught:
            self.client.call("echo", bytes(5 * MIB))
        self.assertEqual(caught.exception.limit, "max_unary_bytes")
        self.assertEqual(self.gateway.requests, [])

    def test_a_progress_function_that_raises(self):
        def stop(done, total):
            if done > 2 * MIB:
                raise OSError("enough")

        for options in ({"progress": stop}, {"result_progress": stop}):
            with self.subTest(options), self.assertRaisesRegex(OSError, "enough"):
                self.client.call("echo", pattern(8 * MIB), **options)
        with self.assertRaisesRegex(OSError, "at once"):
            def fail(*_):
                raise OSError("at once")
            self.client.call("echo", 1, progress=fail)
        np.testing.assert_array_equal(self.client.call("echo", pattern(2 * MIB)), pattern(2 * MIB))

    def test_sixteen_threads_share_a_client(self):
        errors = []

        def work(number):
            try:
                for i in range(5):
                    array = pattern(MIB + 1000 * number + i)
                    np.testing.assert_array_equal(self.client.call("echo", array), array)
                    self.assertEqual(self.client.call("echo", [number, i]), [number, i])
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=[i]) for i in range(16)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(2 * support.LIMIT)
        self.assertEqual(errors, [])
        self.assertEqual(len(self.gateway.requests), 160)

    def test_the_line_for_terminals(self):
        class Terminal(io.StringIO):
            def isatty(self):
                return True

        stream = Terminal()
        self.client.call("echo", pattern(2 * MIB), progress=gw.ProgressLine("upload", stream, interval=0))
        self.assertIn("\rupload 1.0 of 2.0 MiB, 50 %, ", stream.getvalue())
        self.assertRegex(stream.getvalue(), r"2\.0 of 2\.0 MiB, 100 %, \d+ MiB/s\x1b\[K\n$")
        silent = io.StringIO()
        self.client.call("echo", pattern(10), progress=gw.ProgressLine("upload", silent))
        self.assertEqual(silent.getvalue(), "")


class HostileGateway(unittest.TestCase):
    def setUp(self):
        self.gateway = FakeGateway()
        self.addCleanup(self.gateway.stop)
        self.client = gw.Client(self.gateway.target, timeout=support.LIMIT, max_result_bytes=1000)
        self.addCleanup(self.client.close)

    def refused(self, message, *parts, kind=gw.ProtocolError):
        """An answer of these messages is refused, by calls and by streams."""
        self.gateway.raw = parts
        with self.subTest(message):
            with self.assertRaisesRegex(kind, message) as caught:
                self.client.call("f")
            with self.assertRaisesRegex(kind, message):
                list(self.client.stream("f"))
            return caught.exception

    def tensor(self, shape, dtype=pb.DTYPE_UINT8, **fields):
        return pb.DownloadPart(response=pb.CallResponse(result=pb.Value(
            tensor=pb.Tensor(dtype=dtype, shape=shape, **fields))))

    def chunk(self, tensor, offset, size):
        return pb.DownloadPart(chunk=pb.Chunk(tensor=tensor, offset=offset, data=bytes(size)))

    def value(self, **fields):
        return pb.DownloadPart(response=pb.CallResponse(result=pb.Value(**fields)))

    def test_chunks_that_are_not_in_order(self):
        ten = self.tensor([10], chunked=True)
        self.refused("chunk at byte 5 of tensor 0, expected byte 0 of tensor 0", ten, self.chunk(0, 5, 5))
        self.refused("chunk at byte 0 of tensor 1, expected byte 0 of tensor 0", ten, self.chunk(1, 0, 5))
        self.refused("chunk at byte 0 of tensor 0, expected byte 5", ten, self.chunk(0, 0, 5), self.chunk(0, 0, 5))
        self.refused("chunk of 11 bytes, expected 1 to 10", ten, self.chunk(0, 0, 11))
        self.refused("chunk of 0 bytes", ten, self.chunk(0, 0, 0))
        self.refused("got a chunk, expected a result or the end", self.chunk(0, 0, 1))
        self.refused("it ended after 4 of 10 bytes", ten, self.chunk(0, 0, 4))
        self.refused("second result before the first one was complete", ten, ten)
        self.refused("got a chunk, expected a result", self.tensor([0], chunked=True), self.chunk(0, 0, 1))
        self.refused("neither a result nor a chunk", pb.DownloadPart())

    def test_answers_with_too_many_messages(self):
        ten = self.tensor([10], chunked=True)
        self.gateway.raw = [ten, self.chunk(0, 0, 10), self.chunk(0, 10, 1)]
        with self.assertRaisesRegex(gw.ProtocolError, "got a chunk, expected a result or the end"):
            self.client.call("f")
        self.gateway.raw = [self.value(integer=1), self.value(integer=2)]
        with self.assertRaisesRegex(gw.ProtocolError, "second result"):
            self.client.call("f")
        self.gateway.raw = []
        with self.assertRaisesRegex(gw.ProtocolError, "it ended after no result"):
            self.client.call("f")
        self.assertEqual(list(self.client.stream("f")), [])

    def test_lengths_that_do_not_fit(self):
        self.refused(r"got 7 bytes for shape \(2,\) of float32, expected 8",
                     self.tensor([2], pb.DTYPE_FLOAT32, data=bytes(7)))
        self.refused("got 4 bytes for shape", self.tensor([], data=bytes(4)))
        self.refused("got bytes in a tensor whose bytes follow", self.tensor([1], data=b"1", chunked=True))
        self.refused(r"got shape \(-1,\)", self.tensor([-1], chunked=True))
        self.refused(r"got shape \(-1, -1\)", self.tensor([-1, -1], data=b"1"))
        self.refused("expected at most 32 sizes", self.tensor([1] * 33, data=b"1"))
        self.refused("got dtype 99", self.tensor([1], 99, data=b"1"))
        self.refused("cannot allocate", self.tensor([0] + [2**62] * 3, chunked=True))
        self.refused("neither 0 nor 1", self.tensor([2], pb.DTYPE_BOOL, data=b"\1\2"))
        self.refused("neither 0 nor 1", self.tensor([1], pb.DTYPE_BOOL, chunked=True),
                     pb.DownloadPart(chunk=pb.Chunk(data=b"\3")))

    def test_results_over_the_limit_of_the_client(self):
        for shape in ([1001], [2**62], [2**62] * 32):
            error = self.refused("make max_result_bytes of the client larger", self.tensor(shape, chunked=True),
                                 kind=gw.ResourceExhausted)
            self.assertEqual(error.limit, "max_result_bytes")
        both = pb.Value(tensor=pb.Tensor(dtype=pb.DTYPE_UINT8, shape=[501], chunked=True))
        self.refused("max_result_bytes", self.value(list=pb.List(values=[both, both])), kind=gw.ResourceExhausted)
        self.gateway.raw = [self.tensor([1000], data=bytes(1000))]
        self.assertEqual(self.client.call("f").shape, (1000,))

    def test_malformed_values(self):
        self.refused("kind of value that this version does not know", self.value())
        self.refused("a map of 1 keys and 0 values", self.value(map=pb.Map(keys=[pb.Value(integer=1)])))
        one = pb.Value(integer=1)
        self.refused("a map with a repeated key", self.value(map=pb.Map(keys=[one, one], values=[one, one])))
        self.refused("got a reference in a call without a session", self.value(handle=pb.Handle(id=b"1")))
        self.refused("a handle without an id", self.value(handle=pb.Handle()))
        self.refused("the unknown dtype 77", self.value(dtype=77))

    def test_lists_of_functions_that_do_not_end(self):
        self.gateway.ListFunctions = None
        self.client._ask = lambda *_: pb.ListFunctionsResponse(next_page_token=b"again")
        with self.assertRaisesRegex(gw.ProtocolError, "it does not end after 0 functions"):
            self.client.functions


if __name__ == "__main__":
    support.main()
