"""Batches that are wrong in one way each, their checksums right unless it is the checksum that is wrong."""

from __future__ import annotations

from typing import Any

import msgpack

from rmq.wire.batch import batch, layout
from rmq.wire.batch.batch import Rows
from rmq.wire.errors import (
    BadBatch,
    BadDelay,
    BatchTooLarge,
    MessageTooLarge,
    QueueNotFound,
    Refused,
    TopicNotFound,
    UnsupportedFormat,
)

from rigs.batches import BORN_AT, assemble, little, patched

GOOD = bytes(batch.encode("orders", 0, Rows([b"one", b"two"], BORN_AT)))


def _columns(lengths: list[int], **changed: Any) -> bytes:
    names = ("lengths", "tags", "index_keys", "index_key_hashes", "keys", "properties", "born_at", "attempts")
    columns = dict.fromkeys(names) | {"lengths": little("I", lengths), "born_at": BORN_AT} | changed
    packed: bytes = msgpack.packb(list(columns.values()))
    return packed


def _flipped(at: int) -> bytes:
    changed = bytearray(GOOD)
    changed[at] ^= 1
    return bytes(changed)


def _too_many() -> bytes:
    return assemble(_columns([0] * 4097), b"", count=4097)


def _too_large_a_body() -> bytes:
    return assemble(_columns([layout.MAX_BODY + 1]), bytes(layout.MAX_BODY + 1), count=1)


def _too_large_a_batch() -> bytes:
    return assemble(_columns([layout.MAX_BODY, 1 << 16]), bytes(layout.MAX_BODY + (1 << 16)), count=2)


# name, batch, queue, error, what the sentence says
BAD_BATCHES: list[tuple[str, bytes, int, type[Refused], str]] = [
    ("a checksum that does not match", _flipped(len(GOOD) - 9), 0, BadBatch, "checksum does not match"),
    ("no magic", patched(GOOD, 4, ">H", 0), 0, BadBatch, "magic 0x0000"),
    ("an unknown format", patched(GOOD, 6, ">B", 9), 0, UnsupportedFormat, "format 9"),
    ("an unknown kind", patched(GOOD, 64, ">B", 9), 0, UnsupportedFormat, "kind 9"),
    ("the broker's own state", patched(GOOD, 64, ">B", 2), 0, UnsupportedFormat, "may not send batches of kind 2"),
    ("an unknown codec", patched(GOOD, 76, ">H", 7), 0, UnsupportedFormat, "codec 7"),
    ("an unknown attribute", patched(GOOD, 76, ">H", 0x8000), 0, UnsupportedFormat, "0x8000"),
    ("a level and a time", patched(patched(GOOD, 98, ">H", 3), 120, ">q", 1), 0, BadBatch, "not both"),
    ("a time before 1970", patched(GOOD, 120, ">q", -1), 0, BadBatch, "deliver_at"),
    ("a level that does not exist", patched(GOOD, 98, ">H", 99), 0, BadDelay, "no delay level 99"),
    ("a time too far away", patched(GOOD, 120, ">q", layout.MAX_TIME - 1), 0, BadDelay, "longer than this broker"),
    ("a parked batch", patched(patched(GOOD, 98, ">H", 3), 64, ">B", 1), 0, UnsupportedFormat, "batches of kind 1"),
    ("no message", patched(GOOD, 78, ">H", 0), 0, BadBatch, "1 to 4096 messages, not 0"),
    ("4097 messages", _too_many(), 0, BadBatch, "1 to 4096 messages, not 4097"),
    ("more messages than lengths", patched(GOOD, 78, ">H", 3), 0, BadBatch, ""),
    ("a body too large", _too_large_a_body(), 0, MessageTooLarge, "over the limit of 4194304"),
    ("a batch too large", _too_large_a_batch(), 0, BatchTooLarge, "over the limit of 4259840"),
    ("bytes after it", GOOD + bytes(8), 0, BadBatch, "8 bytes follow"),
    ("its end missing", GOOD[:-8], 0, BadBatch, "announces"),
    ("no header", GOOD[:40], 0, BadBatch, "shorter than its header"),
    ("nothing at all", b"", 0, BadBatch, "shorter than its header"),
    ("text instead", b"hello broker, this is no batch. " * 8, 0, BadBatch, "magic"),
    ("another raw size", patched(GOOD, 108, ">I", 7), 0, BadBatch, "announce 7"),
    ("reserved bytes in use", patched(GOOD, 65, ">B", 1), 0, BadBatch, "reserved"),
    ("a meta of garbage", assemble(b"\xc1", b"", count=1), 0, BadBatch, ""),
    ("a meta of a wrong column", assemble(_columns([0], tags=7), b"", count=1), 0, BadBatch, "tags"),
    ("lengths that do not fit", assemble(_columns([9]), b"abc", count=1), 0, BadBatch, ""),
    ("a birth before 1970", assemble(_columns([0], born_at=-1), b"", count=1), 0, BadBatch, "born_at"),
    ("a bloom of other tags", assemble(_columns([0]), b"", count=1, bloom=5), 0, BadBatch, "bloom"),
    ("a queue that does not exist", GOOD, 4, QueueNotFound, "has the queues 0 to 3, not 4"),
    ("a negative queue", GOOD, -1, QueueNotFound, "has the queues 0 to 3, not -1"),
    (
        "a topic that does not exist",
        bytes(batch.encode("nothing", 0, Rows([b"x"], BORN_AT))), 0, TopicNotFound, "no topic 'nothing'",
    ),
]  # fmt: skip
