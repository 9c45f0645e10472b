"""The client for programs with asyncio."""

import asyncio
import weakref

import grpc
import grpc.aio

from gradwire_client import base, errors, functions, plans
from gradwire_client._proto import gateway_pb2 as pb
from gradwire_client._proto import gateway_pb2_grpc as rpc
from gradwire_client.client import CLOSE_TIMEOUT


class AsyncClient(base.BaseClient):
    """As Client, for asyncio. The options and methods are those of Client; its calls are awaited.

        async with AsyncClient("localhost:50051") as client:
            y = await client.call("scale", x, 2.0)
            async for item in client.stream("generate", "x", 10): ...
            async with client.session() as session:
                ps = await session.create("ParameterServer", 10)
                await ps.push(gradient)
            await client.load_functions()
            await client.functions["scale"](x, 2.0)

    A client belongs to the event loop in which it made its first call, and to its thread. The cancellation of a task
    also cancels its call at the worker.
    """

    def __init__(self, target, *, token=None, tls=None, timeout=None, connect_timeout=10.0,
                 max_result_bytes=base.MAX_RESULT_BYTES):
        super().__init__(target, token, tls, timeout, connect_timeout, max_result_bytes)
        self._channel = self._stub = self._single = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    async def close(self):
        """Ends the sessions and closes the connection. Calls in flight raise Cancelled. May be called twice."""
        if not self._closed:
            for session in list(self._sessions):
                await session.close()
            self._closed = True
            if self._channel is not None:
                await self._channel.close()

    # Calls.

    def _open_channel(self):
        """gRPC takes the event loop that runs when a channel is made."""
        if self._tls is None:
            self._channel = grpc.aio.insecure_channel(self.target, options=self._channel_options())
        else:
            self._channel = grpc.aio.secure_channel(self.target, self._tls.credentials(),
                                                    options=self._channel_options())
        self._stub = rpc.GatewayStub(self._channel)
        self._single = self._channel.unary_stream(base.CHUNKED_CALL, request_serializer=pb.UploadPart.SerializeToString,
                                                  response_deserializer=pb.DownloadPart.FromString)

    async def _connect(self, deadline):
        self._check_usable()
        if self._channel is None:
            self._open_channel()
        if self._limits is not None:
            return self._limits
        async with self._connecting:
            if self._limits is None:
                self._connected(await self._get_info(deadline))
            return self._limits

    async def _get_info(self, deadline):
        request = pb.GetInfoRequest()
        try:
            return await self._stub.GetInfo(request, timeout=deadline.left(self.connect_timeout),
                                            metadata=self._metadata(), wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._connect_error(error, deadline) from None
        deadline.left()
        try:
            # Without wait_for_ready the error says why there is no connection.
            return await self._stub.GetInfo(request, timeout=1, metadata=self._metadata())
        except grpc.RpcError as error:
            raise self._connect_error(error, deadline) from None

    async def _ask(self, method, request, what, timeout=None, session=None):
        deadline = plans.Deadline(self.timeout if timeout is None else timeout, what)
        await self._connect(deadline)
        try:
            return await getattr(self._stub, method)(request, timeout=deadline.left(self.connect_timeout),
                                                     metadata=self._metadata())
        except grpc.RpcError as error:
            raise self._error(error, "", session) from None

    def _invoke(self, callee, arguments, keywords, options):
        return self._run(callee, arguments, keywords, options, None)

    def _stream(self, callee, arguments, options):
        return self._start_stream(callee, arguments, options, None)

    async def _run(self, callee, arguments, keywords, options, session):
        deadline = plans.Deadline(self.timeout if options.timeout is None else options.timeout, callee.name)
        limits = await self._connect(deadline)
        if session is not None:
            await session.open()
        plan = self._plan(callee, arguments, keywords, options, session, limits)
        assembler = self._assembler(callee, options, session)
        try:
            if plan.mode is plans.Mode.UNARY:
                response = await self._stub.Call(plan.request, timeout=deadline.left(), metadata=self._metadata())
                if options.progress:
                    options.progress(plan.total, plan.total)
                assembler.add_response(response)
            else:
                await self._exchange(plan, assembler, deadline, options.progress)
            return assembler.take()
        except grpc.RpcError as error:
            raise self._error(error, callee.name, session) from None
        except asyncio.CancelledError:
            self._raise_if_closed(callee.name)
            raise

    def _raise_if_closed(self, callee):
        """close() cancels calls. Their tasks are not cancelled, so they get an error of this package."""
        if self._closed and not asyncio.current_task().cancelling():
            raise errors.Cancelled(f"{callee}: the client for {self.target} was closed", callee=callee) from None

    async def _exchange(self, plan, assembler, deadline, progress):
        """Runs a call over CallChunked."""
        upload = plans.Upload(plan, progress)
        if plan.mode is plans.Mode.SINGLE:
            call = self._single(next(plan.parts()), timeout=deadline.left(), metadata=self._metadata())
        else:
            call = self._stub.CallChunked(_asynchronous(upload), timeout=deadline.left(), metadata=self._metadata())
        upload.bind(call)
        try:
            if progress and plan.mode is plans.Mode.SINGLE:
                progress(plan.total, plan.total)
            async for part in call:
                assembler.add(part)
        except (grpc.RpcError, asyncio.CancelledError):
            if upload.error is not None:
                raise upload.error from None
            call.cancel()
            raise
        except BaseException:
            call.cancel()
            raise

    def _start_stream(self, callee, arguments, options, session):
        return AsyncStream(self, callee, arguments, options, session)

    # The gateway, its workers and their functions.

    async def info(self):
        """As Client.info()."""
        return base.info_of(await self._ask("GetInfo", pb.GetInfoRequest(), "info"))

    async def workers(self):
        """As Client.workers()."""
        return [base.Worker.of(each)
                for each in (await self._ask("ListWorkers", pb.ListWorkersRequest(), "workers")).workers]

    @property
    def functions(self):
        """As Client.functions, after `await client.load_functions()`."""
        if self._table is None:
            raise errors.FailedPrecondition("the functions are not loaded: await client.load_functions() first")
        return functions.Functions(self._table, self._python_function)

    async def load_functions(self):
        """Loads the list of functions, also if it was loaded before, and returns it."""
        self._table = None
        await self._loaded_table()
        return self.functions

    async def _loaded_table(self):
        table = self._table
        if table is None:
            messages, token, more = [], b"", True
            while more:
                response = await self._ask("ListFunctions", pb.ListFunctionsRequest(page_token=token), "functions")
                token = self._add_page(messages, response)
                more = bool(token)
            table = self._table = functions.Table(messages)
        return table

    def _python_function(self, kind, name, variants):
        def stream(*arguments, session=self, **options):
            return session.stream(name, *arguments, **options)

        async def function(*arguments, session=self, **options):
            if kind == "operator":
                return await session.op(name, *arguments, **options)
            if kind == "class":
                if session is self:
                    raise errors.FailedPrecondition(f"{name}: constructing an object needs `session=`", callee=name)
                return await session.create(name, *arguments, **options)
            return await session.call(name, *arguments, **options)

        return functions.dress(stream if variants[0].is_stream() else function, variants, AsyncRef)

    def session(self):
        """Makes a session: the time for which objects on workers live. Use it in an `async with` statement. Otherwise
        its first call opens it."""
        return AsyncSession(self)


async def _asynchronous(iterator):
    for each in iterator:
        yield each


class AsyncSession(base.BaseSession):
    """As Session, for asyncio. `async with` opens and closes it; or else the awaited open() and close()."""

    def __init__(self, client):
        super().__init__(client)
        self._call = None
        self._watch = None
        self._closing = asyncio.Event()
        self._opening = asyncio.Lock()

    async def open(self):
        """Opens the session, if it is not open. Returns the session."""
        async with self._opening:
            if self._call is None and not self.ended:
                await self._open()
        return self

    async def _open(self):
        client = self._client
        deadline = plans.Deadline(client.timeout, "opening a session")
        limits = await client._connect(deadline)
        call = client._stub.OpenSession(metadata=client._metadata())
        try:
            event = await asyncio.wait_for(call.read(), deadline.left(client.connect_timeout))
            if event is grpc.aio.EOF:
                raise errors.ProtocolError("the gateway ended a session without opening it")
            self._opened(event)
        except TimeoutError:
            call.cancel()
            raise errors.Unavailable("the gateway did not open a session in time") from None
        except grpc.RpcError as error:
            raise client._error(error, "") from None
        except BaseException:
            call.cancel()
            raise
        self._call = call
        interval = max(limits.session_idle / 3, 0.05) if limits.session_idle else None
        self._watch = asyncio.create_task(_watch(call, interval, self._closing, weakref.ref(self)))
        client._sessions.add(self)

    def __del__(self):
        # Nobody can close it any more.
        if getattr(self, "_call", None) is not None and not self._call.done():
            self._closing.set()
            self._call.cancel()

    async def __aenter__(self):
        return await self.open()

    async def __aexit__(self, *_):
        await self.close()

    async def close(self):
        """Ends the session and waits until the gateway has released its objects. May be called twice."""
        if self.ended:
            return
        self._note_end("the program closed it")
        if self._call is None:
            return
        self._closing.set()
        try:
            await asyncio.wait_for(self._drain(), CLOSE_TIMEOUT)
        except (grpc.RpcError, TimeoutError, asyncio.InvalidStateError):
            pass  # It has ended, too.
        finally:
            self._call.cancel()

    async def _drain(self):
        # The cancellation of a task that writes would cancel the stream.
        await self._watch
        await self._call.done_writing()
        while await self._call.read() is not grpc.aio.EOF:
            pass

    async def release(self, *references, timeout=None):
        """Releases several references in one message."""
        handles = [each._gradwire_handle(self) for each in references if not each._released]
        for each in references:
            each._released = True
        if handles and not self.ended:
            await self._client._ask("Release", pb.ReleaseRequest(session=self._live_id(), handles=handles), "release",
                                    timeout, self)

    def _ref(self, handle):
        return AsyncRef(self, handle)


async def _watch(call, interval, closing, weak_session):
    """Shows the gateway that the client lives, and notes the end of the session's stream, until the program closes the
    session. Does not keep the session alive."""
    ended = asyncio.ensure_future(call.code())
    closed = asyncio.ensure_future(closing.wait())
    try:
        while not (await asyncio.wait([ended, closed], timeout=interval, return_when=asyncio.FIRST_COMPLETED))[0]:
            try:
                await call.write(pb.SessionRequest())
            except (grpc.RpcError, asyncio.InvalidStateError):
                await ended
        if not closing.is_set():
            code, details = await call.code(), await call.details()
            session = weak_session()
            if session is not None:
                session._note_end(f"{code.name}, {details or 'the gateway ended it'}")
    finally:
        ended.cancel()
        closed.cancel()


class AsyncRef(base.BaseRef):
    __doc__ = base.BaseRef.__doc__

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.release()

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        table = self._session._client._table
        variants = self._variants(table, name) if table is not None else None

        async def method(*arguments, **options):
            # The list of methods may not be loaded yet, and a worker may have joined since.
            client, found = self._session._client, variants
            if not found:
                found = self._variants(await client._loaded_table(), name)
            if not found:
                client._table = None
                found = self._variants(await client._loaded_table(), name)
            if not found:
                raise self._no_method(client._table, name)
            if found[0].is_stream():
                raise errors.FailedPrecondition(
                    f"{found[0].name} returns a stream: await client.load_functions() first, or use stream()")
            return await self.call(base.method_name(found), *arguments, **options)

        def stream(*arguments, **options):
            return self.stream(base.method_name(variants), *arguments, **options)

        if not variants:
            return method
        return functions.dress(stream if variants[0].is_stream() else method, variants, AsyncRef)


class AsyncStream:
    """The values of a stream, in order: an asynchronous iterator. Use it in an `async for` statement, or in an `async
    with` statement if the program may stop early."""

    def __init__(self, client, callee, arguments, options, session):
        self._client = client
        self._callee = callee
        self._start = (arguments, options)
        self._session = session
        self._call = None
        self._assembler = client._assembler(callee, options, session)
        self._done = False

    async def _started(self):
        """The call of gRPC. The first use starts it."""
        if self._call is None:
            client, (arguments, options) = self._client, self._start
            deadline = plans.Deadline(client.timeout if options.timeout is None else options.timeout, self._callee.name)
            limits = await client._connect(deadline)
            if self._session is not None:
                await self._session.open()
            plan = client._plan(self._callee, arguments, {}, options, self._session, limits)
            self._call = client._stub.CallStream(plan.for_stream(), timeout=deadline.left(),
                                                 metadata=client._metadata())
        return self._call

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self._done:
            raise StopAsyncIteration
        try:
            call = await self._started()
            while not self._assembler.complete():
                part = await call.read()
                if part is grpc.aio.EOF:
                    self._done = True
                    code = await call.code()
                    if code != grpc.StatusCode.OK:
                        raise await _error_of(call)
                    self._assembler.ended()
                    raise StopAsyncIteration
                self._assembler.add(part)
            return self._assembler.take()
        except grpc.RpcError as error:
            self._done = True
            raise self._client._error(error, self._callee.name, self._session) from None
        except asyncio.CancelledError:
            self._close()
            self._client._raise_if_closed(self._callee.name)
            raise
        except BaseException:
            self._close()
            raise

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    def _close(self):
        self._done = True
        if self._call is not None:
            self._call.cancel()

    async def close(self):
        """Cancels the function, if it has not ended. May be called twice."""
        self._close()


async def _error_of(call):
    """The error of a call of gRPC that has ended, as gRPC raises it in other places."""
    return grpc.aio.AioRpcError(await call.code(), await call.initial_metadata(), await call.trailing_metadata(),
                                await call.details())
