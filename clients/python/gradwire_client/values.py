"""Values of Python programs to the messages of gateway.proto, and back."""

import collections.abc
import sys

import grpc
import numpy as np
from google.protobuf import message as protobuf

from gradwire_client import arrays
from gradwire_client._proto import gateway_pb2 as pb
from gradwire_client.errors import ProtocolError

# Levels of nested values in a result. Protobuf itself refuses about the same number.
MAX_DEPTH = 100
INT64 = range(-(1 << 63), 1 << 63)
UINT64 = range(1 << 64)


class _Undefined:
    """The type of UNDEFINED."""

    __slots__ = ()

    def __repr__(self):
        return "gradwire_client.UNDEFINED"

    def __bool__(self):
        return False


# libtorch's undefined tensor, as an argument or as a result.
UNDEFINED = _Undefined()


class Status:
    """A status as a value: `code` is a grpc.StatusCode, and `worker` the name of the worker it comes from."""

    def __init__(self, code, message="", worker=""):
        self.code = code
        self.message = message
        self.worker = worker

    def __eq__(self, other):
        return isinstance(other, Status) and vars(self) == vars(other)

    def __hash__(self):
        return hash((self.code, self.message, self.worker))

    def __repr__(self):
        return f"Status({self.code.name}, {self.message!r}, {self.worker!r})"


class Message:
    """A Protobuf message of the program: the full name of its type and its bytes. An argument may also be a message of
    google.protobuf itself. `parse(Type)` returns the bytes of a result as a message of this type."""

    def __init__(self, type, serialized):
        self.type = type
        self.serialized = serialized

    def parse(self, cls):
        if cls.DESCRIPTOR.full_name != self.type:
            raise ValueError(f"Message.parse: got {cls.DESCRIPTOR.full_name}, expected {self.type}")
        return cls.FromString(self.serialized)

    def __eq__(self, other):
        return isinstance(other, Message) and vars(self) == vars(other)

    def __hash__(self):
        return hash((self.type, self.serialized))

    def __repr__(self):
        return f"Message({self.type!r}, {len(self.serialized)} bytes)"


STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Encoder:
    """Encodes the arguments of one call. `tensors` are pairs (pb.Tensor, arrays.Source) in the order of the
    protocol."""

    def __init__(self, max_depth, session):
        self.tensors = []
        self._max_depth = max_depth
        self._session = session

    def encode(self, value, out, depth=0):
        """Writes `value` to the pb.Value `out`. Raises arrays.Unsupported."""
        if depth > self._max_depth:
            raise arrays.Unsupported(f"lists, tuples and dicts are nested more than {self._max_depth} levels deep",
                                     type(value).__name__)
        if self._simple(value, out):
            return
        if arrays.is_array(value):
            source = arrays.source_of(value)
            out.tensor.dtype = source.number
            out.tensor.shape.extend(source.shape)
            self.tensors.append((out.tensor, source))
        elif isinstance(value, (list, tuple)):
            self._sequence(value, out, depth)
        elif isinstance(value, collections.abc.Mapping):
            out.map.SetInParent()
            # The bytes of all keys are sent before those of the values.
            for key in value.keys():
                self.encode(key, out.map.keys.add(), depth + 1)
            for each in value.values():
                self.encode(each, out.map.values.add(), depth + 1)
        elif not self._special(value, out):
            raise arrays.Unsupported(f"cannot send a {type(value).__name__}", type(value).__name__)

    def _simple(self, value, out):
        if value is None:
            out.none.SetInParent()
        elif isinstance(value, (bool, np.bool_)):
            out.boolean = bool(value)
        elif isinstance(value, (int, np.integer)):
            number = int(value)
            if number in INT64:
                out.integer = number
            elif number in UINT64:
                out.unsigned_integer = number
            else:
                raise arrays.Unsupported(f"got the integer {number:.6g}, expected 64 bits"
                                         if abs(number) < 10**300 else "got an integer of more than 64 bits", "int")
        elif isinstance(value, (float, np.floating)) or arrays.is_ml_number(value):
            out.real = float(value)
        elif isinstance(value, (complex, np.complexfloating)):
            number = complex(value)
            out.complex.real, out.complex.imaginary = number.real, number.imag
            out.complex.SetInParent()
        elif isinstance(value, arrays.Device):
            out.device = value
        elif isinstance(value, str) and not isinstance(value, arrays.DType):
            try:
                out.text = value
            except (UnicodeError, ValueError) as error:
                raise arrays.Unsupported(f"cannot encode a string as UTF-8: {error}; send bytes", "str") from error
        elif isinstance(value, (bytes, bytearray, memoryview)):
            out.data = bytes(value)
        elif value is UNDEFINED:
            out.undefined_tensor.SetInParent()
        else:
            return False
        return True

    def _sequence(self, values, out, depth):
        if isinstance(values, list) and values:
            kinds = set(map(type, values))
            if kinds == {int} and min(values) in INT64 and max(values) in INT64:
                out.integers.values.extend(values)
                return
            if kinds == {float}:
                out.reals.values.extend(values)
                return
        target = out.list if isinstance(values, list) else out.tuple
        target.SetInParent()
        for each in values:
            self.encode(each, target.values.add(), depth + 1)

    def _special(self, value, out):
        name = arrays.dtype_name(value)
        torch = sys.modules.get("torch")
        handle = getattr(type(value), "_gradwire_handle", None)
        if handle is not None:
            out.handle.id = value._gradwire_handle(self._session)
        elif isinstance(value, Status):
            out.status.code = value.code.value[0]
            out.status.message, out.status.worker = value.message, value.worker
        elif isinstance(value, Message):
            out.message.type, out.message.serialized = value.type, value.serialized
        elif isinstance(value, protobuf.Message):
            out.message.type, out.message.serialized = value.DESCRIPTOR.full_name, value.SerializeToString()
        elif name is not None:
            number = arrays.dtype_number(name)
            if number is None:
                raise arrays.Unsupported(f"got dtype {name}, expected one that tensors can have", name, "ScalarType")
            out.dtype = number
        elif torch is not None and isinstance(value, torch.device):
            out.device = str(value)
        else:
            return False
        return True


class Decoder:
    """Decodes one result. `targets` are the arrays.Target of its chunked tensors, in the order of the protocol.

    At most `budget` bytes of tensors are allocated. `new_ref` makes the Ref for a pb.Handle.
    """

    def __init__(self, budget, new_ref):
        self.targets = []
        self.budget = budget
        self._new_ref = new_ref

    def decode(self, value, depth=0):
        """Raises ProtocolError, or arrays.OverBudget."""
        if depth > MAX_DEPTH:
            raise ProtocolError(f"malformed result: values are nested more than {MAX_DEPTH} levels deep")
        kind = value.WhichOneof("kind")
        decode = getattr(self, f"_{kind}", None)
        if decode is not None:
            return decode(getattr(value, kind), depth)
        if kind in ("boolean", "integer", "unsigned_integer", "real", "text", "data"):
            return getattr(value, kind)
        raise ProtocolError(
            "malformed result: got a kind of value that this version does not know; update gradwire_client")

    def _none(self, _value, _depth):
        return None

    def _undefined_tensor(self, _value, _depth):
        return UNDEFINED

    def _complex(self, value, _depth):
        return complex(value.real, value.imaginary)

    def _integers(self, value, _depth):
        return list(value.values)

    def _reals(self, value, _depth):
        return list(value.values)

    def _list(self, value, depth):
        return [self.decode(each, depth + 1) for each in value.values]

    def _tuple(self, value, depth):
        return tuple(self.decode(each, depth + 1) for each in value.values)

    def _map(self, value, depth):
        if len(value.keys) != len(value.values):
            raise ProtocolError(f"malformed result: got a map of {len(value.keys)} keys and {len(value.values)} values")
        keys = [self.decode(each, depth + 1) for each in value.keys]
        values = [self.decode(each, depth + 1) for each in value.values]
        try:
            found = dict(zip(keys, values))
        except TypeError:
            return list(zip(keys, values))  # Lists, for example, cannot be keys of a dict.
        if len(found) != len(keys):
            raise ProtocolError("malformed result: got a map with a repeated key")
        return found

    def _tensor(self, value, _depth):
        try:
            target = arrays.Target(value, self.budget)
        except arrays.OverBudget:
            raise
        except arrays.BadTensor as error:
            raise ProtocolError(f"malformed tensor: {error}") from None
        self.budget -= target.nbytes
        if value.chunked:
            self.targets.append(target)
        return target.array

    def _handle(self, value, _depth):
        if not value.id:
            raise ProtocolError("malformed result: got a handle without an id")
        return self._new_ref(value)

    def _status(self, value, _depth):
        return Status(STATUS_CODES.get(value.code, grpc.StatusCode.UNKNOWN), value.message, value.worker)

    def _message(self, value, _depth):
        return Message(value.type, value.serialized)

    def _dtype(self, value, _depth):
        dtype = arrays.dtype_of(value)
        if dtype is None:
            raise ProtocolError(f"malformed result: got the unknown dtype {value}")
        return dtype

    def _device(self, value, _depth):
        return arrays.Device(value)
