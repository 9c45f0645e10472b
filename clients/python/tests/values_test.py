#!/usr/bin/python3
"""Values of every kind in both directions."""

import enum
import math
import os
import subprocess
import sys
import unittest

sys.modules["ml_dtypes"] = None  # These tests expect the results of a machine without it.

import support
import grpc
import numpy as np
from fake_gateway import FakeGateway, pb
from google.protobuf import duration_pb2

import gradwire_client as gw

NUMPY = {"bool": pb.DTYPE_BOOL, "uint8": pb.DTYPE_UINT8, "int8": pb.DTYPE_INT8, "int16": pb.DTYPE_INT16,
         "int32": pb.DTYPE_INT32, "int64": pb.DTYPE_INT64, "float16": pb.DTYPE_FLOAT16, "float32": pb.DTYPE_FLOAT32,
         "float64": pb.DTYPE_FLOAT64, "complex64": pb.DTYPE_COMPLEX64, "complex128": pb.DTYPE_COMPLEX128,
         "uint16": pb.DTYPE_UINT16, "uint32": pb.DTYPE_UINT32, "uint64": pb.DTYPE_UINT64}


class Color(enum.IntEnum):
    RED = 7


class WithDlpack:
    """An array of another library."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Values(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.gateway = FakeGateway()
        cls.gateway.functions["echo"] = cls.gateway.functions["aten::echo"] = lambda request: request.arguments[0]
        cls.client = gw.Client(cls.gateway.target, timeout=support.LIMIT)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.gateway.stop()

    def sent(self, value):
        """The pb.Value that the gateway receives for a value."""
        self.client.call("echo", value)
        return self.gateway.requests[-1].arguments[0]

    def test_values_without_tensors(self):
        for value, message in (
                (None, pb.Value(none=pb.NoneValue())), (True, pb.Value(boolean=True)), (False, pb.Value(boolean=False)),
                (0, pb.Value(integer=0)), (-2**63, pb.Value(integer=-2**63)), (2**63 - 1, pb.Value(integer=2**63 - 1)),
                (2**63, pb.Value(unsigned_integer=2**63)), (2**64 - 1, pb.Value(unsigned_integer=2**64 - 1)),
                (0.5, pb.Value(real=0.5)), (math.inf, pb.Value(real=math.inf)),
                (1 + 2j, pb.Value(complex=pb.Complex(real=1, imaginary=2))), (0j, pb.Value(complex=pb.Complex())),
                ("", pb.Value(text="")), ("grüße", pb.Value(text="grüße")), (b"\xff\0", pb.Value(data=b"\xff\0")),
                ([1, -2], pb.Value(integers=pb.Integers(values=[1, -2]))),
                ([0.5], pb.Value(reals=pb.Reals(values=[0.5]))),
                ([], pb.Value(list=pb.List())), ((), pb.Value(tuple=pb.List())),
                ([1, 0.5], pb.Value(list=pb.List(values=[pb.Value(integer=1), pb.Value(real=0.5)]))),
                ([True], pb.Value(list=pb.List(values=[pb.Value(boolean=True)]))),
                ([2**63], pb.Value(list=pb.List(values=[pb.Value(unsigned_integer=2**63)]))),
                ((1, "a"), pb.Value(tuple=pb.List(values=[pb.Value(integer=1), pb.Value(text="a")]))),
                ({"a": [1], "b": None}, pb.Value(map=pb.Map(
                    keys=[pb.Value(text="a"), pb.Value(text="b")],
                    values=[pb.Value(integers=pb.Integers(values=[1])), pb.Value(none=pb.NoneValue())]))),
                (gw.UNDEFINED, pb.Value(undefined_tensor=pb.NoneValue())),
                (gw.Status(grpc.StatusCode.ABORTED, "why", "worker1"),
                 pb.Value(status=pb.StatusValue(code=10, message="why", worker="worker1"))),
                (gw.Message("a.B", b"12"), pb.Value(message=pb.ProtobufMessage(type="a.B", serialized=b"12"))),
                (np.dtype("float32"), pb.Value(dtype=pb.DTYPE_FLOAT32)),
                (gw.DType("bfloat16"), pb.Value(dtype=pb.DTYPE_BFLOAT16)),
                (gw.Device("cuda:1"), pb.Value(device="cuda:1"))):
            with self.subTest(value=value):
                result = self.client.call("echo", value)
                self.assertEqual(self.gateway.requests[-1].arguments[0], message)
                self.assertEqual(result, value)
                self.assertIs(type(result), type(value))

    def test_values_that_become_others(self):
        for value, expected in ((np.int8(-3), -3), (np.uint64(2**64 - 1), 2**64 - 1), (np.float32(0.5), 0.5),
                                (np.bool_(True), True), (np.complex64(1j), 1j), (Color.RED, 7), (bytearray(b"x"), b"x"),
                                (memoryview(b"y"), b"y"), (np.float64, np.dtype("float64")), ([Color.RED, 1], [7, 1]),
                                ([np.float32(1), 2.0], [1.0, 2.0])):
            with self.subTest(value=value):
                result = self.client.call("echo", value)
                self.assertEqual(result, expected)
                self.assertIs(type(result), type(expected))
        self.assertEqual(self.client.call("echo", np.nan).hex(), "nan")

    def test_messages_of_protobuf(self):
        result = self.client.call("echo", duration_pb2.Duration(seconds=3))
        self.assertEqual(result.type, "google.protobuf.Duration")
        self.assertEqual(result.parse(duration_pb2.Duration).seconds, 3)
        with self.assertRaisesRegex(ValueError, "got gradwire.gateway.v1.List, expected google.protobuf.Duration"):
            result.parse(pb.List)

    def test_arrays_of_each_dtype(self):
        for name, number in NUMPY.items():
            for shape in ((), (3,), (2, 3), (0,), (2, 0, 3), (1,) * 32):
                with self.subTest(dtype=name, shape=shape):
                    array = np.asarray(np.arange(math.prod(shape)).reshape(shape) % 5).astype(name)
                    if array.dtype.kind == "c":
                        array = np.asarray(array * (1 + 2j), name)
                    result = self.client.call("echo", array)
                    tensor = self.gateway.requests[-1].arguments[0].tensor
                    self.assertEqual((tensor.dtype, tuple(tensor.shape)), (number, shape))
                    self.assertEqual(tensor.data, array.astype(array.dtype.newbyteorder("<")).tobytes())
                    self.assertIs(type(result), np.ndarray)
                    self.assertEqual((result.dtype, result.shape), (array.dtype, shape))
                    np.testing.assert_array_equal(result, array)
                    self.assertTrue(result.flags.writeable and result.flags.c_contiguous)

    def test_arrays_in_other_layouts(self):
        whole = np.arange(24, dtype=np.float32).reshape(4, 6)
        frozen = whole.copy()
        frozen.flags.writeable = False
        for name, array in (("transposed", whole.T), ("sliced", whole[1::2, ::3]), ("reversed", whole[::-1]),
                            ("broadcast", np.broadcast_to(np.float32(3), (2, 2))), ("big-endian", whole.astype(">f4")),
                            ("fortran", np.asfortranarray(whole)), ("read-only", frozen),
                            ("offset", whole.reshape(-1)[1:7]), ("big-endian scalar", np.array(2.5, ">f8"))):
            with self.subTest(name):
                result = self.client.call("echo", array)
                np.testing.assert_array_equal(result, array)
                self.assertEqual(result.dtype, array.dtype.newbyteorder("="))
                self.assertEqual(self.gateway.requests[-1].arguments[0].tensor.data,
                                 b"".join(each.astype(array.dtype.newbyteorder("<")).tobytes() for each in array.flat))

    def test_an_array_is_not_copied_before_it_is_sent(self):
        array = np.arange(10, dtype=np.int32)
        source = gw.arrays.source_of(array)
        array[0] = 77
        self.assertEqual(source.view[0], 77)

    def test_arrays_of_other_libraries(self):
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        np.testing.assert_array_equal(self.client.call("echo", WithDlpack(array)), array)

        class WithArray:
            def __array__(self, dtype=None):
                return array

        np.testing.assert_array_equal(self.client.call("echo", WithArray()), array)

        class Broken(WithDlpack):
            def __dlpack__(self, stream=None):
                raise RuntimeError("it is on a device")

        expected = "argument 2: cannot read a Broken as an array: it is on a device"
        with self.assertRaisesRegex(gw.InvalidArgument, expected) as caught:
            self.client.call("echo", 1, Broken(array))
        error = caught.exception
        self.assertEqual((error.argument, error.wanted, error.got), (2, "Tensor", "Broken"))

    def test_dtypes_that_numpy_lacks(self):
        numbers = np.array([[0, 1, -2.5, 3.140625], [np.inf, -np.inf, 2.0**-126, 1e38]], np.float32)
        raw = gw.RawArray.from_numpy("bfloat16", numbers)
        result = self.client.call("echo", raw)
        tensor = self.gateway.requests[-1].arguments[0].tensor
        self.assertEqual((tensor.dtype, tensor.shape), (pb.DTYPE_BFLOAT16, [2, 4]))
        self.assertEqual(tensor.data[:8], b"\0\0\x80\x3f\x20\xc0\x49\x40")
        self.assertEqual((type(result), result.dtype, result.shape), (gw.RawArray, "bfloat16", (2, 4)))
        np.testing.assert_allclose(result.to_numpy(), numbers, rtol=2**-8)
        np.testing.assert_array_equal(result.to_numpy()[0], numbers[0])

        # Rounding to nearest even: the last place of 1 is 2^-7.
        ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32)
        np.testing.assert_array_equal(gw.RawArray.from_numpy("bfloat16", ties).to_numpy(), [1, 1 + 2**-6, 1 + 2**-7])
        self.assertTrue(np.isnan(gw.RawArray.from_numpy("bfloat16", np.float32(np.nan)).to_numpy()))
        nans = np.array([0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
        self.assertTrue(np.isnan(gw.RawArray.from_numpy("bfloat16", nans).to_numpy()).all())

        half = self.client.call("echo", gw.RawArray.from_numpy("complex32", np.array([1 + 2j, -0.5j])))
        np.testing.assert_array_equal(half.to_numpy(), np.array([1 + 2j, -0.5j], np.complex64))
        small = self.client.call("echo", gw.RawArray("float8_e5m2", np.array([0x3C, 0xC0, 0x7C], np.uint8)))
        np.testing.assert_array_equal(small.to_numpy(), [1, -2, np.inf])
        bits = np.array([0x38, 0xC0, 0x7E, 0x01, 0x7F], np.uint8)
        small = self.client.call("echo", gw.RawArray("float8_e4m3fn", bits))
        np.testing.assert_array_equal(small.to_numpy(), [1, -2, 448, 2**-9, np.nan])

    def test_wrong_raw_arrays(self):
        with self.assertRaisesRegex(ValueError, "got dtype 'float32', expected one of"):
            gw.RawArray("float32", np.zeros(2, np.uint32))
        with self.assertRaisesRegex(ValueError, "got bits of int16, expected uint16 for bfloat16"):
            gw.RawArray("bfloat16", np.zeros(2, np.int16))

    def test_dtypes_of_ml_dtypes(self):
        """With the package ml_dtypes results are its arrays. A module with the same names stands for it."""
        code = """
import sys, types, numpy as np
sys.path.insert(0, sys.argv[1])
bfloat16 = np.dtype([("bits", "<u2")])
sys.modules["ml_dtypes"] = types.SimpleNamespace(bfloat16=bfloat16)
from gradwire_client import arrays
from gradwire_client._proto import gateway_pb2 as pb
found = arrays.Target(pb.Tensor(dtype=pb.DTYPE_BFLOAT16, shape=[2], data=b"1234"), 100).array
assert found.dtype == bfloat16 and found.tobytes() == b"1234", found
assert arrays.Target(pb.Tensor(dtype=pb.DTYPE_FLOAT8_E5M2, shape=[1], data=b"1"), 100).array.dtype == "float8_e5m2"
assert arrays.dtype_of(pb.DTYPE_BFLOAT16) == bfloat16
"""
        subprocess.run([sys.executable, "-c", code, support.WHEEL], check=True, timeout=support.LIMIT)

    def test_tensors_of_pytorch(self):
        """Only where Python finds PyTorch: Gradwire itself needs no more of it than libtorch."""
        folder = support.python_torch()
        # At the end: the folder has other versions of modules that the client uses.
        sys.path.append(folder)
        try:
            import torch
        finally:
            sys.path.remove(folder)
        x = torch.arange(6, dtype=torch.float32).reshape(2, 3).requires_grad_()
        np.testing.assert_array_equal(self.client.call("echo", x), x.detach().numpy())
        np.testing.assert_array_equal(self.client.call("echo", x.t()), x.detach().numpy().T)
        result = self.client.call("echo", x.detach().to(torch.bfloat16))
        np.testing.assert_array_equal(result.to_numpy(), x.detach().numpy())
        z = torch.tensor([1 + 2j]).conj()
        np.testing.assert_array_equal(self.client.call("echo", z), [1 - 2j])
        self.assertEqual(self.sent(torch.bfloat16).dtype, pb.DTYPE_BFLOAT16)
        self.assertEqual(self.sent(torch.device("cpu")).device, "cpu")
        with self.assertRaisesRegex(gw.InvalidArgument, "torch.sparse_coo"):
            self.client.call("echo", torch.eye(2).to_sparse())

    def test_values_that_cannot_be_sent(self):
        cyclic = []
        cyclic.append(cyclic)
        for value, message, got in ((object(), "cannot send a object", "object"), ({1}, "cannot send a set", "set"),
                                    (2**64, "expected 64 bits", "int"), (-2**63 - 1, "expected 64 bits", "int"),
                                    (10**400, "more than 64 bits", "int"), ("\ud800", "UTF-8", "str"),
                                    (np.array(["a"]), "got an array of <U1", "<U1"),
                                    (np.array([object()]), "got an array of object", "object"),
                                    (np.zeros(2, "datetime64[s]"), "datetime64", "datetime64[s]"),
                                    (np.zeros(1, np.longdouble), "float128", "float128"),
                                    (cyclic, "nested more than 16 levels", "list"),
                                    (np.dtype("U3"), "got dtype str96", "str96")):
            with self.subTest(message), self.assertRaisesRegex(gw.InvalidArgument, message) as caught:
                self.client.call("f", 1, value)
            self.assertEqual((caught.exception.argument, caught.exception.callee, caught.exception.got), (2, "f", got))
        with self.assertRaisesRegex(gw.InvalidArgument, "aten::add: argument alpha: cannot send a object") as caught:
            self.client.op("aten::add", 1, alpha=object())
        self.assertEqual(caught.exception.keyword, "alpha")

    def test_operators_have_keywords(self):
        self.client.op("aten::echo", np.ones(2), alpha=2, dtype=np.float32)
        request = self.gateway.requests[-1]
        self.assertEqual(request.operator, "aten::echo")
        self.assertEqual({each.name: each.value for each in request.keywords},
                         {"alpha": pb.Value(integer=2), "dtype": pb.Value(dtype=pb.DTYPE_FLOAT32)})

    def test_maps_with_keys_that_dicts_cannot_have(self):
        self.gateway.functions["pairs"] = lambda _: pb.Value(map=pb.Map(
            keys=[pb.Value(integers=pb.Integers(values=[1]))], values=[pb.Value(text="a")]))
        self.assertEqual(self.client.call("pairs"), [([1], "a")])


if __name__ == "__main__":
    support.main()
