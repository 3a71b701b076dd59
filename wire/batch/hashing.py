"""Hashes that other systems must agree on: Java's ``hashCode`` and what is built from it."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_UTF16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"  # without a byte order mark
_SHORT: Final = 24  # characters up to which a plain loop is the fastest
_BLOCK: Final = 512  # bytes of UTF-16 that are hashed at a time
_MASK: Final = 0xFFFFFFFF


def _folds() -> list[tuple[int, int, int]]:
    """For each halving of a block: the width of a lane, a mask of every other lane, and what a lane is worth."""
    folds, width = [], 16
    while width < _BLOCK * 8:
        lane = (1 << min(width, 32)) - 1
        mask = sum(lane << at for at in range(0, _BLOCK * 8, 2 * width))
        folds.append((width, mask, pow(31, width // 16, 1 << 32)))
        width *= 2
    return folds


_FOLDS: Final = _folds()


@lru_cache(maxsize=65536)
def java_string_hash(text: str) -> int:
    """``String.hashCode``: over UTF-16 code units, a signed 32-bit result."""
    value = 0
    if len(text) <= _SHORT:
        for unit in array("H", text.encode(_UTF16, "surrogatepass")):
            value = (31 * value + unit) & _MASK
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        value = _hash_block(units[:_BLOCK])
        for at in range(_BLOCK, len(units), _BLOCK):
            block = units[at : at + _BLOCK]
            value = (value * pow(31, len(block) // 2, 1 << 32) + _hash_block(block)) & _MASK
    return value - 0x100000000 if value & 0x80000000 else value


def _hash_block(units: bytes) -> int:
    # A batch may bring 4096 long tags, and a loop over their units would keep the broker busy for 0.1 s. Here all
    # neighbours are added up at once: a lane of twice the width holds left * 31 ** units + right, and never overflows.
    value = int.from_bytes(units, "big")
    for width, mask, factor in _FOLDS[: (len(units) // 2 - 1).bit_length()]:
        value = (value >> width & mask) * factor + (value & mask)
    return value & _MASK


def shard(key: str, shards: int) -> int:
    """Return the queue of a key, as RocketMQ's hash selector picks it for a text."""
    return shard_of_int(java_string_hash(key), shards)


def shard_of_int(value: int, shards: int) -> int:
    """
    Return the queue of a hash, or of a Java ``Integer``, which is its own hash.

    Java's remainder keeps the sign, and its selector then takes the absolute value.
    """
    return abs(value) % shards


def tag_hash(tag: str) -> int:
    """The hash of a tag in a consume-queue entry; 0 stands for no tag."""
    return java_string_hash(tag)


def tag_bloom(tags: Iterable[str]) -> int:
    """64 bits that tell which tags a batch cannot hold: two bits a tag, 0 for a batch without tags."""
    bits = 0
    for tag in tags:
        value = java_string_hash(tag)
        bits |= 1 << (value & 63) | 1 << (value >> 6 & 63)
    return bits
