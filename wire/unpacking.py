"""
msgpack from a peer, bounded before anything is built.

Only nil, booleans, numbers, texts, bytes, arrays and maps come out: extension types are refused, also the
timestamp, which msgpack would otherwise decode unasked. One byte on the wire can become a hundred in memory (an
empty array), so input over :data:`SMALL` is first walked, and refused if it holds more than :data:`MAX_ITEMS` values.
A client trusts its broker that far: a list of all leases may well be longer.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from .batch.layout import Buffer

MAX_ARRAY: Final = 1 << 16
MAX_ITEMS: Final = 1 << 16  # ten times what the longest request of today holds
SMALL: Final = 64 << 10


class Malformed(ValueError):
    """Bytes that are not one msgpack value of the known types, or too many values."""


def unpack(data: Buffer, *, max_items: int = MAX_ITEMS, trusted: bool = False) -> Any:
    """
    The one value in ``data``. ``trusted`` data may hold as many values as it has bytes.

    Raises:
        Malformed: with the reason, to be put behind "is not msgpack: ".
    """
    size = len(data)
    if size > SMALL and not trusted:
        _check_items(data, max_items)
    # An array of n values takes n bytes at least: without this, nested heads could reserve far more than they hold.
    longest = size if trusted or size < MAX_ARRAY else MAX_ARRAY
    try:
        return msgpack.unpackb(data, ext_hook=_no_extension, max_ext_len=0, max_array_len=longest, max_map_len=longest)
    except msgpack.StackError as error:
        raise Malformed("it is nested too deep") from error
    except msgpack.FormatError as error:
        raise Malformed("it holds a byte that begins no value") from error
    except ValueError as error:
        raise Malformed(str(error)) from error


def _no_extension(code: int, data: bytes) -> object:
    # Only empty ones come here: max_ext_len refuses the others, and with them the timestamp.
    raise ValueError(f"extension type {code}")


def _shapes() -> list[tuple[int, int, int, int]]:
    """For each first byte: bytes of its length field, bytes besides, and per unit of length: bytes and values."""
    shapes = [(0, 1, 0, 0)] * 256
    for n in range(16):
        shapes[0x80 + n] = (0, 1, 0, 2 * n)
        shapes[0x90 + n] = (0, 1, 0, n)
    for n in range(32):
        shapes[0xA0 + n] = (0, 1 + n, 0, 0)
    for first, size in zip(range(0xCA, 0xD4), (5, 9, 2, 3, 5, 9, 2, 3, 5, 9), strict=True):
        shapes[first] = (0, size, 0, 0)
    for power in range(5):
        shapes[0xD4 + power] = (0, 2 + (1 << power), 0, 0)
    for first, besides in ((0xC4, 1), (0xC7, 2), (0xD9, 1)):  # bytes, extensions, texts
        for power in range(3):
            shapes[first + power] = (1 << power, besides, 1, 0)
    for first, values in ((0xDC, 1), (0xDE, 2)):  # arrays, maps
        for power in (1, 2):
            shapes[first + power - 1] = (1 << power, 1, 0, values)
    return shapes


_SHAPES: Final = _shapes()


def _check_items(data: Buffer, most: int = MAX_ITEMS) -> None:
    at, left, items, end = 0, 1, 0, len(data)
    while left and at < end:
        width, besides, unit_bytes, unit_values = _SHAPES[data[at]]
        units = int.from_bytes(data[at + 1 : at + 1 + width], "big") if width else 1
        at += besides + width + units * unit_bytes
        left += units * unit_values - 1
        items += 1
        if items + left > most:
            raise Malformed(f"it holds more than {most} values")
