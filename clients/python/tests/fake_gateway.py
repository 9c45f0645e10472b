"""A gateway without a job: it serves the protocol of gateway.proto with functions in Python, for tests of clients.

    with FakeGateway() as gateway:
        gateway.functions["double"] = lambda request: pb.Value(real=2 * request.arguments[0].real)
        Client(gateway.target).call("double", 2.0)

It is strict: it refuses messages that the protocol does not allow. It does not use the client's code, apart from the
generated messages. Functions get the whole pb.CallRequest, with all bytes in its tensors, and return a pb.Value. They
may raise Failure. `requests` has what was received, in order.
"""

import concurrent.futures
import os
import threading

import grpc

from gradwire_client._proto import gateway_pb2 as pb
from gradwire_client._proto import gateway_pb2_grpc as rpc

MAX_UNARY = 4_128_768
MAX_CHUNK = 1 << 20


class Failure(Exception):
    """Ends a call with this status."""

    def __init__(self, code, message, **detail):
        super().__init__(message)
        self.code = code
        self.detail = pb.ErrorDetail(**detail)


def refuse(message):
    raise Failure(grpc.StatusCode.INVALID_ARGUMENT, message)


def tensors_in(value):
    """The tensors of a value in the order of the protocol."""
    kind = value.WhichOneof("kind")
    if kind == "tensor":
        yield value.tensor
    elif kind in ("list", "tuple"):
        for each in getattr(value, kind).values:
            yield from tensors_in(each)
    elif kind == "map":
        for each in [*value.map.keys, *value.map.values]:
            yield from tensors_in(each)


def received(parts):
    """The request of an upload, with the bytes of its tensors. Refuses whatever is not in order."""
    request, tensors, current = None, [], 0
    for part in parts:
        if part.WhichOneof("part") == "request":
            if request is not None:
                refuse("a second request")
            request = part.request
            if request.ByteSize() > MAX_UNARY:
                refuse("the request is too large")
            for value in [*request.arguments, *(each.value for each in request.keywords)]:
                tensors += [each for each in tensors_in(value) if each.chunked]
            blocks = [bytearray() for _ in tensors]
            sizes = [size_of(each) for each in tensors]
        else:
            chunk = part.chunk
            while current < len(tensors) and len(blocks[current]) == sizes[current]:
                current += 1
            if not 1 <= len(chunk.data) <= MAX_CHUNK:
                refuse(f"a chunk of {len(chunk.data)} bytes")
            if current == len(tensors) or (chunk.tensor, chunk.offset) != (current, len(blocks[current])):
                refuse(f"chunk out of order: {chunk.tensor}, {chunk.offset}")
            blocks[current] += chunk.data
    if request is None:
        refuse("no request")
    for tensor, block, size in zip(tensors, blocks, sizes):
        if len(block) != size:
            refuse(f"got {len(block)} bytes, expected {size}")
        tensor.data, tensor.chunked = bytes(block), False
    return request


ITEM_SIZES = {number: size for size, names in {
    1: "BOOL UINT8 INT8 FLOAT8_E4M3FN FLOAT8_E5M2", 2: "INT16 UINT16 FLOAT16 BFLOAT16",
    4: "INT32 UINT32 FLOAT32 COMPLEX32", 8: "INT64 UINT64 FLOAT64 COMPLEX64", 16: "COMPLEX128",
}.items() for number in [getattr(pb, f"DTYPE_{name}") for name in names.split()]}


def size_of(tensor):
    size = ITEM_SIZES[tensor.dtype]
    for each in tensor.shape:
        size *= each
    return size


def parts_of(value, chunk_above, chunk_bytes=MAX_CHUNK):
    """The messages of an answer. Tensors of more than `chunk_above` bytes follow in chunks."""
    response = pb.CallResponse(result=value, worker="worker0")
    tensors = [each for each in tensors_in(response.result) if len(each.data) > chunk_above]
    blocks = [each.data for each in tensors]
    for each in tensors:
        each.data, each.chunked = b"", True
    yield pb.DownloadPart(response=response)
    for number, block in enumerate(blocks):
        for offset in range(0, len(block), chunk_bytes):
            yield pb.DownloadPart(chunk=pb.Chunk(tensor=number, offset=offset, data=block[offset:offset + chunk_bytes]))


class FakeGateway(rpc.GatewayServicer):
    """The server. `methods` are by full name, and get the object and the request. `streams` return iterators of values,
    and `classes` return objects."""

    def __init__(self, token="", port=0, threads=64):
        self.info = pb.Info(version="fake", worker="gateway0", max_unary_bytes=MAX_UNARY, max_chunk_bytes=MAX_CHUNK,
                            max_call_bytes=1 << 30, max_depth=16, streams=True, operators=True)
        self.functions, self.streams, self.classes, self.methods = {}, {}, {}, {}
        self.listed = []  # pb.Function
        self.page_size = 2
        self.raw = None  # The messages that answer any CallChunked or CallStream, instead of a function.
        self.chunk_above = 1000
        self.requests, self.paths = [], []  # pb.CallRequest, and by which RPC it came
        self.sessions = {}  # id: {handle: object}
        self.pings = 0
        self.released = []
        self.cancelled = threading.Event()  # A function with `block` was cancelled.
        self.entered = threading.Event()
        self._token = token
        self._lock = threading.Lock()
        self._ending = {}
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)
        self._servers = [self._make_server()]
        self._server = self._servers[0]
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        if not self.port:
            raise OSError(f"cannot listen on port {port}")
        self.target = f"127.0.0.1:{self.port}"
        self._server.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Stops without a farewell to the clients. What runs gets cancelled."""
        for server in self._servers:
            server.stop(None).wait(30)

    def _make_server(self):
        server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        rpc.add_GatewayServicer_to_server(self, server)
        return server

    def add_tls_port(self, credentials):
        """Serves the same on another port with TLS. Returns the port."""
        self._servers.append(self._make_server())
        port = self._servers[-1].add_secure_port("127.0.0.1:0", credentials)
        self._servers[-1].start()
        return port

    # The service.

    def GetInfo(self, request, context):
        return self._guarded(context, lambda: self.info)

    def ListWorkers(self, request, context):
        return self._guarded(context, lambda: pb.ListWorkersResponse(workers=[
            pb.WorkerInfo(name="gateway0", id=0, state=pb.STATE_ALIVE, gateway=True),
            pb.WorkerInfo(name="worker1", id=1, state=pb.STATE_SUSPECT),
            pb.WorkerInfo(name="worker2", id=2, state=99)]))

    def ListFunctions(self, request, context):
        def page():
            first = int(request.page_token or b"0")
            last = first + self.page_size
            more = last < len(self.listed)
            return pb.ListFunctionsResponse(
                functions=self.listed[first:last], next_page_token=b"%d" % last if more else b"")

        return self._guarded(context, page)

    def Call(self, request, context):
        def call():
            if request.ByteSize() > MAX_UNARY:
                refuse("the request is too large")
            if any(each.chunked for value in request.arguments for each in tensors_in(value)):
                refuse("a chunked tensor in Call")
            response = pb.CallResponse(result=self._serve(request, context, "Call"), worker="worker0")
            if response.ByteSize() > self.info.max_unary_bytes:
                raise Failure(grpc.StatusCode.RESOURCE_EXHAUSTED,
                              "the result is too large for one message: use CallChunked", limit="max_unary_bytes")
            return response

        return self._guarded(context, call)

    def CallChunked(self, parts, context):
        request = self._guarded(context, lambda: received(parts))
        if self.raw is not None:
            yield from self.raw
        else:
            result = self._guarded(context, lambda: self._serve(request, context, "CallChunked"))
            yield from parts_of(result, self.chunk_above)

    def CallStream(self, request, context):
        if self.raw is not None:
            yield from self.raw
            return
        values = iter(self._guarded(context, lambda: self._serve(request, context, "CallStream")))
        end = object()
        while (value := self._guarded(context, lambda: next(values, end))) is not end:
            yield from parts_of(value, self.chunk_above)

    def OpenSession(self, requests, context):
        self._guarded(context, lambda: None)
        session, ending = os.urandom(16), threading.Event()
        self.sessions[session], self._ending[session] = {}, ending

        def read():
            try:
                for _ in requests:
                    self.pings += 1
            except grpc.RpcError:
                pass  # The client has gone.
            ending.set()

        threading.Thread(target=read, daemon=True).start()
        context.add_callback(ending.set)
        yield pb.SessionEvent(opened=pb.SessionOpened(session=session))
        ending.wait()
        self.released += self.sessions.pop(session).values()
        del self._ending[session]

    def Release(self, request, context):
        def release():
            objects = self._session(request.session)
            known = [each for each in request.handles if each in objects]
            self.released += [objects.pop(each) for each in known]
            return pb.ReleaseResponse(released=len(known))

        return self._guarded(context, release)

    # Helpers.

    def end_sessions(self):
        """Ends all sessions, as a gateway does for idle ones."""
        for ending in list(self._ending.values()):
            ending.set()

    def block(self, context):
        """Waits until the client cancels the call."""
        context.add_callback(self.cancelled.set)
        self.entered.set()
        self.cancelled.wait(30)
        return pb.Value(none=pb.NoneValue())

    def _session(self, session):
        if session not in self.sessions:
            raise Failure(grpc.StatusCode.NOT_FOUND, "unknown session")
        return self.sessions[session]

    def _object(self, request, handle):
        objects = self._session(request.session)
        if handle not in objects:
            raise Failure(grpc.StatusCode.NOT_FOUND, "unknown handle")
        return objects[handle]

    def _keep(self, request, value, kind):
        objects = self._session(request.session)
        handle = os.urandom(16)
        objects[handle] = value
        return pb.Value(handle=pb.Handle(id=handle, type=kind, worker="worker0"))

    def _serve(self, request, context, path):
        with self._lock:
            self.requests.append(request)
            self.paths.append(path)
        kind = request.WhichOneof("callee")
        if kind == "fetch":
            return self._object(request, request.fetch)
        if kind == "constructor":
            return self._keep(request, self._find(self.classes, request.constructor)(request), request.constructor)
        if kind == "method" and path == "CallStream":
            return self._find(self.streams, request.method.name)(request)
        if kind == "method":
            value = self._find(self.methods, request.method.name)(self._object(request, request.method.object), request)
        elif path == "CallStream":
            return self._find(self.streams, request.function)(request)
        else:
            name = request.function if kind == "function" else request.operator
            value = self.block(context) if name == "block" else self._find(self.functions, name)(request)
        return self._keep(request, value, "Tensor") if request.keep_result else value

    def _find(self, table, name):
        if name not in table:
            raise Failure(grpc.StatusCode.NOT_FOUND, f"unknown function {name}", callee=name)
        return table[name]

    def _guarded(self, context, serve):
        if self._token and dict(context.invocation_metadata()).get("authorization") != f"Bearer {self._token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")
        try:
            return serve()
        except Failure as failure:
            context.set_trailing_metadata((("gradwire-error-bin", failure.detail.SerializeToString()),))
            context.abort(failure.code, str(failure))
