"""The parts that Client and AsyncClient have in common. Nothing here waits."""

import dataclasses
import itertools
import os
import types
import typing
import weakref

import grpc

from gradwire_client import arrays, errors, functions, plans
from gradwire_client._proto import gateway_pb2 as pb

# The default of max_result_bytes.
MAX_RESULT_BYTES = 4 << 30
# ListFunctions ends after so many functions, if the gateway has not ended it.
MAX_FUNCTIONS = 1_000_000
WORKER_STATES = {pb.STATE_ALIVE: "alive", pb.STATE_SUSPECT: "suspect", pb.STATE_GONE: "gone"}
CHUNKED_CALL = "/gradwire.gateway.v1.Gateway/CallChunked"
# A gateway that was started again is found soon: gRPC's own default waits up to two minutes between attempts.
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The largest message of the protocol, with some bytes for the message around it.
    ("grpc.max_receive_message_length", plans.MAX_UNARY_BYTES + (64 << 10)),
    ("grpc.max_send_message_length", plans.MAX_UNARY_BYTES + (64 << 10)),
    # Each client has connections of its own: the gateway's limits are per connection.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclasses.dataclass(frozen=True)
class Tls:
    """How to connect to a gateway, or to a proxy before it, that uses TLS.

    `ca` is the path of a file with the certificates of authorities in PEM; None: those that gRPC trusts. `certificate`
    and `key` are the paths of this client's own certificate and key, if the gateway asks for one. `server_name` is the
    name in the gateway's certificate, if it differs from the host in the address.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None

    def credentials(self):
        contents = []
        for path in (self.ca, self.key, self.certificate):
            contents.append(None)
            if path is not None:
                with open(path, "rb") as file:
                    contents[-1] = file.read()
        return grpc.ssl_channel_credentials(*contents)


@dataclasses.dataclass(frozen=True)
class Worker:
    """A worker of the job: its name, its id, and its state, which is "alive", "suspect" or "gone"."""

    name: str
    id: int
    state: str
    gateway: bool

    @classmethod
    def of(cls, message):
        return cls(message.name, message.id, WORKER_STATES.get(message.state, "unknown"), message.gateway)


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one call."""

    worker: str | None = None
    timeout: float | None = None
    keep: bool = False
    progress: typing.Callable | None = None
    result_progress: typing.Callable | None = None
    small_result: bool = False


@dataclasses.dataclass(frozen=True)
class Callee:
    """The thing that a call calls: `kind` is "function", "operator", "class", "method" or "fetch"; `reference` is for
    the last two."""

    kind: str
    name: str
    reference: typing.Any = None

    def write(self, request, session):
        if self.kind == "function":
            request.function = self.name
        elif self.kind == "operator":
            request.operator = self.name
        elif self.kind == "class":
            request.constructor = self.name
        elif self.kind == "method":
            request.method.object = self.reference._gradwire_handle(session)
            request.method.name = self.name
        else:
            request.fetch = self.reference._gradwire_handle(session)


class Calls:
    """The calls of clients and sessions. Those of AsyncClient and AsyncSession are awaited."""

    def _invoke(self, callee, arguments, keywords, options):
        raise NotImplementedError

    def _stream(self, callee, arguments, options):
        raise NotImplementedError

    def call(self, name, *arguments, worker=None, timeout=None, keep=False, progress=None, result_progress=None,
             small_result=False):
        """Calls the function `name` of a worker, and returns its result.

        Arguments and results:
          - None, bool, int, float, complex, str and bytes; lists, tuples and dicts of values;
          - arrays of NumPy; results are arrays of NumPy too. Objects with __dlpack__ or __array__, and tensors of
            PyTorch, may be arguments. Arrays of dtypes that NumPy lacks are RawArrays, or those of the package
            ml_dtypes;
          - Ref: a value that lives on a worker, in the calls of a session;
          - Status, Message and messages of Protobuf, and UNDEFINED, which is libtorch's undefined tensor;
          - for operators also dtypes and Device.
        The program must not change an array until the call has returned: large arrays are not copied before they are
        sent.

        Options:
          worker: the name of the worker. None: the gateway chooses one that serves the function.
          timeout: in seconds, for the whole call. None: the client's.
          keep: the result stays on the worker, and the call returns a Ref. Only in a session.
          progress: is called as progress(sent, total), in bytes of tensors, while the arguments are sent. It runs on
            another thread (AsyncClient: in the event loop). If it raises, the call is cancelled, and raises the same.
          result_progress: is called as result_progress(received, total) while the result arrives.
          small_result: promises that the result has less than 4,000,000 bytes. This makes calls with small arguments
            faster. If it is wrong, the call runs, and raises ResourceExhausted instead of returning its result. The
            client knows it by itself for types without tensors, if it has loaded `functions`.

        Raises the subclasses of Error. KeyboardInterrupt, and the cancellation of a task, also cancel the call at the
        worker.
        """
        return self._invoke(Callee("function", name), arguments, {},
                            Options(worker, timeout, keep, progress, result_progress, small_result))

    def op(self, name, *arguments, worker=None, timeout=None, keep=False, progress=None, result_progress=None,
           small_result=False, **keywords):
        """Calls an operator of libtorch, for example op("aten::add", x, y, alpha=2). The options are those of call().

        The gateway chooses the overload by the arguments; "aten::add.Tensor" fixes it. If the first argument is a Ref,
        the operator runs where its value lives.
        """
        return self._invoke(Callee("operator", name), arguments, keywords,
                            Options(worker, timeout, keep, progress, result_progress, small_result))

    def stream(self, name, *arguments, worker=None, timeout=None):
        """Calls a function that returns a stream. Returns an iterator over its values (AsyncClient: for `async for`).

        The worker makes values only as fast as the program reads them. `close()` of the iterator cancels the function;
        a `with` block does it at its end. The timeout is for the whole stream.
        """
        return self._stream(Callee("function", name), arguments, Options(worker, timeout))


class BaseClient(Calls):
    """The options of a client, and what it knows about its gateway."""

    def __init__(self, target, token, tls, timeout, connect_timeout, max_result_bytes):
        if connect_timeout is None or not connect_timeout > 0:
            raise errors.InvalidArgument(f"connect_timeout must be positive, got {connect_timeout}")
        plans.Deadline(timeout, f"the client for {target}")
        self.target = target
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self.max_result_bytes = max_result_bytes
        self._token = token
        self._tls = Tls() if tls is True else Tls(ca=tls) if isinstance(tls, str) else tls or None
        self._limits = None  # None: not connected, or the last call found the gateway unavailable.
        self._table = None
        self._closed = False
        self._pid = os.getpid()
        self._sessions = weakref.WeakSet()
        self._session_numbers = itertools.count(1)

    def __repr__(self):
        return f"<{type(self).__name__} for {self.target}>"

    def _channel_options(self):
        options = list(CHANNEL_OPTIONS)
        if self._tls is not None and self._tls.server_name:
            options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        return options

    def _metadata(self):
        token = self._token() if callable(self._token) else self._token
        return (("authorization", f"Bearer {token}"),) if token else ()

    def _check_usable(self):
        if self._closed:
            raise errors.FailedPrecondition(f"the client for {self.target} is closed")
        if os.getpid() != self._pid:
            raise errors.FailedPrecondition(
                f"the client for {self.target} was made before fork(): make one in the child process")

    def _connected(self, info):
        self._limits = plans.Limits.of(info)
        return self._limits

    def _connect_error(self, error, deadline):
        """The error for a gateway that was not reached in time."""
        if error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
            return errors.error_of(error, self.target)
        deadline.left()  # Raises if the program's own timeout was shorter.
        details = f" ({error.details()})" if error.code() == grpc.StatusCode.UNAVAILABLE else ""
        return errors.Unavailable(
            f"cannot connect to the gateway at {self.target} within {self.connect_timeout} s{details}; check the "
            "address, whether the gateway runs, and whether it uses TLS")

    def _plan(self, callee, arguments, keywords, options, session, limits):
        request = pb.CallRequest(worker=options.worker or "", keep_result=options.keep)
        if session is not None:
            request.session = session._live_id()
        elif options.keep or callee.kind in ("class", "method", "fetch"):
            raise errors.FailedPrecondition(f"{callee.name}: needs a session: use client.session()", callee=callee.name)
        try:
            callee.write(request, session)
        except arrays.Unsupported as error:
            raise errors.InvalidArgument(f"{callee.name}: {error}", callee=callee.name) from None
        encoder = plans.encode_arguments(request, callee.name, arguments, keywords, limits, session)
        table = self._table
        small = (options.keep or options.small_result or callee.kind == "class" or
                 (table is not None and table.small_result(callee.kind, callee.name)))
        return plans.Plan(request, callee.name, limits, encoder, small)

    def _assembler(self, callee, options, session):
        def new_ref(handle):
            if session is None:
                raise errors.ProtocolError(
    f"{callee.name}: got a reference in a call without a session",
     callee=callee.name)
            return session._ref(handle)

        return plans.Assembler(callee.name, self.max_result_bytes, new_ref, options.result_progress)

    def _error(self, error, callee, session=None):
        """The Error for a call that failed with an error of gRPC."""
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            # The next call waits for a connection. The gateway may be another one then.
            self._limits = None
            self._table = None
        found = errors.error_of(error, self.target, callee)
        if session is not None and session.ended and isinstance(found, (errors.NotFound, errors.Unavailable)):
            found = session._ended_error(found)
        return found

    def _add_page(self, messages, response):
        """Adds a page of ListFunctions. Returns the token of the next one; b"" after the last page."""
        messages.extend(response.functions)
        if len(messages) > MAX_FUNCTIONS or (response.next_page_token and not response.functions):
            raise errors.ProtocolError(f"malformed list of functions: it does not end after {len(messages)} functions")
        return response.next_page_token


class BaseSession(Calls):
    """A session's number, its client, its id and how it ended."""

    def __init__(self, client):
        self._client = client
        self.number = next(client._session_numbers)
        self._id = b""
        self._end = None  # Why it ended; None: it has not ended.

    def __repr__(self):
        return f"<session {self.number} at {self._client.target}{', ended' if self.ended else ''}>"

    @property
    def ended(self):
        """Whether the session has ended, with its objects."""
        return self._end is not None

    def _live_id(self):
        if self._end is not None:
            raise self._ended_error()
        if not self._id:
            raise errors.FailedPrecondition(f"{self!r} is not open: use `async with`, or await its open()")
        return self._id

    def _ended_error(self, cause=None):
        code = cause.code if cause is not None else None
        return errors.SessionEnded(
            f"session {self.number} at {self._client.target} has ended: {self._end}; its objects are gone: open "
            "another session, and create them again", code, callee=cause.callee if cause is not None else "")

    def _opened(self, event):
        if event.WhichOneof("event") != "opened" or not event.opened.session:
            raise errors.ProtocolError("malformed event of a session: expected its id first")
        self._id = event.opened.session

    def _note_end(self, why):
        if self._end is None:
            self._end = why

    def _ref(self, handle):
        raise NotImplementedError

    def _invoke(self, callee, arguments, keywords, options):
        return self._client._run(callee, arguments, keywords, options, self)

    def _stream(self, callee, arguments, options):
        return self._client._start_stream(callee, arguments, options, self)

    def create(self, name, *arguments, worker=None, timeout=None, progress=None):
        """Constructs an object of the class `name` on a worker. Returns the Ref to it. The options are those of call().

        The methods of the class are methods of the Ref.
        """
        return self._invoke(Callee("class", name), arguments, {}, Options(worker, timeout, progress=progress))


class BaseRef:
    """A value that lives on a worker: an object, or the result of a call with keep=True.

    It may be an argument of calls of the same session. If it is an object whose class has methods that the program
    registered, they are its attributes: `ps.push(gradient)`. A method that returns a stream gives an iterator. The name
    `fetch`, `release`, `call` or `stream` of a method is used as `ps.call("fetch")`.

    Attributes:
      type: the type of the value, for example "Tensor" or the name of a class.
      worker: the name of the worker that owns it.
    """

    def __init__(self, session, handle):
        self._session = session
        self._id = handle.id
        self._released = False
        self.type = handle.type
        self.worker = handle.worker

    def __repr__(self):
        state = "released" if self._released else f"on {self.worker}"
        return f"<reference to {self.type} {state}, session {self._session.number}>"

    def _gradwire_handle(self, session):
        """The handle's id for a call in `session`. Raises arrays.Unsupported."""
        if self._released:
            raise arrays.Unsupported(f"the reference to {self.type} was released", self.type)
        if session is not self._session:
            other = f"session {session.number}" if session is not None else "no session"
            raise arrays.Unsupported(
                f"the reference to {self.type} belongs to session {self._session.number}, and the call to {other}; "
                "call through the session of the reference", self.type)
        return self._id

    def fetch(self, timeout=None, result_progress=None):
        """Returns a copy of the value. Objects of classes cannot be fetched."""
        return self._session._invoke(Callee("fetch", f"fetch of {self.type}", self), (), {},
                                     Options(timeout=timeout, result_progress=result_progress))

    def call(self, method, *arguments, timeout=None, keep=False,
             progress=None, result_progress=None, small_result=False):
        """Calls a method of the object: its full name, as in "model::ParameterServer::push". The options are those of
        Client.call()."""
        return self._session._invoke(Callee("method", method, self), arguments, {},
                                     Options(None, timeout, keep, progress, result_progress, small_result))

    def stream(self, method, *arguments, timeout=None):
        """Calls a method that returns a stream, by its full name. As Client.stream()."""
        return self._session._stream(Callee("method", method, self), arguments, Options(timeout=timeout))

    def release(self, timeout=None):
        """Releases the value. The worker destroys it when no call uses it. The end of the session does it too."""
        return self._session.release(self, timeout=timeout)

    def _variants(self, table, name):
        return table.methods(self.type).get(name)

    def _no_method(self, table, name):
        return AttributeError(f"class {self.type} has no registered method {name!r}, only: "
                              f"{', '.join(sorted(table.methods(self.type))) or 'none'}")


def method_name(variants):
    """The full name of a method. Methods of one class whose full names differ must be called by that."""
    names = {each.name for each in variants}
    if len(names) > 1:
        raise AttributeError(f"several methods have this name: {', '.join(sorted(names))}; use call() with one of them")
    return variants[0].name


def info_of(message):
    """The fields of pb.Info as attributes."""
    return types.SimpleNamespace(**{field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields})
