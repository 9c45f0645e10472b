"""Arrays of Python programs, and the bytes of tensors."""

import math
import sys

import numpy as np

from gradwire_client._proto import gateway_pb2 as pb

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

# NumPy's arrays have at most so many dimensions.
MAX_NUMPY_DIMENSIONS = 32

# The dtypes of tensors: name in PyTorch, value of pb.DType, dtype of NumPy for the bytes.
_NATIVE = [(name, getattr(pb, f"DTYPE_{name.upper()}"), np.dtype(name).newbyteorder("<")) for name in (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128",
    "uint16", "uint32", "uint64")]
# Those that NumPy does not have, with the integers that have the same bits.
_FOREIGN = [("bfloat16", pb.DTYPE_BFLOAT16, np.dtype("<u2")), ("complex32", pb.DTYPE_COMPLEX32, np.dtype("<u4")),
            ("float8_e4m3fn", pb.DTYPE_FLOAT8_E4M3FN, np.dtype("u1")),
            ("float8_e5m2", pb.DTYPE_FLOAT8_E5M2, np.dtype("u1"))]
_NUMBERS = {name: number for name, number, _ in _NATIVE + _FOREIGN}
_NAMES = {number: name for name, number, _ in _NATIVE + _FOREIGN}
_BITS = {name: bits for name, _, bits in _FOREIGN}
_WIRE = {number: dtype for _, number, dtype in _NATIVE + _FOREIGN}
# NumPy dtypes of the package ml_dtypes for some of the names above.
_ML = {name: np.dtype(getattr(ml_dtypes, name)) for name in _BITS if ml_dtypes and hasattr(ml_dtypes, name)}


class Unsupported(Exception):
    """A value cannot be sent. The arguments are the reason, the type wanted and the type got."""

    def __init__(self, reason, got, wanted=""):
        super().__init__(reason)
        self.got = got
        self.wanted = wanted


class RawArray:
    """An array of a dtype that NumPy lacks: bfloat16, complex32, float8_e4m3fn or float8_e5m2.

    `dtype` is its name, and `bits` an array of unsigned integers of the same size, which has the same shape. Results of
    these dtypes are RawArrays, or arrays of the package ml_dtypes if that is installed and has the dtype.

        x = RawArray.from_numpy("bfloat16", np.ones((2, 3), np.float32))   # rounds to nearest even
        y = client.call("scale", x, 2.0)
        y.to_numpy()                                                       # exact: float32, or complex64
    """

    def __init__(self, dtype, bits):
        if dtype not in _BITS:
            raise ValueError(f"RawArray: got dtype {dtype!r}, expected one of {sorted(_BITS)}")
        bits = np.asarray(bits)
        if bits.dtype.newbyteorder("<") != _BITS[dtype]:
            raise ValueError(f"RawArray: got bits of {bits.dtype}, expected {_BITS[dtype].name} for {dtype}")
        self.dtype = dtype
        self.bits = bits

    @property
    def shape(self):
        return self.bits.shape

    @property
    def nbytes(self):
        return self.bits.nbytes

    def __repr__(self):
        return f"RawArray({self.dtype!r}, shape={self.shape})"

    @classmethod
    def from_numpy(cls, dtype, values):
        """Rounds an array to bfloat16 or complex32. For the other dtypes use the package ml_dtypes."""
        if dtype == "bfloat16":
            values = np.asarray(values, np.float32)
            bits = values.view(np.uint32) if values.ndim else values.reshape(1).view(np.uint32).reshape(())
            # Adding half of the last place, or a bit less if the number is even, rounds to nearest even.
            rounded = (bits + ((bits >> 16) & 1) + np.uint32(0x7FFF)) >> 16
            return cls(dtype, np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16))
        if dtype == "complex32":
            values = np.asarray(values, np.complex64)
            halves = np.stack([values.real, values.imag], axis=-1).astype("<f2")
            return cls(dtype, halves.view("<u4").reshape(values.shape))
        raise ValueError(f"RawArray.from_numpy: got dtype {dtype!r}, expected bfloat16 or complex32")

    def to_numpy(self):
        """The same numbers as an array of float32 or complex64."""
        bits = np.ascontiguousarray(self.bits).reshape(-1)
        if self.dtype == "bfloat16":
            numbers = (bits.astype(np.uint32) << 16).view(np.float32)
        elif self.dtype == "float8_e5m2":
            numbers = (bits.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
        elif self.dtype == "float8_e4m3fn":
            numbers = _E4M3FN[bits]
        else:
            halves = bits.astype("<u4").view("<f2").astype(np.float32)
            numbers = halves[0::2] + 1j * halves[1::2]
        return numbers.reshape(self.shape)


def _e4m3fn(byte):
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    if byte & 127 == 127:
        return math.nan
    number = math.ldexp(mantissa + 8 * (exponent > 0), max(exponent, 1) - 10)
    return -number if byte & 128 else number


_E4M3FN = np.array([_e4m3fn(byte) for byte in range(256)], np.float32)


def dtype_name(value):
    """The name of a dtype of NumPy, ml_dtypes or PyTorch, or of a DType; None if `value` is none of these."""
    if isinstance(value, DType):
        return str(value)
    module = sys.modules.get("torch")
    if module is not None and isinstance(value, module.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, type) and issubclass(value, np.generic):
        value = np.dtype(value)
    return value.name if isinstance(value, np.dtype) else None


class DType(str):
    """A dtype as an argument of an operator, by its name in PyTorch. A numpy.dtype or torch.dtype may stand for it.

        client.op("aten::to", x, dtype=DType("bfloat16"))
    """

    __slots__ = ()


class Device(str):
    """A device as an argument of an operator, for example Device("cpu"). A torch.device may stand for it."""

    __slots__ = ()


def dtype_number(name):
    """The pb.DType of a dtype's name; None if tensors cannot have it."""
    return _NUMBERS.get(name)


def dtype_of(number):
    """The dtype, for Python, of a pb.DType in a result; None if it is unknown."""
    name = _NAMES.get(number)
    if name is None:
        return None
    return _ML.get(name, DType(name)) if name in _BITS else np.dtype(name)


class Source:
    """A tensor to be sent: its pb.DType, its shape, and its bytes as `view`, a memoryview.

    `view` is the memory of the caller's array if that is contiguous and little-endian, else a copy.
    """

    def __init__(self, number, bits):
        wire = bits.astype(bits.dtype.newbyteorder("<"), order="C", copy=False)
        self.number = number
        self.shape = wire.shape
        self.nbytes = wire.nbytes
        self.view = wire.reshape(-1).view(np.uint8).data if wire.nbytes else memoryview(b"")


def is_ml_number(value):
    """Whether a value is a number of the package ml_dtypes."""
    return isinstance(value, np.generic) and value.dtype.name in _ML


def is_array(value):
    """Whether a value is sent as a tensor: an array of NumPy or a RawArray, or an object that can become an array. The
    numbers of NumPy are sent as numbers."""
    return isinstance(value, (np.ndarray, RawArray)) or (
        not isinstance(value, (type, np.generic)) and (hasattr(value, "__dlpack__") or hasattr(value, "__array__")))


def source_of(value):
    """The Source of an array. Raises Unsupported."""
    if isinstance(value, RawArray):
        return Source(_NUMBERS[value.dtype], value.bits)
    if isinstance(value, np.ndarray):
        return _numpy_source(value)
    torch = sys.modules.get("torch")
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            return _torch_source(torch, value)
        if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
            return _numpy_source(np.from_dlpack(value))
        return _numpy_source(np.asarray(value))
    except Unsupported:
        raise
    except Exception as error:  # Any class: the object is not ours.
        raise Unsupported(f"cannot read a {type(value).__name__} as an array: {error}; convert it to a numpy.ndarray",
                          type(value).__name__, "Tensor") from error


def _numpy_source(array):
    name = array.dtype.name
    if name not in _NUMBERS or (name in _BITS and array.dtype != _ML.get(name)):
        raise Unsupported(f"got an array of {array.dtype}, expected one of {', '.join(_NUMBERS)}", str(array.dtype),
                          "Tensor")
    if name in _BITS:
        # The byte order of a dtype of ml_dtypes is this machine's.
        return Source(_NUMBERS[name], array.view(_BITS[name].newbyteorder("=")))
    return Source(_NUMBERS[name], array)


def _torch_source(torch, tensor):
    """A tensor of PyTorch. It is detached, and copied to the host if it is elsewhere."""
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or name not in _NUMBERS:
        raise Unsupported(f"got a tensor of {tensor.dtype} with {tensor.layout}, expected a dense one of "
                          f"{', '.join(_NUMBERS)}", str(tensor.dtype), "Tensor")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if name not in _BITS:
        return _numpy_source(tensor.numpy())
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[_BITS[name].itemsize]
    return Source(_NUMBERS[name], tensor.contiguous().view(same_size).numpy().view(_BITS[name]))


class BadTensor(Exception):
    """A tensor in a result is malformed, or too large."""


class Target:
    """A tensor of a result. `array` is what the caller gets, and `view` the memory for its bytes."""

    def __init__(self, message, budget):
        """Checks the message, and that the bytes are within `budget`, before it allocates memory."""
        wire = _WIRE.get(message.dtype)
        if wire is None:
            raise BadTensor(f"got dtype {message.dtype}, expected one of gateway.proto; update gradwire_client")
        shape = tuple(message.shape)
        if len(shape) > MAX_NUMPY_DIMENSIONS or any(size < 0 for size in shape):
            raise BadTensor(f"got shape {shape}, expected at most {MAX_NUMPY_DIMENSIONS} sizes, none negative")
        self.nbytes = math.prod(shape) * wire.itemsize
        if not message.chunked and len(message.data) != self.nbytes:
            raise BadTensor(f"got {len(message.data)} bytes for shape {shape} of {_NAMES[message.dtype]}, "
                            f"expected {self.nbytes}")
        if message.chunked and message.data:
            raise BadTensor("got bytes in a tensor whose bytes follow in chunks")
        if self.nbytes > budget:
            raise OverBudget(self.nbytes)
        try:
            bits = np.empty(shape, wire)
        except (ValueError, MemoryError) as error:
            raise BadTensor(f"cannot allocate an array of shape {shape}: {error}") from error
        self._is_bool = wire == np.bool_
        self._bytes = bits.reshape(-1).view(np.uint8) if self.nbytes else np.empty(0, np.uint8)
        self.view = self._bytes.data
        self.array = _as_result(_NAMES[message.dtype], bits)
        if not message.chunked:
            self.view[:] = message.data
            self.complete()

    def complete(self):
        """Checks the bytes when all of them are there."""
        if self._is_bool and self.nbytes and self._bytes.max() > 1:
            raise BadTensor("got a bool that is neither 0 nor 1")


class OverBudget(BadTensor):
    """A tensor in a result is larger than the client's limit allows. `nbytes` is its size."""

    def __init__(self, nbytes):
        super().__init__(f"got a tensor of {nbytes} bytes")
        self.nbytes = nbytes


def _as_result(name, bits):
    if name not in _BITS:
        # The same memory as the machine's own dtype: "<f4" and "f4" are equal on little-endian machines.
        return bits.view(np.dtype(name)) if sys.byteorder == "little" else bits
    return bits.view(_ML[name]) if name in _ML else RawArray(name, bits)
