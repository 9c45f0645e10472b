"""Calls the workers of a Gradwire job, through the job's gateway.

    import numpy as np
    from gradwire_client import Client

    with Client("localhost:50051") as client:
        y = client.call("scale", np.ones((2, 3), np.float32), 2.0)

Client and AsyncClient have the same methods; those of AsyncClient are awaited. The documentation of Client.call lists
the types of arguments and results. Every error is an Error of this package.
"""

from gradwire_client.aio import AsyncClient, AsyncRef, AsyncSession, AsyncStream
from gradwire_client.arrays import Device, DType, RawArray
from gradwire_client.base import Tls, Worker
from gradwire_client.client import Client, Ref, Session, Stream
from gradwire_client.errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error,
                                    FailedPrecondition, Internal, InvalidArgument, NotFound, OutOfRange,
                                    PermissionDenied, ProtocolError, RemoteError, ResourceExhausted, SessionEnded,
                                    Unauthenticated, Unavailable, Unimplemented)
from gradwire_client.functions import Function, Functions
from gradwire_client.progress import ProgressLine
from gradwire_client.values import UNDEFINED, Message, Status
from gradwire_client.version import VERSION as __version__
