"""The errors of this package, one class for each code of the gateway."""

import grpc

from gradwire_client._proto import gateway_pb2 as pb

# The key of the trailing metadata that describes an error.
DETAIL_KEY = "gradwire-error-bin"


class Error(Exception):
    """A call, or another operation of the client, failed. The class says why; `str(error)` says what happened.

    Attributes:
      code: the grpc.StatusCode.
      message: the message of the gateway or of this package, without what `str(error)` adds.
      worker: the name of the worker where the error arose; "" for the gateway, the client, or unknown.
      callee: the name of the function, class, method or operator; "" if the error does not belong to one.
      argument: the position of the argument that does not fit, from 1; 0 for none.
      keyword: its name, if it is a keyword argument.
      wanted, got: the type that the callee wants, and the one that it got; "" if the error is not about types.
      limit, option: the limit that was reached, and the option of the gateway or the client that sets it.
    """

    code = grpc.StatusCode.UNKNOWN
    FIELDS = ("worker", "callee", "argument", "keyword", "wanted", "got", "limit", "option")

    def __init__(self, message, code=None, **fields):
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        for name in self.FIELDS:
            setattr(self, name, fields.pop(name, 0 if name == "argument" else ""))
        if fields:
            raise TypeError(f"unknown fields of an error: {sorted(fields)}")

    def __str__(self):
        shown = [f"{name} {getattr(self, name)}" for name in self.FIELDS
                 if getattr(self, name) and str(getattr(self, name)) not in self.message]
        return self.message + (f" ({', '.join(shown)})" if shown else "")

    def __reduce__(self):
        return _restore, (type(self), self.message, self.code, {name: getattr(self, name) for name in self.FIELDS})


def _restore(kind, message, code, fields):
    return kind(message, code, **fields)


class Cancelled(Error):
    """The call was cancelled: by Stream.close(), by Client.close(), or by the callee."""

    code = grpc.StatusCode.CANCELLED


class RemoteError(Error):
    """The callee threw an exception. The message is the exception's."""

    code = grpc.StatusCode.UNKNOWN


class InvalidArgument(Error, ValueError):
    """An argument does not fit: see `argument`, `keyword`, `wanted` and `got`."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class DeadlineExceeded(Error, TimeoutError):
    """The timeout passed before the result arrived. The call may have run."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class NotFound(Error, LookupError):
    """There is no such worker, function, session or object."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(Error):
    """The callee reports that something exists already."""

    code = grpc.StatusCode.ALREADY_EXISTS


class PermissionDenied(Error):
    """The gateway or the worker does not allow this callee."""

    code = grpc.StatusCode.PERMISSION_DENIED


class Unauthenticated(Error):
    """The gateway needs a token, and this client has none or a wrong one."""

    code = grpc.StatusCode.UNAUTHENTICATED


class ResourceExhausted(Error):
    """A limit was reached: see `limit`, and `option`, which sets it."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class FailedPrecondition(Error):
    """The operation needs another state, for example a session or an open client."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Aborted(Error):
    """The operation was aborted, for example because a worker was started again."""

    code = grpc.StatusCode.ABORTED


class OutOfRange(Error):
    """The callee reports a value out of its range."""

    code = grpc.StatusCode.OUT_OF_RANGE


class Unimplemented(Error):
    """The gateway does not have this feature."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Internal(Error):
    """A bug in Gradwire."""

    code = grpc.StatusCode.INTERNAL


class ProtocolError(Internal):
    """The gateway sent something that its protocol does not allow. The client cancelled the call."""


class Unavailable(Error):
    """The gateway cannot be reached, or the worker is lost. The call may have run."""

    code = grpc.StatusCode.UNAVAILABLE


class SessionEnded(Error):
    """The session of the call has ended, and its objects are gone. Open another session, and create them again."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class DataLoss(Error):
    """The callee reports lost data."""

    code = grpc.StatusCode.DATA_LOSS


CLASSES = {kind.code: kind for kind in (
    Cancelled, RemoteError, InvalidArgument, DeadlineExceeded, NotFound, AlreadyExists, PermissionDenied,
    Unauthenticated, ResourceExhausted, FailedPrecondition, Aborted, OutOfRange, Unimplemented, Internal, Unavailable,
    DataLoss)}


def detail_of(error):
    """The ErrorDetail of an RPC that failed; None if the gateway did not send a valid one."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAIL_KEY:
            try:
                return pb.ErrorDetail.FromString(value)
            except Exception:  # The class depends on the implementation of Protobuf.
                return None
    return None


def error_of(error, target, callee=""):
    """The Error for a failed RPC of gRPC to the gateway at `target`."""
    detail = detail_of(error)
    message = error.details() or error.code().name
    fields = {"callee": callee}
    if detail is not None:
        fields = {name: getattr(detail, name) for name in Error.FIELDS}
        fields["callee"] = fields["callee"] or callee
    elif error.code() == grpc.StatusCode.UNAVAILABLE:
        message = f"gateway {target}: {message}"
    return CLASSES.get(error.code(), RemoteError)(message, error.code(), **fields)
