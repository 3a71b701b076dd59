"""
Payloads: named tuples on our side, msgpack arrays on the wire.

Packing needs no code, since a named tuple *is* an array to msgpack. :func:`decode` is strict on types, accepts a
longer array than it knows (the rest is ignored) and a shorter one whose missing tail has defaults; so both sides
can grow. Where a float is due an int will do: some languages write 5.0 as 5.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import BadRequest

T = TypeVar("T")
Convert = Callable[[Any], Any]


class _Unfit(Exception):
    """Something does not fit its field; carries the path from the inside out."""

    def __init__(self, text: str, *path: str) -> None:
        super().__init__(text)
        self.path = list(path)


class _Kind(NamedTuple):
    """What a field accepts: the types it may have, and what makes its value of them (None: it is the value)."""

    types: tuple[type, ...]
    convert: Convert | None
    name: str


def decode(shape: type[T], value: object) -> T:
    """
    The payload ``value`` as a ``shape`` (a named tuple class).

    Raises:
        BadRequest: a field has a wrong type or is missing; the sentence names it.
    """
    try:
        return _shape(shape)(value)  # type: ignore[arg-type, no-any-return]  # a class is hashable
    except _Unfit as error:
        where = ".".join(reversed(error.path)) or "payload"
        raise BadRequest(f"{shape.__name__}: {where} {error}") from None


def decode_list(shape: type[T], value: object) -> list[T]:
    """A list of payloads; raises as :func:`decode` does."""
    if type(value) is not list:
        raise BadRequest(f"a list of {shape.__name__} is expected, not {type(value).__name__}")
    return [decode(shape, item) for item in value]


@cache
def _shape(shape: Any) -> Convert:
    hints = get_type_hints(shape)
    names: tuple[str, ...] = shape._fields
    kinds = [_kind(hints[name]) for name in names]
    needed = len(names) - len(shape._field_defaults)
    nested = [(i, kind.convert) for i, kind in enumerate(kinds) if kind.convert is not None]
    # Looking up the types of all fields at once is several times faster than judging one after the other.
    fitting = frozenset(product(*(kind.types for kind in kinds)))

    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise _Unfit(f"must be array, not {type(value).__name__}")
        if tuple(map(type, value)) not in fitting:
            return shape(*_convert_each(names, kinds, needed, value))
        if not nested:
            return tuple.__new__(shape, value)
        row = value.copy()
        try:
            for i, part in nested:
                row[i] = part(row[i])
        except _Unfit as error:
            error.path.append(names[i])
            raise
        return tuple.__new__(shape, row)

    return convert


def _convert_each(names: tuple[str, ...], kinds: list[_Kind], needed: int, value: list[Any]) -> Sequence[Any]:
    """The slow way, for arrays that are longer, shorter or wrong."""
    if len(value) < needed:
        raise _Unfit("is missing", names[len(value)])
    row = []
    for name, kind, element in zip(names, kinds, value, strict=False):
        try:
            row.append(_convert_one(kind, element))
        except _Unfit as error:
            error.path.append(name)
            raise
    return row


def _convert_one(kind: _Kind, value: Any) -> Any:
    if object not in kind.types and type(value) not in kind.types:  # bool is an int to isinstance, never to us
        raise _Unfit(f"must be {kind.name}, not {type(value).__name__}")
    return value if kind.convert is None else kind.convert(value)


@cache
def _kind(hint: Any) -> _Kind:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        (inner,) = [_kind(arg) for arg in get_args(hint) if arg is not type(None)]
        return _Kind((*inner.types, type(None)), _or_none(inner.convert), inner.name)
    if origin is list:
        return _Kind((list,), _list_of(get_args(hint)[0]), "list")
    if origin is dict:
        return _Kind((dict,), _dict_of(*map(_kind, get_args(hint))), "map")
    if hint is Any:
        return _Kind((object,), None, "anything")
    if _is_shape(hint):
        return _Kind((list,), _shape(hint), "array")
    if hint is float:
        return _Kind((float, int), float, "float")
    return _Kind((hint,), None, hint.__name__)


def _is_shape(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple)


def _or_none(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _list_of(hint: Any) -> Convert:
    # An array judges for itself whether it is one; asking twice would cost on the hot path.
    item = _shape(hint) if _is_shape(hint) else partial(_convert_one, _kind(hint))

    def convert_list(value: list[Any]) -> list[Any]:
        try:
            return list(map(item, value))
        except _Unfit as error:
            error.path.append("[]")
            raise

    return convert_list


def _dict_of(key: _Kind, item: _Kind) -> Convert:
    def convert_dict(value: dict[Any, Any]) -> dict[Any, Any]:
        try:
            return {_convert_one(key, name): _convert_one(item, element) for name, element in value.items()}
        except _Unfit as error:
            error.path.append("{}")
            raise

    return convert_dict
