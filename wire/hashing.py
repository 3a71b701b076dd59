"""Hashes that other systems must agree on: Java's ``hashCode`` and what is built from it."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

ShardingKey = str | bytes | int

_UTF16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"  # without a byte order mark


@lru_cache(maxsize=65536)
def java_string_hash(text: str) -> int:
    """``String.hashCode``: over UTF-16 code units, a signed 32-bit result."""
    value = 0
    for unit in array("H", text.encode(_UTF16, "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


def sharding_text(key: ShardingKey) -> str:
    """The text that is kept with the message: ``bytes`` are UTF-8, an ``int`` its decimal digits."""
    if isinstance(key, bytes):
        return key.decode()
    return str(key)


def shard(key: ShardingKey, shards: int) -> int:
    """
    The queue of a key, as RocketMQ's hash selector picks it.

    Text is hashed by :func:`java_string_hash`; an ``int`` is its own hash, so that ``order_id % queues``
    is the mapping. Java's remainder keeps the sign, its selector then takes the absolute value.
    """
    value = key if isinstance(key, int) else java_string_hash(sharding_text(key))
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
