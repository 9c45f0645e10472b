#!/usr/bin/python3
"""Errors: their classes and fields, cancellation, timeouts, and connections that are lost."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import support
import grpc
import numpy as np
from fake_gateway import Failure, FakeGateway, pb

import gradwire_client as gw

CLASSES = {
    grpc.StatusCode.CANCELLED: gw.Cancelled, grpc.StatusCode.UNKNOWN: gw.RemoteError,
    grpc.StatusCode.INVALID_ARGUMENT: gw.InvalidArgument, grpc.StatusCode.DEADLINE_EXCEEDED: gw.DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: gw.NotFound, grpc.StatusCode.ALREADY_EXISTS: gw.AlreadyExists,
    grpc.StatusCode.PERMISSION_DENIED: gw.PermissionDenied, grpc.StatusCode.RESOURCE_EXHAUSTED: gw.ResourceExhausted,
    grpc.StatusCode.FAILED_PRECONDITION: gw.FailedPrecondition, grpc.StatusCode.ABORTED: gw.Aborted,
    grpc.StatusCode.OUT_OF_RANGE: gw.OutOfRange, grpc.StatusCode.UNIMPLEMENTED: gw.Unimplemented,
    grpc.StatusCode.INTERNAL: gw.Internal, grpc.StatusCode.UNAVAILABLE: gw.Unavailable,
    grpc.StatusCode.DATA_LOSS: gw.DataLoss, grpc.StatusCode.UNAUTHENTICATED: gw.Unauthenticated}


class Errors(unittest.TestCase):
    def setUp(self):
        self.gateway = FakeGateway()
        self.addCleanup(self.gateway.stop)
        self.client = gw.Client(self.gateway.target, timeout=support.LIMIT)
        self.addCleanup(self.client.close)

    def fail_with(self, code, message, **detail):
        def fail(_):
            raise Failure(code, message, **detail)

        self.gateway.functions["f"] = self.gateway.streams["f"] = fail

    def test_each_code_has_a_class(self):
        self.assertEqual(set(CLASSES), set(grpc.StatusCode) - {grpc.StatusCode.OK})
        for code, kind in CLASSES.items():
            self.fail_with(code, "why", worker="worker1", callee="scale")
            for how, call in (("chunked", lambda: self.client.call("f")),
                              ("stream", lambda: list(self.client.stream("f"))),
                              ("unary", lambda: self.client.call("f", small_result=True)),
                              ("upload", lambda: self.client.call("f", np.zeros(2 << 20, np.uint8)))):
                with self.subTest(code=code, how=how), self.assertRaises(gw.Error) as caught:
                    call()
                self.assertIs(type(caught.exception), kind)
                self.assertEqual((caught.exception.code, caught.exception.message, caught.exception.worker,
                                  caught.exception.callee), (code, "why", "worker1", "scale"))
                self.assertEqual(str(caught.exception), "why (worker worker1, callee scale)")

    def test_errors_are_also_errors_of_python(self):
        for code, kind in ((grpc.StatusCode.INVALID_ARGUMENT, ValueError), (grpc.StatusCode.NOT_FOUND, LookupError),
                           (grpc.StatusCode.DEADLINE_EXCEEDED, TimeoutError)):
            self.fail_with(code, "why")
            with self.assertRaises(kind):
                self.client.call("f")

    def test_details(self):
        self.fail_with(grpc.StatusCode.INVALID_ARGUMENT, "does not fit", callee="f", argument=2, wanted="float64",
                       got="text")
        with self.assertRaises(gw.InvalidArgument) as caught:
            self.client.call("f", 1, "a")
        error = caught.exception
        self.assertEqual((error.argument, error.wanted, error.got, error.keyword), (2, "float64", "text", ""))
        self.assertEqual(str(error), "does not fit (argument 2, wanted float64, got text)")
        self.fail_with(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many", limit="max_calls_per_client",
                       option="--max_calls")
        with self.assertRaises(gw.ResourceExhausted) as caught:
            self.client.call("f")
        self.assertEqual((caught.exception.limit, caught.exception.option), ("max_calls_per_client", "--max_calls"))
        copy = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(copy), str(copy), copy.limit), (gw.ResourceExhausted, str(caught.exception), copy.limit))

    def test_malformed_details(self):
        class Broken(Failure):
            pass

        def fail(_):
            failure = Broken(grpc.StatusCode.ABORTED, "why")
            failure.detail = type("", (), {"SerializeToString": lambda self: b"\xff\xff"})()
            raise failure

        self.gateway.functions["f"] = fail
        with self.assertRaises(gw.Aborted) as caught:
            self.client.call("f")
        self.assertEqual((caught.exception.message, caught.exception.callee), ("why", "f"))

    def test_an_unknown_function(self):
        with self.assertRaisesRegex(gw.NotFound, "unknown function g"):
            self.client.call("g")

    def test_tokens(self):
        with FakeGateway(token="right") as gateway:
            gateway.functions["f"] = lambda _: pb.Value(integer=1)
            for token in (None, "wrong"):
                with gw.Client(gateway.target, token=token) as client:
                    with self.assertRaisesRegex(gw.Unauthenticated, "wrong token"):
                        client.call("f")
            for token in ("right", lambda: "right"):
                with gw.Client(gateway.target, token=token) as client:
                    self.assertEqual(client.call("f"), 1)

    def test_timeouts(self):
        begin = time.monotonic()
        for call in (lambda: self.client.call("block", timeout=0.2),
                     lambda: self.client.call("block", np.zeros(2 << 20, np.uint8), timeout=0.2),
                     lambda: self.client.call("block", timeout=0.2, small_result=True)):
            self.gateway.cancelled.clear()
            with self.assertRaises(gw.DeadlineExceeded) as caught:
                call()
            self.assertEqual(caught.exception.callee, "block")
            self.assertTrue(self.gateway.cancelled.wait(support.LIMIT))
        self.assertLess(time.monotonic() - begin, support.LIMIT / 2)
        with self.assertRaisesRegex(gw.InvalidArgument, "timeout of f must be positive, got 0"):
            self.client.call("f", timeout=0)

    def test_the_timeout_of_the_client(self):
        with gw.Client(self.gateway.target, timeout=0.3) as client:
            with self.assertRaises(gw.DeadlineExceeded):
                client.call("block")

    def interrupt_soon(self):
        """Sends SIGINT to this thread when the gateway runs the function `block`."""
        def send():
            self.gateway.entered.wait(support.LIMIT)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=send)
        thread.start()
        self.addCleanup(thread.join)

    def test_an_interrupt_cancels_the_call_at_the_worker(self):
        for options in ({}, {"small_result": True}):
            with self.subTest(options):
                self.gateway.entered.clear()
                self.gateway.cancelled.clear()
                self.interrupt_soon()
                with self.assertRaises(KeyboardInterrupt):
                    self.client.call("block", **options)
                self.assertTrue(self.gateway.cancelled.wait(support.LIMIT))
                self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)

    def test_an_interrupt_of_an_upload(self):
        self.interrupt_soon()
        with self.assertRaises(KeyboardInterrupt):
            self.client.call("block", np.zeros(3 << 20, np.uint8))
        self.assertTrue(self.gateway.cancelled.wait(support.LIMIT))

    def test_an_interrupt_of_a_stream(self):
        def slow(_):
            yield pb.Value(integer=1)
            self.gateway.entered.set()
            self.gateway.cancelled.wait(support.LIMIT)

        self.gateway.streams["slow"] = slow
        self.interrupt_soon()
        with self.assertRaises(KeyboardInterrupt):
            list(self.client.stream("slow"))
        self.gateway.cancelled.set()
        self.assertRaises(gw.NotFound, self.client.call, "g")

    def test_the_program_s_own_handler_of_interrupts(self):
        seen = threading.Event()
        before = signal.signal(signal.SIGINT, lambda *_: (seen.set(), self.gateway.cancelled.set()))
        self.addCleanup(signal.signal, signal.SIGINT, before)
        self.interrupt_soon()
        self.assertIsNone(self.client.call("block"))
        self.assertTrue(seen.is_set())

    def blocked_call(self):
        """Starts a call that the gateway does not answer. Returns its thread, and a list that gets its error."""
        errors = []

        def call():
            try:
                self.client.call("block")
            except gw.Error as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        self.assertTrue(self.gateway.entered.wait(support.LIMIT))
        return thread, errors

    def test_close_ends_calls_in_flight(self):
        thread, errors = self.blocked_call()
        self.client.close()
        thread.join(support.LIMIT)
        self.assertEqual([type(each) for each in errors], [gw.Cancelled])
        self.client.close()
        with self.assertRaisesRegex(gw.FailedPrecondition, "is closed"):
            self.client.call("f")

    def test_a_gateway_that_is_not_there(self):
        self.gateway.stop()
        with gw.Client(self.gateway.target, connect_timeout=0.3) as client:
            expected = r"cannot connect to the gateway at 127.0.0.1:\d+ within 0.3 s \(.*; check the address"
            with self.assertRaisesRegex(gw.Unavailable, expected):
                client.call("f")
            with self.assertRaisesRegex(gw.DeadlineExceeded, "f: the timeout of 0.1 s has passed"):
                client.call("f", timeout=0.1)

    def test_a_gateway_that_restarts(self):
        thread, errors = self.blocked_call()
        session = self.client.session()
        self.gateway.stop()
        thread.join(support.LIMIT)
        self.assertEqual([type(each) for each in errors], [gw.Unavailable])
        self.assertRegex(str(errors[0]), "gateway 127.0.0.1:")
        support.wait_until(lambda: session.ended, "the session has ended")
        with FakeGateway(port=self.gateway.port) as second:
            second.functions["f"] = lambda _: pb.Value(integer=2)
            self.assertEqual(self.client.call("f"), 2)
            expected = (r"session 1 at 127.0.0.1:\d+ has ended: UNAVAILABLE, .*; its objects are gone: open another "
                        "session")
            with self.assertRaisesRegex(gw.SessionEnded, expected):
                session.call("f")
            with self.client.session() as other:
                self.assertEqual(other.call("f"), 2)

    def test_a_restart_between_two_calls(self):
        self.gateway.functions["f"] = lambda _: pb.Value(integer=1)
        self.assertEqual(self.client.call("f"), 1)
        self.gateway.stop()
        with FakeGateway(port=self.gateway.port) as second:
            second.functions["f"] = lambda _: pb.Value(integer=2)
            self.assertEqual(self.client.call("f"), 2)

    def test_a_process_that_was_forked(self):
        # Without fork(): only the check of the client itself runs in the child.
        self.client._pid += 1
        with self.assertRaisesRegex(gw.FailedPrecondition, r"was made before fork\(\): make one in the child process"):
            self.client.call("f")
        self.client._pid -= 1

    def test_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = os.path.join(folder, "key.pem"), os.path.join(folder, "certificate.pem")
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out",
                            certificate, "-days", "1", "-subj", "/CN=gateway.test", "-addext",
                            "subjectAltName=DNS:gateway.test"],
                           check=True, capture_output=True)
            with open(key, "rb") as key_file, open(certificate, "rb") as certificate_file:
                credentials = grpc.ssl_server_credentials([(key_file.read(), certificate_file.read())])
            self.gateway.functions["f"] = lambda _: pb.Value(integer=1)
            port = self.gateway.add_tls_port(credentials)
            tls = gw.Tls(ca=certificate, server_name="gateway.test")
            with gw.Client(f"127.0.0.1:{port}", tls=tls) as client:
                self.assertEqual(client.call("f"), 1)
            # The name of the certificate is another one.
            with gw.Client(f"127.0.0.1:{port}", tls=certificate, connect_timeout=0.5) as client:
                with self.assertRaises(gw.Unavailable):
                    client.call("f")
            with gw.Client(f"127.0.0.1:{port}", connect_timeout=0.5) as client:
                with self.assertRaises(gw.Unavailable):
                    client.call("f")


class Interpreter(unittest.TestCase):
    def test_a_program_that_does_not_close_anything_ends(self):
        code = """
import sys
sys.path[:0] = sys.argv[1:3]
sys.argv[1:] = sys.argv[1:2]
from fake_gateway import FakeGateway, pb
import gradwire_client as gw
gateway = FakeGateway()
gateway.functions["f"] = lambda _: pb.Value(integer=1)
client = gw.Client(gateway.target)
session = client.session()
assert session.call("f") == 1
stream = client.stream("f")
gateway.stop()
print("end")
"""
        tests = os.path.dirname(os.path.realpath(__file__))
        result = subprocess.run([sys.executable, "-c", code, support.WHEEL, tests], timeout=support.LIMIT, text=True,
                                capture_output=True)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "end\n", ""))


if __name__ == "__main__":
    support.main()
