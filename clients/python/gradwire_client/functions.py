"""The functions of the workers as Python functions: their names, signatures and documentation."""

import collections.abc
import inspect
import numbers
import typing

import numpy as np

from gradwire_client import arrays, values
from gradwire_client._proto import gateway_pb2 as pb

_SIMPLE = {
    "bool": bool, "str": str, "void": None, "Tensor": np.ndarray, "Scalar": numbers.Number, "ScalarType": arrays.DType,
    "Device": arrays.Device, "Status": values.Status, "Layout": int, "MemoryFormat": int, "IValue": typing.Any,
    **{f"{sign}int{bits}": int for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": float, "float64": float, "complex64": complex, "complex128": complex,
}
# Types with values of a few bytes. A result of such a type fits into one message.
_SMALL = {"bool", "void", "Scalar", "ScalarType", "Device", "Layout", "MemoryFormat", "float32", "float64", "complex64",
          "complex128", *(name for name in _SIMPLE if "int" in name)}
MAX_TYPE_DEPTH = 32
# The type of a result whose values come one after the other.
STREAM = "Stream"


class Type(typing.NamedTuple):
    """A type of the wire, taken apart: "map[str,Tensor]" is Type("map", [Type("str", []), Type("Tensor", [])])."""

    name: str
    arguments: list

    @classmethod
    def parse(cls, text, depth=0):
        """Never fails: an unknown or malformed type is a name without arguments."""
        head, bracket, rest = text.partition("[")
        if not bracket or not rest.endswith("]") or depth > MAX_TYPE_DEPTH:
            return cls(text, [])
        if head in ("enum", "message", "RRef"):
            return cls(head, [cls(rest[:-1], [])])
        parts, level, start = [], 0, 0
        for i, character in enumerate(rest[:-1]):
            level += (character in "[<(") - (character in "]>)")
            if character == "," and level == 0:
                parts.append(rest[start:i])
                start = i + 1
        parts.append(rest[start:-1])
        return cls(head, [cls.parse(part, depth + 1) for part in parts])

    def annotation(self, reference):
        """The type of the values in Python. `reference` is the class of references."""
        inner = [each.annotation(reference) for each in self.arguments]
        if self.name == "optional" and len(inner) == 1:
            return typing.Optional[inner[0]]
        if self.name == "list" and len(inner) == 1:
            return list[inner[0]]
        if self.name == "tuple" and inner:
            return tuple[tuple(inner)]
        if self.name == "map" and len(inner) == 2:
            return dict[inner[0], inner[1]]
        if self.name == STREAM and len(inner) == 1:
            return collections.abc.Iterator[inner[0]]
        return {"enum": int, "RRef": reference, "message": values.Message}.get(self.name,
                                                                               _SIMPLE.get(self.name, typing.Any))

    def is_small(self):
        """Whether values of this type have a few bytes at most."""
        if self.name in ("optional", "tuple"):
            return len(self.arguments) <= 64 and all(each.is_small() for each in self.arguments)
        return self.name in _SMALL or self.name in ("enum", "RRef")


class Function:
    """A function, method, class or operator that a gateway serves, as ListFunctions describes it.

    Attributes:
      kind: "function", "method", "class" or "operator".
      name: the name for calls. That of a class constructs an object.
      signature: the types on the wire, for example "Tensor(Tensor,float64)"; "" for an operator.
      parameters, result: the same, taken apart.
      object_type: the name of the class of a method; "" for the others.
      idempotent: whether running it twice does no harm. The gateway repeats such a call if a connection in the job
      breaks.
      documentation: what the program registered.
      workers: the names of the workers that serve it.
    """

    KINDS = {pb.FUNCTION_KIND_FUNCTION: "function", pb.FUNCTION_KIND_METHOD: "method",
             pb.FUNCTION_KIND_CONSTRUCTOR: "class", pb.FUNCTION_KIND_OPERATOR: "operator"}

    def __init__(self, message):
        self.kind = self.KINDS.get(message.kind, "unknown")
        self.name = message.name
        self.signature = message.signature
        self.parameters = list(message.parameters)
        self.result = message.result
        self.object_type = message.object_type
        self.idempotent = message.idempotent
        self.documentation = message.documentation
        self.workers = list(message.workers)

    def __repr__(self):
        return f"<gateway's {self.kind} {self.name} {self.signature}>".replace(" >", ">")

    @property
    def short_name(self):
        """The name without namespaces and class."""
        return self.name.rpartition("::")[2]

    def is_stream(self):
        """Whether it returns a stream."""
        return Type.parse(self.result).name == STREAM

    def small_result(self):
        return self.kind in ("function", "method") and Type.parse(self.result).is_small()

    def python_signature(self, reference):
        """The inspect.Signature of a Python function that calls this one."""
        parameter = inspect.Parameter
        if self.kind == "operator":
            parameters = [parameter("arguments", parameter.VAR_POSITIONAL), *_options(self.kind),
                          parameter("keywords", parameter.VAR_KEYWORD)]
            return inspect.Signature(parameters)
        types = [Type.parse(each).annotation(reference) for each in self.parameters]
        parameters = [parameter(f"argument{i}", parameter.POSITIONAL_ONLY, annotation=each)
                      for i, each in enumerate(types, 1)]
        options = _options(self.kind)
        if self.is_stream():
            options = [each for each in options if "progress" not in each.name]
        result = reference if self.kind == "class" else Type.parse(self.result).annotation(reference)
        return inspect.Signature([*parameters, *options], return_annotation=result)

    def text(self):
        """The text for help()."""
        lines = [self.documentation.strip(), ""] if self.documentation.strip() else []
        if self.kind == "operator":
            lines.append(f"Operator {self.name} of libtorch: its overloads and arguments are libtorch's.")
        else:
            lines.append(f"{self.kind.capitalize()} {self.name}, on the wire {self.signature}.")
        lines.append(f"Served by {', '.join(self.workers) or 'no worker'}." +
                     (" Running it twice does no harm." if self.idempotent else ""))
        return "\n".join(lines)


def _options(kind):
    names = ["timeout", "progress", "result_progress"]
    if kind in ("function", "operator"):
        names.insert(0, "worker")
    options = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
    if kind == "class":
        options.insert(0, inspect.Parameter("session", inspect.Parameter.KEYWORD_ONLY))
    return options


class Table:
    """All functions of a gateway by kind and name. The list of one name has an entry for each signature."""

    def __init__(self, messages):
        self._found = {}
        self._methods = {}
        for message in messages:
            function = Function(message)
            self._found.setdefault(function.kind, {}).setdefault(function.name, []).append(function)
            if function.kind == "method":
                self._methods.setdefault(function.object_type, {}).setdefault(function.short_name, []).append(function)

    def get(self, kind, name):
        return self._found.get(kind, {}).get(name, [])

    def methods(self, object_type):
        """The methods of a class, by their short names."""
        return self._methods.get(object_type, {})

    def names(self):
        """The names of functions, then of classes, then of operators. Methods belong to references."""
        return [name for kind in ("function", "class", "operator") for name in self._found.get(kind, {})]

    def small_result(self, kind, name):
        found = self.get(kind, name)
        return bool(found) and all(each.small_result() for each in found)


def dress(call, variants, reference):
    """Gives the Python function `call` the name, the signature and the documentation of a gateway's function."""
    first = variants[0]
    call.__name__ = first.short_name
    call.__qualname__ = first.name
    call.__module__ = "gradwire_client"
    call.__doc__ = "\n\n".join(each.text() for each in variants)
    if all(each.parameters == first.parameters for each in variants):
        call.__signature__ = first.python_signature(reference)
    call.functions = list(variants)
    return call


class Functions(collections.abc.Mapping):
    """The functions and operators of a gateway as Python functions, by name.

        f = client.functions["scale"]
        help(f)             # signature and documentation
        y = f(x, 2.0)       # as client.call("scale", x, 2.0)

    A function that returns a stream gives an iterator, as client.stream().

    The name of a class gives a function too. It needs the session in which it constructs the object:

        client.functions["ParameterServer"](10, session=session)   # as session.create("ParameterServer", 10)

    A name is unique among the functions, classes and operators of one kind. If several kinds have it, the function
    wins.
    """

    def __init__(self, table, make):
        self._table = table
        self._make = make

    def __getitem__(self, name):
        for kind in ("function", "class", "operator"):
            variants = self._table.get(kind, name)
            if variants:
                return self._make(kind, name, variants)
        raise KeyError(name)

    def __iter__(self):
        return iter(dict.fromkeys(self._table.names()))

    def __len__(self):
        return len(dict.fromkeys(self._table.names()))

    def __repr__(self):
        return f"<{len(self)} functions and operators of a gateway>"
