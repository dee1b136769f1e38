"""Plain values, exactly, type included: what state dicts hold beside tensors, as nested lists for msgpack.

A value that msgpack has (None, bool, str, bytes, float, an int of 64 bits) stands for itself; everything else is a list
that begins with a tag. Two equal values have equal encodings, whoever made them: dicts keep their order of insertion,
which is part of a value, and sets are sorted. So the digest of an encoding is the digest of the value.

What has no tag is taken apart as pickle would (`__reduce_ex__`), and its parts are encoded in turn: classes and
functions by name. What pickle could not do (a lambda, an open file) is a `StateError` that names the place. Unlike
pickle, this keeps no identity: an object that is held twice comes back as two equal ones.

Decoding imports and calls what the encoding names, as unpickling does, so it is for state of one's own run. With
`trusting` False nothing is called: what would be comes back as `Opaque`, and is encoded again as it was.
"""

from __future__ import annotations

import copyreg
import importlib
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from relume.errors import StateError
from relume.state.facts import PARAMETER, REQUIRES_GRAD, Looks, Packed, pack

(
    _LIST, _TUPLE, _DICT, _TENSOR, _INT, _STR, _SET, _FROZENSET, _COMPLEX, _SCALAR, _ARRAY, _TORCH, _DEVICE, _SIZE,
    _ORDERED, _DEFAULT, _COUNTER, _BYTEARRAY, _NAMED, _OBJECT,
) = range(20)  # fmt: skip

_BY_NAME = (type, types.FunctionType, types.BuiltinFunctionType)
_TORCH_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_DIRECT = frozenset({type(None), bool, float, bytes})
"""Kinds whose every value stands for itself."""
_Path = tuple[object, ...]


class _Trouble(Exception):
    """Something cannot be encoded; `path`, built on the way out, begins with the innermost. Stays in this module."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.path: list[str] = []


class Opaque:
    """An object of a class that was not to be imported here: only good for being encoded again."""

    def __init__(self, code: list[Any], tensors: Sequence[torch.Tensor]) -> None:
        self.code, self.tensors = code, tensors

    def __repr__(self) -> str:
        return f"<opaque {self.name}>"

    def __call__(self) -> None:
        """Refuse: it is callable only so that it may stand where a `defaultdict` has its factory."""
        raise StateError(f"{self.name} was not to be imported here")

    @property
    def name(self) -> str:
        """What it is, as `module:name`."""
        if self.code[0] == _NAMED:
            return f"{self.code[1]}:{self.code[2]}"
        function, arguments = self.code[1], self.code[2]
        inner = arguments[1] if function[2] in {"__newobj__", "__newobj_ex__", "_reconstructor"} else function
        return f"{inner[1]}:{inner[2]}" if isinstance(inner, list) and inner[0] == _NAMED else "object"


class Part:
    """A part of a nest that is known again where it did not change, so that it is not walked each time.

    `nest` makes it; `tensors` are its tensors in walk order, `detached` if it holds them so. It is the same nest as
    before, but for what the tensors hold, if its `stamp` equals the one before and every tensor looks as it did. For
    that, whoever makes a stamp must answer.
    """

    __slots__ = ("detached", "name", "nest", "stamp", "tensors")

    def __init__(
        self, name: _Path, stamp: object, tensors: list[torch.Tensor], nest: Callable[[], object], *, detached: bool
    ) -> None:
        self.name, self.stamp, self.tensors, self.nest, self.detached = name, stamp, tensors, nest, detached


class Known(NamedTuple):
    """What an encoder made of a part: `code`, where `first` tensors came before it. It holds no tensor alive."""

    first: int
    stamp: object
    looks: Looks
    packed: list[Packed]
    code: msgspec.Raw

    def fits(self, part: Part, first: int) -> bool:
        """True if it is what would be made of `part`, with `first` tensors before it."""
        try:
            same = self.looks.same(part.tensors, detached=part.detached)
        except RuntimeError:  # of a kind that has no size or strides, nor a place in a skeleton
            return False
        return same and self.first == first and self.stamp == part.stamp


class Encoder:
    """Encodes one nest; tensors are collected in the order in which they are met.

    `known` holds what is known of `Part`s from the encodings before, and is kept up to date.
    """

    def __init__(self, known: dict[_Path, Known] | None = None) -> None:
        self.tensors: list[torch.Tensor] = []
        self.packed: list[Packed] = []
        self._open: set[int] = set()
        self._known = known

    def encode(self, value: object) -> Any:  # noqa: ANN401  (what msgpack takes)
        """Return the encoding of `value`. Raises `StateError` that names the place of what has none."""
        try:
            return self._value(value)
        except _Trouble as trouble:
            place = "".join(reversed(trouble.path)) or "the state"
            raise StateError(
                f"{place.lstrip('.')} cannot be kept: {trouble.text}. What is protected must be made of tensors, plain "
                "values, and objects that pickle could copy"
            ) from trouble
        except RecursionError as error:
            raise StateError("the protected state is nested too deeply to be kept") from error

    def _value(self, value: Any) -> Any:  # noqa: ANN401, C901, PLR0911  (one flat case per kind of value)
        kind = type(value)
        if value is None or kind is bool or kind is float or kind is bytes:
            return value
        if kind is int:
            return value if _INT_MIN <= value <= _INT_MAX else [_INT, f"{value:x}"]
        if kind is str:
            return value if value.isascii() else _text(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if kind in _CONTAINERS:
            return self._container(kind, value)
        if kind is complex:
            return [_COMPLEX, value.real, value.imag]
        if kind is bytearray:
            return [_BYTEARRAY, bytes(value)]
        if kind in _TORCH_CONSTANTS:
            return [_TORCH, str(value).removeprefix("torch.")]
        if kind is torch.device:
            return [_DEVICE, str(value)]
        if kind is Part:
            return self._part(value)
        if isinstance(value, Opaque):
            return self._opaque(value)
        return self._array(kind, value) or self._other(value)

    def _part(self, part: Part) -> Any:  # noqa: ANN401
        known = self._known
        if known is None:
            return self._value(part.nest())
        before, first = known.pop(part.name, None), len(self.tensors)
        if before is None or not before.fits(part, first):
            code = self._value(part.nest())
            if _same_memory(part.tensors, self.tensors[first:]):
                raw = msgspec.Raw(msgspec.msgpack.encode(code))
                look = Looks(part.tensors, detached=part.detached)
                known[part.name] = Known(first, part.stamp, look, self.packed[first:], raw)
            return code
        known[part.name] = before
        self.tensors += part.tensors
        self.packed += before.packed
        return before.code

    def _tensor(self, tensor: torch.Tensor) -> list[Any]:
        try:
            self.packed.append(pack(tensor))
        except StateError as error:
            raise _Trouble(str(error)) from error
        self.tensors.append(tensor)
        return [_TENSOR, len(self.tensors) - 1]

    def _container(self, kind: type, value: Any) -> list[Any]:  # noqa: ANN401
        if id(value) in self._open:
            raise _Trouble("it holds itself")
        self._open.add(id(value))
        try:
            tag = _CONTAINERS[kind]
            if tag in {_SET, _FROZENSET}:
                return [tag, *sorted((self._at("{}", item) for item in value), key=_sort_key)]
            code: list[Any] = [tag]
            if tag in {_ORDERED, _COUNTER}:
                code.append(self._at(".__dict__", vars(value)) if vars(value) else None)
            if tag == _DEFAULT:
                code.append(self._at(".default_factory", value.default_factory))
            if issubclass(kind, dict):
                for key, item in value.items():
                    plain = type(key) is str and key.isascii()
                    code.append(key if plain else self._at(f" key {key!r:.80}", key))
                    code.append(item if type(item) in _DIRECT else self._at(key, item))
            elif _all_direct(value):
                code += value
            else:
                code += [self._at(index, item) for index, item in enumerate(value)]
            return code
        finally:
            self._open.discard(id(value))

    def _at(self, where: object, value: object) -> Any:  # noqa: ANN401
        """Encode what stands at `where`, a key or an index: the path is built only if there is trouble."""
        try:
            return self._value(value)
        except _Trouble as trouble:
            trouble.path.append(_step(where))
            raise

    def _array(self, kind: type, value: Any) -> list[Any] | None:  # noqa: ANN401
        """Return the encoding of a NumPy array or number; None if it is neither, or of a dtype beyond plain ones."""
        if kind is not np.ndarray and not isinstance(value, np.generic):
            return None
        dtype = value.dtype
        if dtype.hasobject or dtype.names or dtype.subdtype or not dtype.itemsize or np.dtype(dtype.str) != dtype:
            return None
        if kind is not np.ndarray:
            return [_SCALAR, dtype.str, value.tobytes()] if kind is dtype.type else None
        fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        return [_ARRAY, dtype.str, list(value.shape), fortran, value.tobytes("F" if fortran else "C")]

    def _other(self, value: Any) -> list[Any]:  # noqa: ANN401
        if isinstance(value, _BY_NAME) and (name := _name(value)):
            return [_NAMED, *name]
        if id(value) in self._open:
            raise _Trouble("it holds itself")
        self._open.add(id(value))
        try:
            return self._reduced(value)
        finally:
            self._open.discard(id(value))

    def _reduced(self, value: Any) -> list[Any]:  # noqa: ANN401
        what = f"a {type(value).__module__}.{type(value).__qualname__}"
        if isinstance(value, types.FunctionType):
            raise _Trouble(f"the function {value.__qualname__} cannot be found by its name (a lambda, or a local one)")
        try:
            special = copyreg.dispatch_table.get(type(value))
            reduced: Any = special(value) if special else value.__reduce_ex__(4)
        except Exception as error:
            raise _Trouble(f"{what} ({error})") from error
        if isinstance(reduced, str):
            module = getattr(value, "__module__", None) or type(value).__module__
            if _look_up(module, reduced) is not value:
                raise _Trouble(f"{what} cannot be found as {module}.{reduced}")
            return [_NAMED, module, reduced]
        function, arguments, state, items, pairs, setter = (*reduced, None, None, None, None)[:6]
        return [
            _OBJECT,
            self._at(f" (by {function!r:.80})", function),
            self._at(f" (arguments of {what})", tuple(arguments)),
            self._at("", state),
            None if items is None else self._at("", list(items)),
            None if pairs is None else self._at("", [part for pair in pairs for part in pair]),
            self._at(f" (by {setter!r:.80})", setter),
        ]

    def _opaque(self, opaque: Opaque) -> Any:  # noqa: ANN401
        def again(code: Any) -> Any:  # noqa: ANN401
            if not isinstance(code, list):
                return code
            if code[0] == _TENSOR:
                return self._tensor(opaque.tensors[code[1]])
            start = _PLAIN_FROM.get(code[0], 1)
            return code if start is None else [*code[:start], *(again(part) for part in code[start:])]

        return again(opaque.code)


class Decoder:
    """Decodes one nest, with `tensors` in their places."""

    def __init__(self, tensors: Sequence[torch.Tensor], packed: Sequence[Packed], *, trusting: bool = True) -> None:
        self._tensors, self._packed, self._trusting = tensors, packed, trusting

    def decode(self, code: Any) -> Any:  # noqa: ANN401, C901, PLR0911, PLR0912  (one flat case per tag)
        """Return the value of `code`. Raises whatever comes of nonsense; the caller makes a `StateError` of it."""
        if not isinstance(code, list):
            return code
        tag, parts = code[0], code[1:]
        if tag == _TENSOR:
            return self._tensor(parts[0])
        if tag in {_LIST, _TUPLE, _SET, _FROZENSET, _SIZE}:
            return _SEQUENCES[tag](map(self.decode, parts))
        if tag in {_DICT, _ORDERED, _COUNTER, _DEFAULT}:
            return self._mapping(tag, parts)
        if tag == _INT:
            return int(parts[0], 16)
        if tag == _STR:
            return parts[0].decode("utf-8", "surrogatepass")
        if tag == _COMPLEX:
            return complex(*parts)
        if tag == _SCALAR:
            return np.frombuffer(parts[1], dtype=parts[0])[0]
        if tag == _ARRAY:
            dtype, shape, fortran, data = parts
            return np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C").copy(order="K")
        if tag == _TORCH:
            return getattr(torch, parts[0])
        if tag == _DEVICE:
            return torch.device(parts[0])
        if tag == _BYTEARRAY:
            return bytearray(parts[0])
        if tag == _NAMED:
            return _look_up(*parts) if self._trusting else Opaque(code, self._tensors)
        if tag == _OBJECT:
            return self._object(*parts) if self._trusting else Opaque(code, self._tensors)
        raise ValueError(f"tag {tag!r} is not known to this relume")

    def _tensor(self, index: int) -> torch.Tensor:
        tensor, flags = self._tensors[index], self._packed[index][4]
        if flags & PARAMETER:
            return torch.nn.Parameter(tensor, requires_grad=bool(flags & REQUIRES_GRAD))
        return tensor.detach().requires_grad_() if flags & REQUIRES_GRAD else tensor

    def _mapping(self, tag: int, parts: list[Any]) -> Any:  # noqa: ANN401
        result: Any = _MAPPINGS[tag]()
        if tag != _DICT:
            first, *parts = parts
            decoded = self.decode(first)
            if tag == _DEFAULT:
                result = defaultdict(decoded if callable(decoded) else None)
            elif decoded:
                vars(result).update(decoded)
        for key, item in zip(parts[::2], parts[1::2], strict=True):
            result[self.decode(key)] = self.decode(item)
        return result

    def _object(self, *parts: Any) -> Any:  # noqa: ANN401
        function, arguments, state, items, pairs, setter = map(self.decode, parts)
        result = function(*arguments)
        if state is not None:
            _build(result, state, setter)
        for item in items or []:
            result.append(item)
        for key, item in zip((pairs or [])[::2], (pairs or [])[1::2], strict=True):
            result[key] = item
        return result


_CONTAINERS: dict[type, int] = {
    list: _LIST,
    tuple: _TUPLE,
    dict: _DICT,
    set: _SET,
    frozenset: _FROZENSET,
    torch.Size: _SIZE,
    OrderedDict: _ORDERED,
    defaultdict: _DEFAULT,
    Counter: _COUNTER,
}
_SEQUENCES: dict[int, Callable[[Iterable[Any]], Any]] = {
    _LIST: list,
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _SIZE: torch.Size,
}
_MAPPINGS: dict[int, Callable[[], Any]] = {_DICT: dict, _ORDERED: OrderedDict, _COUNTER: Counter, _DEFAULT: defaultdict}
_PLAIN_FROM = dict.fromkeys((_INT, _STR, _COMPLEX, _SCALAR, _ARRAY, _TORCH, _DEVICE, _BYTEARRAY, _NAMED))
"""Tags without values inside."""


def _build(result: Any, state: Any, setter: Any) -> None:  # noqa: ANN401
    """Give an object its state, as pickle does."""
    if setter is not None:
        setter(result, state)
    elif hasattr(result, "__setstate__"):
        result.__setstate__(state)
    else:
        attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
        if attributes:
            vars(result).update(attributes)
        for name, value in (slots or {}).items():
            setattr(result, name, value)


def _name(value: Any) -> tuple[str, str] | None:  # noqa: ANN401
    """Return where a class or function is found by name; None if it is not."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    try:
        return (module, name) if _look_up(module, name) is value else None
    except (ImportError, AttributeError):
        return None


def _look_up(module: str, name: str) -> Any:  # noqa: ANN401
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _all_direct(values: Sequence[Any]) -> bool:
    """True if every value stands for itself, as far as that is quickly told: of plain kinds, or all of one kind."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return bool(min(values) >= _INT_MIN and max(values) <= _INT_MAX)
    if kinds == {str}:
        return all(map(str.isascii, values))
    return kinds <= _DIRECT


def _same_memory(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """True if two lists are of the same tensors, each a view of the other."""
    pointers = (list(map(torch.Tensor.data_ptr, tensors)) for tensors in (some, others))
    return next(pointers) == next(pointers)


def _text(value: str) -> Any:  # noqa: ANN401
    """Return `value`, or its bytes where it holds half of a surrogate pair, which no UTF-8 has."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return [_STR, value.encode("utf-8", "surrogatepass")]
    return value


def _sort_key(code: object) -> bytes:
    return msgspec.msgpack.encode(code)


def _step(where: object) -> str:
    if isinstance(where, int):
        return f"[{where}]"
    if isinstance(where, str):
        return where if where[:1] in {"", " ", ".", "{"} else f".{where}"
    return f"[{where!r:.80}]"
