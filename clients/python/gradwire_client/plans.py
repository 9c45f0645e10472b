"""The messages that a call sends, and how its answer is put together. Nothing here waits, so Client and AsyncClient
share it."""

import dataclasses
import enum
import threading
import time

from gradwire_client import arrays, values
from gradwire_client._proto import gateway_pb2 as pb
from gradwire_client.errors import DeadlineExceeded, InvalidArgument, ProtocolError, ResourceExhausted

# Limits of the protocol. A gateway may have smaller ones.
MAX_UNARY_BYTES = 4_128_768
MAX_CHUNK_BYTES = 1 << 20
# Tensors of a call that are together not larger are sent inside the first message.
INLINE_BYTES = 1 << 20
# In a call with chunks, a tensor that is not larger is sent inside the first message.
INLINE_TENSOR_BYTES = 1 << 10
# Seconds from the start of a call until gRPC has returned it. Usually microseconds.
BIND_TIMEOUT = 60


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a gateway, from its Info. A limit that makes no sense counts as the one of the protocol."""

    unary_bytes: int = MAX_UNARY_BYTES
    chunk_bytes: int = MAX_CHUNK_BYTES
    call_bytes: int = 0  # 0: no limit.
    depth: int = 32
    session_idle: float = 0  # Seconds; 0: no limit.

    @classmethod
    def of(cls, info):
        return cls(unary_bytes=min(info.max_unary_bytes or MAX_UNARY_BYTES, MAX_UNARY_BYTES),
                   chunk_bytes=min(info.max_chunk_bytes or MAX_CHUNK_BYTES, MAX_CHUNK_BYTES),
                   call_bytes=info.max_call_bytes,
                   depth=min(info.max_depth or 32, values.MAX_DEPTH),
                   session_idle=info.session_idle_ms / 1000)


class Deadline:
    """The end of an operation with a timeout in seconds; None: no limit."""

    def __init__(self, timeout, what):
        if timeout is not None and not timeout > 0:
            raise InvalidArgument(f"timeout of {what} must be positive, got {timeout}")
        self._timeout = timeout
        self._what = what
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self, at_most=None):
        """The seconds that are left, or `at_most`, or None. Raises DeadlineExceeded."""
        if self._end is None:
            return at_most
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"{self._what}: the timeout of {self._timeout} s has passed", callee=self._what)
        return left if at_most is None else min(left, at_most)


class Mode(enum.Enum):
    """How a call travels."""

    UNARY = 1  # One message in each direction.
    SINGLE = 2  # One message to the gateway, and any number back.
    CHUNKED = 3  # Any number of messages in each direction.


class Plan:
    """One call: its request, the bytes of its tensors and how they travel."""

    def __init__(self, request, callee, limits, encoder, small_result):
        self.request = request
        self.callee = callee
        self._limits = limits
        self._chunked = []
        tensors = encoder.tensors
        self.total = sum(source.nbytes for _, source in tensors)
        if limits.call_bytes and self.total > limits.call_bytes:
            raise ResourceExhausted(
                f"{callee}: got tensors of {self.total} bytes, expected at most {limits.call_bytes}; call with fewer, "
                "or start the gateway with a larger limit", callee=callee, limit="max_call_bytes")
        # The length of a tensor's bytes, and of the messages around it, takes some bytes too.
        overhead = 64 + 32 * len(tensors)
        inline = self.total <= INLINE_BYTES and request.ByteSize() + self.total + overhead <= limits.unary_bytes
        self._place(tensors, -1 if not inline else self.total)
        if not inline and request.ByteSize() + overhead > limits.unary_bytes:
            self._place(tensors, 0)
        if request.ByteSize() + overhead > limits.unary_bytes:
            raise ResourceExhausted(
                f"{callee}: the arguments without the bytes of large tensors have {request.ByteSize()} bytes, expected "
                f"at most {limits.unary_bytes}; send long lists, strings and bytes as tensors", callee=callee,
                limit="max_unary_bytes")
        if self._chunked:
            self.mode = Mode.CHUNKED
        else:
            self.mode = Mode.UNARY if small_result else Mode.SINGLE

    def _place(self, tensors, inline):
        """Puts the bytes of tensors of at most `inline` bytes into the request; -1: INLINE_TENSOR_BYTES."""
        inline = INLINE_TENSOR_BYTES if inline < 0 else inline
        self._chunked = []
        for message, source in tensors:
            message.chunked = source.nbytes > inline
            message.data = b"" if message.chunked else bytes(source.view)
            if message.chunked:
                self._chunked.append(source)

    def for_stream(self):
        """Returns the request of a CallStream. Its tensors cannot follow in chunks."""
        if self._chunked:
            raise ResourceExhausted(
                f"{self.callee}: the arguments of a stream have {self.total} bytes of tensors, expected at most "
                f"{min(INLINE_BYTES, self._limits.unary_bytes)}; store large ones on the worker with keep=True, and "
                "pass the reference", callee=self.callee, limit="max_unary_bytes")
        return self.request

    def parts(self, progress=None):
        """Yields the messages to send. Calls progress(sent, total) after each one."""
        yield pb.UploadPart(request=self.request)
        sent = self.total - sum(source.nbytes for source in self._chunked)
        if progress:
            progress(sent, self.total)
        size = self._limits.chunk_bytes
        for number, source in enumerate(self._chunked):
            for offset in range(0, source.nbytes, size):
                data = bytes(source.view[offset:offset + size])
                yield pb.UploadPart(chunk=pb.Chunk(tensor=number, offset=offset, data=data))
                sent += len(data)
                if progress:
                    progress(sent, self.total)


class Upload:
    """An iterator over the messages of a plan, for gRPC, which reads it on a thread of its own.

    If the program's progress function raises, the call is cancelled, and `error` is the exception.
    """

    def __init__(self, plan, progress):
        self._parts = plan.parts(progress)
        self._call = None
        self._bound = threading.Event()
        self.error = None

    def bind(self, call):
        """Says which call reads this iterator. gRPC may have begun to read it."""
        self._call = call
        self._bound.set()

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return next(self._parts)
        except StopIteration:
            raise
        except BaseException as error:
            # Cancel before the iteration ends, because its end starts the call.
            self.error = error
            if self._bound.wait(BIND_TIMEOUT):
                self._call.cancel()
            raise StopIteration from None


class Assembler:
    """Puts the values of an answer together, from the messages of the gateway in the order of their arrival."""

    def __init__(self, callee, max_bytes, new_ref, progress=None):
        self._callee = callee
        self._max_bytes = max_bytes
        self._new_ref = new_ref
        self._progress = progress
        self._targets = None  # None: no response has arrived, or its value was taken.
        self._value = None
        self._index = 0  # The tensor to which the next chunk belongs.
        self._offset = 0
        self._received = 0
        self._total = 0

    def add_response(self, response):
        if self._targets is not None:
            raise ProtocolError(f"{self._callee}: malformed answer: a second result before the first one was complete")
        decoder = values.Decoder(self._max_bytes, self._new_ref)
        try:
            self._value = decoder.decode(response.result)
        except arrays.OverBudget as error:
            raise ResourceExhausted(
                f"{self._callee}: the result has a tensor of {error.nbytes} bytes, expected at most "
                f"{self._max_bytes} bytes in all; make max_result_bytes of the client larger",
                callee=self._callee, limit="max_result_bytes", option="max_result_bytes") from None
        except ProtocolError as error:
            raise ProtocolError(f"{self._callee}: {error.message}", callee=self._callee) from None
        self._targets = decoder.targets
        self._index, self._offset = 0, 0
        self._total = self._max_bytes - decoder.budget
        self._received = self._total - sum(target.nbytes for target in self._targets)
        self._skip_empty()
        if self._progress:
            self._progress(self._received, self._total)

    def add(self, part):
        """Adds a pb.DownloadPart."""
        kind = part.WhichOneof("part")
        if kind == "response":
            self.add_response(part.response)
        elif kind == "chunk":
            self._add_chunk(part.chunk)
        else:
            raise ProtocolError(f"{self._callee}: malformed answer: got a message with neither a result nor a chunk")

    def _add_chunk(self, chunk):
        if self._targets is None or self._index == len(self._targets):
            raise ProtocolError(f"{self._callee}: malformed answer: got a chunk, expected a result or the end")
        target = self._targets[self._index]
        size = len(chunk.data)
        if (chunk.tensor, chunk.offset) != (self._index, self._offset):
            raise ProtocolError(
                f"{self._callee}: malformed answer: got a chunk at byte {chunk.offset} of tensor {chunk.tensor}, "
                f"expected byte {self._offset} of tensor {self._index}")
        if not 1 <= size <= min(MAX_CHUNK_BYTES, target.nbytes - self._offset):
            raise ProtocolError(
                f"{self._callee}: malformed answer: got a chunk of {size} bytes, expected 1 to "
                f"{min(MAX_CHUNK_BYTES, target.nbytes - self._offset)}")
        target.view[self._offset:self._offset + size] = chunk.data
        self._offset += size
        self._received += size
        if self._offset == target.nbytes:
            self._complete(target)
            self._index, self._offset = self._index + 1, 0
            self._skip_empty()
        if self._progress:
            self._progress(self._received, self._total)

    def _skip_empty(self):
        """A tensor with no bytes has no chunks."""
        while self._index < len(self._targets) and self._targets[self._index].nbytes == 0:
            self._index += 1

    def _complete(self, target):
        try:
            target.complete()
        except arrays.BadTensor as error:
            raise ProtocolError(f"{self._callee}: malformed tensor: {error}") from None

    def complete(self):
        """Whether a value is there with all of its bytes."""
        return self._targets is not None and self._index == len(self._targets)

    def take(self):
        """Returns the value, and is then ready for the next one."""
        if not self.complete():
            missing = "no result" if self._targets is None else f"{self._received} of {self._total} bytes"
            raise ProtocolError(f"{self._callee}: malformed answer: it ended after {missing}")
        value, self._value, self._targets = self._value, None, None
        return value

    def ended(self):
        """Checks that the answer may end here, for streams."""
        if self._targets is not None:
            self.take()


def encode_arguments(request, callee, arguments, keywords, limits, session):
    """Writes the arguments to the request, and returns the values.Encoder. Raises InvalidArgument."""
    encoder = values.Encoder(limits.depth, session)
    for position, value in enumerate(arguments, 1):
        try:
            encoder.encode(value, request.arguments.add())
        except arrays.Unsupported as error:
            raise InvalidArgument(f"{callee}: argument {position}: {error}", callee=callee, argument=position,
                                  wanted=error.wanted, got=error.got) from error
    for name, value in keywords.items():
        keyword = request.keywords.add(name=name)
        try:
            encoder.encode(value, keyword.value)
        except arrays.Unsupported as error:
            raise InvalidArgument(f"{callee}: argument {name}: {error}", callee=callee, keyword=name,
                                  wanted=error.wanted, got=error.got) from error
    return encoder
