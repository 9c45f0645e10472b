#!/usr/bin/python3
"""Sessions, references, streams, and functions that the gateway describes."""

import collections.abc
import contextlib
import gc
import inspect
import io
import pydoc
import re
import typing
import unittest
import zipfile

import support
import grpc
import numpy as np
from fake_gateway import Failure, FakeGateway, pb

import gradwire_client as gw


def array_of(value):
    return np.frombuffer(value.tensor.data, np.float32)


def tensor_of(array):
    array = np.asarray(array, "<f4")
    return pb.Value(tensor=pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=array.shape, data=array.tobytes()))


class Server:
    """The object behind a handle."""

    def __init__(self, size):
        self.weights = np.zeros(size, np.float32)


def push(server, request):
    server.weights = server.weights + array_of(request.arguments[0])
    return pb.Value(none=pb.NoneValue())


def described(kind, name, parameters=(), result="", **fields):
    signature = f"{result}({','.join(parameters)})" if kind != pb.FUNCTION_KIND_OPERATOR else ""
    return pb.Function(kind=kind, name=name, parameters=parameters, result=result, signature=signature, **fields)


def add_parameter_server(gateway, name="model::ParameterServer"):
    """Makes the gateway serve a class with methods, and describe it."""
    gateway.classes[name] = lambda request: Server(request.arguments[0].integer)
    gateway.methods[f"{name}::push"] = push
    gateway.methods[f"{name}::pull"] = lambda server, _: tensor_of(server.weights)
    gateway.listed += [
        described(pb.FUNCTION_KIND_CONSTRUCTOR, name, ["int64"], workers=["worker0"]),
        described(pb.FUNCTION_KIND_METHOD, f"{name}::push", ["Tensor"], "void", object_type=name, workers=["worker0"]),
        described(pb.FUNCTION_KIND_METHOD, f"{name}::pull", [], "Tensor", object_type=name, workers=["worker0"]),
        described(pb.FUNCTION_KIND_METHOD, "other::Class::reset", [], "void", object_type="other::Class")]
    return name


class WithGateway(unittest.TestCase):
    def setUp(self):
        self.gateway = FakeGateway()
        self.addCleanup(self.gateway.stop)
        self.gateway.functions["echo"] = lambda request: request.arguments[0]
        self.client = gw.Client(self.gateway.target, timeout=support.LIMIT)
        self.addCleanup(self.client.close)


class Sessions(WithGateway):
    def test_an_object_and_its_methods(self):
        name = add_parameter_server(self.gateway)
        with self.client.session() as session:
            ps = session.create(name, 3)
            self.assertEqual((ps.type, ps.worker), (name, "worker0"))
            self.assertIsNone(ps.push(np.array([1, 2, 3], np.float32)))
            ps.push(np.ones(3, np.float32), timeout=5)
            np.testing.assert_array_equal(ps.pull(), [2, 3, 4])
            np.testing.assert_array_equal(ps.call(f"{name}::pull"), [2, 3, 4])
            self.assertIn("push", dir(ps))
            self.assertEqual(str(inspect.signature(ps.push)), "(argument1: numpy.ndarray, /, *, timeout=None, "
                                                              "progress=None, result_progress=None) -> None")
            expected = "class model::ParameterServer has no registered method 'pul', only: pull, push"
            with self.assertRaisesRegex(AttributeError, expected):
                ps.pul()
            self.assertEqual(self.gateway.released, [])
        self.assertEqual(len(self.gateway.released), 1)
        self.assertIsInstance(self.gateway.released[0], Server)
        self.assertEqual(self.gateway.sessions, {})

    def test_a_method_of_a_worker_that_joined_later(self):
        name = add_parameter_server(self.gateway)
        late = [self.gateway.listed.pop(1), self.gateway.listed.pop(1)]
        with self.client.session() as session:
            ps = session.create(name, 1)
            with self.assertRaises(AttributeError):
                ps.pull()
            self.gateway.listed += late
            np.testing.assert_array_equal(ps.pull(), [0])

    def test_results_that_stay_on_the_worker(self):
        with self.client.session() as session:
            x = np.arange(3, dtype=np.float32)
            h = session.call("echo", x, keep=True)
            self.assertIsInstance(h, gw.Ref)
            self.assertEqual(repr(h), "<reference to Tensor on worker0, session 1>")
            np.testing.assert_array_equal(h.fetch(), x)
            self.gateway.functions["is_handle"] = lambda request: pb.Value(boolean=bool(request.arguments[0].handle.id))
            self.assertIs(session.call("is_handle", h), True)
            self.assertIs(session.op("is_handle", [h][0]), True)
            h.release()
            self.assertEqual(len(self.gateway.released), 1)
            h.release()
            expected = "is_handle: argument 1: the reference to Tensor was released"
            with self.assertRaisesRegex(gw.InvalidArgument, expected):
                session.call("is_handle", h)
            with session.call("echo", x, keep=True) as other:
                np.testing.assert_array_equal(other.fetch(), x)
            self.assertEqual(len(self.gateway.released), 2)
            many = [session.call("echo", x, keep=True) for _ in range(3)]
            session.release(*many)
            self.assertEqual(len(self.gateway.released), 5)

    def test_references_and_sessions_do_not_mix(self):
        with self.client.session() as first, self.client.session() as second:
            h = first.call("echo", 1, keep=True)
            with self.assertRaisesRegex(gw.InvalidArgument, "belongs to session 1, and the call to session 2"):
                second.call("echo", h)
            with self.assertRaisesRegex(gw.InvalidArgument, "belongs to session 1, and the call to no session"):
                self.client.call("echo", h)
        with self.assertRaisesRegex(gw.FailedPrecondition, "needs a session"):
            self.client.call("echo", 1, keep=True)

    def test_a_session_that_the_program_closed(self):
        session = self.client.session()
        h = session.call("echo", 1, keep=True)
        session.close()
        session.close()
        expected = "session 1 at .* has ended: the program closed it; its objects are gone"
        for call in (lambda: session.call("echo", 1), h.fetch):
            with self.assertRaisesRegex(gw.SessionEnded, expected):
                call()
        h.release()
        self.assertEqual(repr(session), f"<session 1 at {self.client.target}, ended>")

    def test_a_session_that_the_gateway_ended(self):
        session = self.client.session()
        h = session.call("echo", 1, keep=True)
        self.gateway.end_sessions()
        support.wait_until(lambda: session.ended, "the session has ended")
        with self.assertRaisesRegex(gw.SessionEnded, "session 1 at .* has ended: OK, the gateway ended it"):
            h.fetch()

    def test_sessions_end_with_the_client(self):
        session = self.client.session()
        session.call("echo", 1, keep=True)
        self.client.close()
        self.assertEqual(len(self.gateway.released), 1)
        self.assertTrue(session.ended)

    def test_a_session_that_nobody_refers_to_ends(self):
        session = self.client.session()
        h = session.call("echo", 1, keep=True)
        del session
        gc.collect()
        self.assertEqual(h.fetch(), 1)
        del h
        gc.collect()
        support.wait_until(lambda: len(self.gateway.released) == 1, "the object is released")

    def test_an_idle_session_sends_signs_of_life(self):
        self.gateway.info.session_idle_ms = 300
        with self.client.session():
            support.wait_until(lambda: self.gateway.pings >= 3, "the session has sent three requests")

    def test_many_sessions_of_one_client(self):
        sessions = [self.client.session() for _ in range(20)]
        self.assertEqual(len(self.gateway.sessions), 20)
        self.assertEqual([each.number for each in sessions], list(range(1, 21)))
        self.client.close()
        self.assertEqual(self.gateway.sessions, {})


class Streams(WithGateway):
    def setUp(self):
        super().setUp()
        self.made = 0

        def generate(request):
            for i in range(request.arguments[1].integer):
                self.made += 1
                yield pb.Value(text=request.arguments[0].text * (i + 1))

        self.gateway.streams["generate"] = generate

    def test_values_in_order(self):
        self.assertEqual(list(self.client.stream("generate", "x", 4)), ["x", "xx", "xxx", "xxxx"])
        self.assertEqual(list(self.client.stream("generate", "x", 0)), [])
        with self.client.session() as session:
            self.assertEqual(list(session.stream("generate", "y", 1)), ["y"])

    def test_functions_and_methods_that_return_streams(self):
        for kind, name, object_type in ((pb.FUNCTION_KIND_FUNCTION, "generate", ""),
                                        (pb.FUNCTION_KIND_METHOD, "Model::generate", "Model")):
            self.gateway.listed.append(described(kind, name, ["str", "int64"], "Stream[str]",
                                                object_type=object_type))
        self.gateway.streams["Model::generate"] = self.gateway.streams["generate"]
        self.gateway.classes["Model"] = lambda _: object()
        generate = self.client.functions["generate"]
        self.assertEqual(inspect.signature(generate).return_annotation, collections.abc.Iterator[str])
        self.assertEqual(list(inspect.signature(generate).parameters), ["argument1", "argument2", "worker", "timeout"])
        self.assertEqual(list(generate("x", 2)), ["x", "xx"])
        with self.client.session() as session:
            self.assertEqual(list(generate("x", 1, session=session)), ["x"])
            model = session.create("Model")
            self.assertEqual(list(model.generate("y", 2)), ["y", "yy"])
            self.assertEqual(list(model.stream("Model::generate", "z", 1)), ["z"])
        self.assertEqual([each.WhichOneof("callee") for each in self.gateway.requests[-2:]], ["method", "method"])

    def test_large_tensors(self):
        arrays = [np.full(1 << 20, i, np.float32) for i in range(3)] + [np.zeros(0, np.float32), np.ones(2, np.float32)]
        self.gateway.streams["tensors"] = lambda _: map(tensor_of, arrays)
        np.testing.assert_equal(list(self.client.stream("tensors")), arrays)

    def test_large_arguments_are_refused(self):
        expected = "generate: the arguments of a stream have 2097152 bytes of tensors"
        with self.assertRaisesRegex(gw.ResourceExhausted, expected):
            next(self.client.stream("generate", np.zeros(2 << 20, np.uint8), 1))

    def test_an_error_after_some_values(self):
        def fail(_):
            yield pb.Value(integer=1)
            raise Failure(grpc.StatusCode.UNKNOWN, "it threw", callee="fail", worker="worker0")

        self.gateway.streams["fail"] = fail
        stream = self.client.stream("fail")
        self.assertEqual(next(stream), 1)
        with self.assertRaisesRegex(gw.RemoteError, "it threw"):
            next(stream)
        self.assertEqual(list(stream), [])

    def test_a_stream_that_the_program_leaves(self):
        with self.client.stream("generate", "x" * 100_000, 1_000) as stream:
            self.assertEqual(len(next(stream)), 100_000)
        self.assertEqual(list(stream), [])
        self.assertLess(self.made, 1_000)
        stream.close()

    def test_a_stream_over_its_timeout(self):
        def slow(_):
            yield pb.Value(integer=1)
            self.gateway.cancelled.wait(support.LIMIT)

        self.gateway.streams["slow"] = slow
        stream = self.client.stream("slow", timeout=0.5)
        self.assertEqual(next(stream), 1)
        with self.assertRaises(gw.DeadlineExceeded):
            next(stream)
        self.gateway.cancelled.set()


class Functions(WithGateway):
    def setUp(self):
        super().setUp()
        self.gateway.functions["model::scale"] = lambda request: tensor_of(
            array_of(request.arguments[0]) * request.arguments[1].real)
        self.gateway.listed += [
            described(pb.FUNCTION_KIND_FUNCTION, "model::scale", ["Tensor", "float64"], "Tensor", idempotent=True,
                      workers=["worker0", "worker1"], documentation="Multiplies each element."),
            described(pb.FUNCTION_KIND_OPERATOR, "aten::echo", workers=["worker0"])]
        self.gateway.functions["aten::echo"] = lambda request: request.arguments[0]

    def test_a_function_and_its_documentation(self):
        f = self.client.functions["model::scale"]
        np.testing.assert_array_equal(f(np.ones(2, np.float32), 3.0), [3, 3])
        self.assertEqual(str(inspect.signature(f)),
                         "(argument1: numpy.ndarray, argument2: float, /, *, worker=None, timeout=None, "
                         "progress=None, result_progress=None) -> numpy.ndarray")
        text = pydoc.plain(pydoc.render_doc(f))
        self.assertIn("scale(argument1: numpy.ndarray, argument2: float, /,", text)
        self.assertIn("Multiplies each element.", text)
        self.assertIn("Function model::scale, on the wire Tensor(Tensor,float64).", text)
        self.assertIn("Served by worker0, worker1. Running it twice does no harm.", text)
        self.assertEqual(f.functions[0].workers, ["worker0", "worker1"])
        f(np.ones(2, np.float32), 3.0, worker="worker1", timeout=10)
        self.assertEqual(self.gateway.requests[-1].worker, "worker1")

    def test_the_list(self):
        functions = self.client.functions
        self.assertEqual(list(functions), ["model::scale", "aten::echo"])
        self.assertEqual(len(functions), 2)
        self.assertNotIn("scale", functions)
        with self.assertRaises(KeyError):
            functions["scale"]
        self.gateway.listed.append(described(pb.FUNCTION_KIND_FUNCTION, "later", [], "void"))
        self.assertNotIn("later", self.client.functions)
        self.assertIn("later", self.client.load_functions())

    def test_an_operator(self):
        f = self.client.functions["aten::echo"]
        self.assertEqual(f(5, alpha=2), 5)
        self.assertEqual(self.gateway.requests[-1].keywords[0].name, "alpha")
        self.assertIn("Operator aten::echo of libtorch", f.__doc__)

    def test_a_class(self):
        name = add_parameter_server(self.gateway)
        create = self.client.functions[name]
        with self.client.session() as session:
            self.assertEqual(create(2, session=session).type, name)
        with self.assertRaisesRegex(gw.FailedPrecondition, "needs `session=`"):
            create(2)
        self.assertIs(inspect.signature(create).return_annotation, gw.Ref)

    def test_signatures_that_differ_between_workers(self):
        self.gateway.listed.append(
            described(pb.FUNCTION_KIND_FUNCTION, "model::scale", ["Tensor"], "Tensor", workers=["worker2"]))
        f = self.client.functions["model::scale"]
        self.assertEqual(str(inspect.signature(f)),
                         f"(*arguments, session=<Client for {self.client.target}>, **options)")
        self.assertIn("Tensor(Tensor,float64)", f.__doc__)
        self.assertIn("Served by worker2.", f.__doc__)

    def test_types(self):
        def annotation(text):
            return gw.functions.Type.parse(text).annotation(gw.Ref)

        for text, expected in (("list[Tensor]", list[np.ndarray]), ("optional[int64]", typing.Optional[int]),
                               ("map[str,tuple[bool,list[float32]]]", dict[str, tuple[bool, list[float]]]),
                               ("void", None),
                               ("RRef[model::A<int, 3>]", gw.Ref), ("message[a.B]", gw.Message), ("enum[int32]", int),
                               ("IValue", typing.Any), ("model::Options", typing.Any), ("list[", typing.Any),
                               ("list[a,b]", typing.Any), ("list[" * 10_000 + "]" * 10_000, None)):
            with self.subTest(text[:50]):
                found = annotation(text)
                if len(text) < 1000:
                    self.assertEqual(found, expected)

        def is_small(text):
            return gw.functions.Type.parse(text).is_small()

        for text in ("void", "int64", "optional[float64]", "tuple[int8,RRef[Tensor]]", "enum[uint8]", "complex128"):
            self.assertTrue(is_small(text), text)
        for text in ("Tensor", "str", "list[int64]", "IValue", "tuple[int8,str]",
                     "map[int8,int8]", "a::B", "optional[Tensor]"):
            self.assertFalse(is_small(text), text)

    def test_what_the_gateway_is(self):
        self.assertEqual([(each.name, each.id, each.state, each.gateway) for each in self.client.workers()],
                         [("gateway0", 0, "alive", True), ("worker1", 1, "suspect", False),
                          ("worker2", 2, "unknown", False)])
        info = self.client.info()
        self.assertEqual((info.version, info.max_depth, info.streams), ("fake", 16, True))


class Readme(WithGateway):
    def test_the_program_in_readme(self):
        # The wheel's metadata contains README.md.
        with zipfile.ZipFile(support.WHEEL) as wheel:
            metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            text = wheel.read(metadata).decode()
        program, = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        self.gateway.functions["scale"] = lambda request: tensor_of(
            array_of(request.arguments[0]).reshape(request.arguments[0].tensor.shape) * request.arguments[1].real)
        self.gateway.functions["aten::add"] = lambda request: request.arguments[0]
        self.gateway.streams["generate"] = lambda request: (
            pb.Value(text=request.arguments[0].text) for _ in range(request.arguments[1].integer))
        add_parameter_server(self.gateway, "ParameterServer")
        self.gateway.listed.append(described(pb.FUNCTION_KIND_FUNCTION, "scale", ["Tensor", "float64"], "Tensor"))
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(program.replace("localhost:50051", self.gateway.target), "README.md", "exec"), {})
        self.assertIn("Function scale, on the wire Tensor(Tensor,float64).", output.getvalue())
        self.assertTrue(output.getvalue().endswith("x\n" * 10 + f"{np.full(10, 0.5, np.float32)}\n"), output.getvalue())


if __name__ == "__main__":
    support.main()
