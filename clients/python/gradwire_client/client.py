"""The client for programs without asyncio."""

import signal
import threading
import weakref

import grpc

from gradwire_client import base, errors, functions, plans
from gradwire_client._proto import gateway_pb2 as pb
from gradwire_client._proto import gateway_pb2_grpc as rpc

# Seconds for the gateway to end a session that the program closes. Then the client cancels it.
CLOSE_TIMEOUT = 5


class Interrupts:
    """Cancels a call of the main thread when the user interrupts the program, and raises KeyboardInterrupt at the end.

    Without it KeyboardInterrupt may be raised anywhere in the code of gRPC. There it may lose a call that has just been
    started, or leave a lock locked. So the handler of the signal only lets another thread cancel the call, and the call
    then ends as usual. A second interrupt raises at once. Programs with their own handler of SIGINT keep it.
    """

    def __init__(self):
        self.active = False
        self._call = None
        self._pending = False

    def __enter__(self):
        self.active = (threading.current_thread() is threading.main_thread() and
                       signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        if self.active:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_):
        if self.active:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._pending:
            raise KeyboardInterrupt from None

    def bind(self, call):
        self._call = call
        if self._pending:
            call.cancel()

    def run(self, method, request, **options):
        """Calls a method of gRPC with one message in each direction."""
        if not self.active:
            return method(request, **options)
        call = method.future(request, **options)
        self.bind(call)
        return call.result()

    def _note(self, number, frame):
        if self._pending:
            signal.default_int_handler(number, frame)
        self._pending = True
        if self._call is not None:
            # This thread may hold locks of gRPC.
            threading.Thread(target=self._call.cancel, daemon=True).start()


class Client(base.BaseClient):
    """A connection to the gateway of a job.

        with Client("localhost:50051", token=os.environ["GATEWAY_TOKEN"]) as client:
            y = client.call("model::scale", np.ones((2, 3), np.float32), 2.0)

    Options:
      target: the address of the gateway, as gRPC writes it: "host:port", "unix:PATH".
      token: the gateway's token, if it has one; or a function that returns it, for tokens that change. Without TLS
        everybody on the way can read it.
      tls: None for no encryption; True to trust the usual authorities; the path of a file with certificates; or a Tls.
      timeout: seconds for each call that does not have its own; None: the gateway's default.
      connect_timeout: seconds to wait for a connection, at the first call and after one was lost. The timeout of the
        call includes them.
      max_result_bytes: bytes of all tensors of a result. A gateway that announces more gets the call cancelled, before
        memory is allocated.

    The client connects at the first call. A call that is in flight when the gateway ends raises Unavailable; the next
    one connects again. Sessions end with the connection.

    Threads: all methods may be called from any number of threads at a time.
    Forks: a client does not work in a process that was forked after the client was made. It raises FailedPrecondition
    there. Make a client in each child process. gRPC's own rules for programs that fork apply as well.
    """

    def __init__(self, target, *, token=None, tls=None, timeout=None, connect_timeout=10.0,
                 max_result_bytes=base.MAX_RESULT_BYTES):
        super().__init__(target, token, tls, timeout, connect_timeout, max_result_bytes)
        if self._tls is None:
            self._channel = grpc.insecure_channel(target, options=self._channel_options())
        else:
            self._channel = grpc.secure_channel(target, self._tls.credentials(), options=self._channel_options())
        self._stub = rpc.GatewayStub(self._channel)
        # CallChunked for calls that send one message. gRPC needs no thread to send it.
        self._single = self._channel.unary_stream(base.CHUNKED_CALL, request_serializer=pb.UploadPart.SerializeToString,
                                                  response_deserializer=pb.DownloadPart.FromString)
        self._connecting = threading.Lock()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the sessions and closes the connection. Calls in flight raise Cancelled. May be called twice."""
        if not self._closed:
            for session in list(self._sessions):
                session.close()
            self._closed = True
            self._channel.close()

    # Calls.

    def _connect(self, deadline):
        """Returns the limits of the gateway. Connects, if there may be no connection."""
        self._check_usable()
        limits = self._limits
        if limits is not None:
            return limits
        if not self._connecting.acquire(timeout=deadline.left(self.connect_timeout)):
            deadline.left()
            raise errors.Unavailable(f"cannot connect to the gateway at {self.target} within {self.connect_timeout} s")
        try:
            if self._limits is None:
                self._connected(self._get_info(deadline))
            return self._limits
        finally:
            self._connecting.release()

    def _get_info(self, deadline):
        request = pb.GetInfoRequest()
        try:
            with Interrupts() as interrupts:
                return interrupts.run(self._stub.GetInfo, request, timeout=deadline.left(self.connect_timeout),
                                      metadata=self._metadata(), wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._connect_error(error, deadline) from None
        deadline.left()
        try:
            # Without wait_for_ready the error says why there is no connection.
            return self._stub.GetInfo(request, timeout=1, metadata=self._metadata())
        except grpc.RpcError as error:
            raise self._connect_error(error, deadline) from None

    def _ask(self, method, request, what, timeout=None, session=None):
        """Calls a method of the gateway itself."""
        deadline = plans.Deadline(self.timeout if timeout is None else timeout, what)
        self._connect(deadline)
        try:
            with Interrupts() as interrupts:
                return interrupts.run(getattr(self._stub, method), request, metadata=self._metadata(),
                                      timeout=deadline.left(self.connect_timeout))
        except grpc.RpcError as error:
            raise self._error(error, "", session) from None

    def _invoke(self, callee, arguments, keywords, options):
        return self._run(callee, arguments, keywords, options, None)

    def _stream(self, callee, arguments, options):
        return self._start_stream(callee, arguments, options, None)

    def _run(self, callee, arguments, keywords, options, session):
        deadline = plans.Deadline(self.timeout if options.timeout is None else options.timeout, callee.name)
        plan = self._plan(callee, arguments, keywords, options, session, self._connect(deadline))
        assembler = self._assembler(callee, options, session)
        try:
            with Interrupts() as interrupts:
                if plan.mode is plans.Mode.UNARY:
                    response = interrupts.run(self._stub.Call, plan.request, timeout=deadline.left(),
                                              metadata=self._metadata())
                    if options.progress:
                        options.progress(plan.total, plan.total)
                    assembler.add_response(response)
                else:
                    self._exchange(plan, assembler, deadline, options.progress, interrupts)
            return assembler.take()
        except grpc.RpcError as error:
            raise self._error(error, callee.name, session) from None

    def _exchange(self, plan, assembler, deadline, progress, interrupts):
        """Runs a call over CallChunked."""
        upload = plans.Upload(plan, progress)
        if plan.mode is plans.Mode.SINGLE:
            call = self._single(next(plan.parts()), timeout=deadline.left(), metadata=self._metadata())
        else:
            call = self._stub.CallChunked(upload, timeout=deadline.left(), metadata=self._metadata())
        upload.bind(call)
        interrupts.bind(call)
        try:
            if progress and plan.mode is plans.Mode.SINGLE:
                progress(plan.total, plan.total)
            for part in call:
                assembler.add(part)
        except grpc.RpcError:
            if upload.error is not None:
                raise upload.error from None
            raise
        except BaseException:
            call.cancel()
            raise

    def _start_stream(self, callee, arguments, options, session):
        deadline = plans.Deadline(self.timeout if options.timeout is None else options.timeout, callee.name)
        plan = self._plan(callee, arguments, {}, options, session, self._connect(deadline))
        call = self._stub.CallStream(plan.for_stream(), timeout=deadline.left(), metadata=self._metadata())
        return Stream(self, call, callee, self._assembler(callee, options, session), session)

    # The gateway, its workers and their functions.

    def info(self):
        """The gateway's version, name and limits, as attributes with the names of Info's fields in gateway.proto."""
        return base.info_of(self._ask("GetInfo", pb.GetInfoRequest(), "info"))

    def workers(self):
        """The workers of the job, each a Worker, in ascending order of their ids."""
        return [base.Worker.of(each) for each in self._ask("ListWorkers", pb.ListWorkersRequest(), "workers").workers]

    @property
    def functions(self):
        """The functions, classes and operators that may be called, by name: see Functions. Loaded at the first use."""
        return functions.Functions(self._loaded_table(), self._python_function)

    def load_functions(self):
        """Loads the list of functions again, and returns it."""
        self._table = None
        return self.functions

    def _loaded_table(self):
        table = self._table
        if table is None:
            messages, token, more = [], b"", True
            while more:
                response = self._ask("ListFunctions", pb.ListFunctionsRequest(page_token=token), "functions")
                token = self._add_page(messages, response)
                more = bool(token)
            table = self._table = functions.Table(messages)
        return table

    def _python_function(self, kind, name, variants):
        def function(*arguments, session=self, **options):
            if kind == "operator":
                return session.op(name, *arguments, **options)
            if kind == "class":
                if session is self:
                    raise errors.FailedPrecondition(f"{name}: constructing an object needs `session=`", callee=name)
                return session.create(name, *arguments, **options)
            return (session.stream if streams else session.call)(name, *arguments, **options)

        streams = variants[0].is_stream()
        return functions.dress(function, variants, Ref)

    def session(self):
        """Opens a session: the time for which objects on workers live. Use it in a `with` statement."""
        return Session(self)


class Session(base.BaseSession):
    """The life of objects on workers. They are released when the session ends: at the end of its `with` block, by
    close(), with the client, and when the connection to the gateway is lost.

        with client.session() as session:
            ps = session.create("ParameterServer", 10)
            ps.push(gradient)
            weights = ps.pull()
            h = session.call("features", x, keep=True)   # stays on the worker
            y = session.call("classify", h)
    """

    def __init__(self, client):
        super().__init__(client)
        deadline = plans.Deadline(client.timeout, "opening a session")
        limits = client._connect(deadline)
        self._closing = threading.Event()
        interval = max(limits.session_idle / 3, 0.05) if limits.session_idle else None
        self._call = client._stub.OpenSession(_pings(self._closing, interval), metadata=client._metadata())
        # The stream itself has no deadline.
        timer = threading.Timer(deadline.left(client.connect_timeout), self._call.cancel)
        timer.daemon = True
        timer.start()
        try:
            with Interrupts() as interrupts:
                interrupts.bind(self._call)
                self._opened(next(self._call))
        except StopIteration:
            raise errors.ProtocolError("the gateway ended a session without opening it") from None
        except grpc.RpcError as error:
            raise client._error(error, "") from None
        except BaseException:
            self._call.cancel()
            raise
        finally:
            timer.cancel()
            if not self._id:
                self._closing.set()
        self._call.add_done_callback(_end_noter(weakref.ref(self), self._closing))
        client._sessions.add(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if hasattr(self, "_call"):
            self._closing.set()
            self._call.cancel()

    def close(self):
        """Ends the session and waits until the gateway has released its objects. May be called twice."""
        if self.ended:
            return
        self._note_end("the program closed it")
        self._closing.set()  # Ends the requests, and so the session.
        timer = threading.Timer(CLOSE_TIMEOUT, self._call.cancel)
        timer.daemon = True
        timer.start()
        try:
            for _ in self._call:
                pass
        except grpc.RpcError:
            pass  # It has ended, too.
        finally:
            timer.cancel()
            self._call.cancel()

    def release(self, *references, timeout=None):
        """Releases several references in one message."""
        handles = [each._gradwire_handle(self) for each in references if not each._released]
        for each in references:
            each._released = True
        if handles and not self.ended:
            request = pb.ReleaseRequest(session=self._live_id(), handles=handles)
            self._client._ask("Release", request, "release", timeout, self)

    def _ref(self, handle):
        return Ref(self, handle)


def _pings(closing, interval):
    """The requests of a session. Each one shows the gateway that the client lives."""
    while not closing.wait(interval):
        yield pb.SessionRequest()


def _end_noter(weak_session, closing):
    """A function that notes the end of a session's stream, and does not keep the session alive."""
    def note(call):
        closing.set()
        session = weak_session()
        if session is not None:
            session._note_end(f"{call.code().name}, {call.details() or 'the gateway ended it'}")

    return note


class Ref(base.BaseRef):
    __doc__ = base.BaseRef.__doc__

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def __getattr__(self, name):
        # Also called for attributes that libraries try, for example __array__, and before __init__.
        if name.startswith("_"):
            raise AttributeError(name)
        client = self._session._client
        variants = self._variants(client._loaded_table(), name)
        if not variants:
            client._table = None  # A worker may have joined since.
            variants = self._variants(client._loaded_table(), name)
        if not variants:
            raise self._no_method(client._loaded_table(), name)
        full = base.method_name(variants)

        def method(*arguments, **options):
            return (self.stream if streams else self.call)(full, *arguments, **options)

        streams = variants[0].is_stream()
        return functions.dress(method, variants, Ref)

    def __dir__(self):
        return [*super().__dir__(), *self._session._client._loaded_table().methods(self.type)]


class Stream:
    """The values of a stream, in order: an iterator. Use it in a `for` statement, or in a `with` statement if the
    program may stop early."""

    def __init__(self, client, call, callee, assembler, session):
        self._client = client
        self._call = call
        self._callee = callee
        self._assembler = assembler
        self._session = session
        self._done = False

    def __iter__(self):
        return self

    def __next__(self):
        if self._done:
            raise StopIteration
        try:
            with Interrupts() as interrupts:
                interrupts.bind(self._call)
                while not self._assembler.complete():
                    self._assembler.add(next(self._call))
            return self._assembler.take()
        except StopIteration:
            self._done = True
            self._assembler.ended()
            raise
        except grpc.RpcError as error:
            self._done = True
            raise self._client._error(error, self._callee.name, self._session) from None
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()

    def close(self):
        """Cancels the function, if it has not ended. May be called twice."""
        self._done = True
        self._call.cancel()
