"""
Input that is nearly right: valid frames and batches, changed by a generator that a seed determines.

Three ways to be wrong, each of which gets past other checks: any bytes, frames with bytes changed or with values
replaced anywhere in their payload, and batches with bytes or columns changed whose checksums are right again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any
from zlib import crc32

import msgpack

from rmq.wire.batch import batch, layout
from rmq.wire.batch.batch import ProducerMark, Rows
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import Op

from rigs.batches import BORN_AT, FULL, assemble, parts_of, stamped
from rigs.raw_peer import hello

Mutate = Callable[[Random], bytes]

TOPIC, GROUP = "orders", "g"
BATCHES = [
    bytes(batch.encode(TOPIC, 0, Rows([b"body"], BORN_AT))),
    bytes(batch.encode(TOPIC, 1, Rows([b"a", b"", b"c" * 300], BORN_AT), by=ProducerMark(7, 1, 0))),
    bytes(batch.encode(TOPIC, 2, FULL)),
    bytes(batch.encode(TOPIC, 3, Rows([b"later"], BORN_AT), delay_level=18)),
]
MOST_BYTES = 4 << 20  # of what is repeated
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 4, 255, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63), 0.5, -1e300,
    float("nan"), float("inf"), "", "orders", "g", "x" * 300, "a/b", "ü\u2028", "\0", b"", b"\0" * 16, b"\xff" * 300,
    [], [[]], [["orders", 0]], [["orders", 0, 0]], {}, {"orders": "*"}, {"": ""}, [None] * 20,
]  # fmt: skip


def valid(rng: Random, epoch: int = 1) -> tuple[int, Any]:
    """An operation and a payload that may well be served; ``epoch`` is of a lease of queue 0."""
    queue, offset = rng.randrange(4), rng.choice((0, 0, 1, 3, 100))
    payloads: dict[int, Any] = {
        Op.HELLO: hello(),
        Op.PING: [],
        Op.SEND: [[[rng.randrange(4), rng.choice(BATCHES)] for _ in range(rng.randrange(1, 4))]],
        Op.PULL: [
            rng.choice((None, GROUP)), rng.choice((0, 0, 50)), 1 << rng.randrange(24),
            [[TOPIC, queue, offset, rng.choice((None, epoch)), rng.choice((-1, 0, 1))]],
        ],
        Op.COMMIT: [GROUP, [[TOPIC, 0, epoch, offset]]],
        Op.ACQUIRE: [GROUP, [[TOPIC, queue]]],
        Op.RENEW: [GROUP, [[TOPIC, 0, epoch]]],
        Op.RELEASE: [GROUP, [[TOPIC, queue, epoch, offset]]],
        Op.JOIN: [GROUP, True, "clustering", "average", {TOPIC: "*"}],
        Op.LEAVE: [GROUP, [[TOPIC, 0, epoch, offset]]],
        Op.ROUTE: [rng.choice((TOPIC, "other", f"t{rng.randrange(50)}")), rng.choice((True, False))],
        Op.CREATE_TOPIC: [f"t{rng.randrange(50)}", 4],
        Op.LIST_TOPICS: [],
        Op.RANGES: [rng.choice((None, GROUP)), [[TOPIC, queue], ["other", 0]]],
        Op.LOCK_STATUS: [rng.choice((None, GROUP))],
        Op.ATTEMPT: [GROUP, TOPIC, 0, epoch, offset, 1, [[offset, offset + 2, 1], [offset + 2, offset + 3, 7]]],
        Op.DEAD_LETTER: [GROUP, TOPIC, 0, epoch, [offset, offset + 1], rng.choice((-1, offset + 2)), "in vain"],
        Op.STARTING: [GROUP, TOPIC, 0, epoch, offset, rng.choice((-1, offset))],
        Op.RESET_OFFSETS: [GROUP, [[TOPIC, queue, offset]], rng.choice((True, False))],
        Op.QUERY_MESSAGES: [rng.choice((None, TOPIC)), "o-17", -1, rng.choice((-1, BORN_AT)), 64, rng.choice((0, 5))],
        Op.GET_MESSAGE: [f"{rng.getrandbits(64):016x}{offset << 12:016x}"],
        Op.OFFSETS_AT: [rng.choice((0, BORN_AT, 1 << 62)), [[TOPIC, queue]]],
        Op.HEADS: [[[TOPIC, queue, offset], ["other", 0, 0]]],
        Op.STATS: rng.choice(([], [rng.choice((-1, 0, 5, 1 << 40))])),
        Op.CONFIG: [],
        Op.LIST_DELAYS: [rng.choice((0, BORN_AT)), 0, rng.choice((1, 100)), rng.choice((None, TOPIC))],
        Op.DELETE_TOPIC: [f"t{rng.randrange(50)}", rng.choice((0, 1))],
        Op.GROW_TOPIC: [f"t{rng.randrange(50)}", rng.choice((4, 5, 8))],
        Op.DESCRIBE_TOPIC: [TOPIC],
        Op.LIST_GROUPS: [rng.choice(("", GROUP))],
        Op.DESCRIBE_GROUP: [GROUP, rng.choice((None, TOPIC))],
        Op.MEMBER_INFO: [GROUP, rng.choice(("", "somebody")), ""],
        Op.RUNNING_INFO: [rng.randrange(1, 9), {"queues": [{"topic": TOPIC}], "x": [b"", 0.5, None]}],
    }  # fmt: skip
    op = rng.choice(list(Op))
    return op, payloads.get(op, [TOPIC, queue, offset])


def _frame(rng: Random, op: int, payload: Any) -> bytes:
    packed: bytes = msgpack.packb([frames.REQUEST, rng.randrange(1000), op, payload])
    return packed


def _framed(content: bytes) -> bytes:
    return frames.LENGTH.pack(len(content)) + content


def changed_bytes(rng: Random, data: bytes) -> bytes:
    """Some bytes flipped, set, cut out, doubled or put in."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(changed) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 40))
        match rng.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(changed):
                changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xC6, 0xDD, 0xDF, 0xFF))
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = rng.randbytes(length)
            case 4:
                changed[at:at] = changed[at : at + length]
            case _:
                changed[at : at + length] = rng.choice((bytes(length), b"\xff" * length))
    return bytes(changed)


def changed_value(rng: Random, value: Any) -> Any:
    """One value somewhere inside replaced, removed or repeated."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        if rng.random() < 0.2:
            return {name: element for name, element in value.items() if name != key}
        return value | {key: changed_value(rng, value[key])}
    if not isinstance(value, list | tuple) or not value or rng.random() < 0.15:
        return rng.choice(VALUES)
    value, at = list(value), rng.randrange(len(value))
    match rng.randrange(8):
        case 0:
            del value[at]
        case 1:
            value.insert(at, rng.choice(VALUES))
        case 2:
            # Of what is in it already: three such repetitions of one list would be gigabytes.
            value = value * min(rng.choice((2, 30, 300)), max(1, MOST_BYTES // len(msgpack.packb(value))))
        case _:
            value[at] = changed_value(rng, value[at])
    return value


def any_bytes(rng: Random) -> bytes:
    """Bytes without any sense, now and then in a frame, or after the head of one."""
    data = rng.randbytes(rng.randrange(1, 400))
    match rng.randrange(4):
        case 0:
            return data
        case 1:
            return _framed(data)
        case 2:
            return _framed(b"\x94\x00\x01" + bytes((rng.randrange(32),)) + data)
        case _:
            return frames.LENGTH.pack(rng.randrange(1 << rng.randrange(1, 33))) + data


def any_frame(rng: Random, epoch: int = 1) -> bytes:
    """A valid frame with something changed in it."""
    op, payload = valid(rng, epoch)
    match rng.randrange(5):
        case 0:
            return _framed(changed_bytes(rng, _frame(rng, op, payload)))
        case 1:
            return changed_bytes(rng, _framed(_frame(rng, op, payload)))
        case 2:
            parts = changed_value(rng, [frames.REQUEST, rng.randrange(1000), op, payload])
            return _framed(msgpack.packb(parts))
        case _:
            for _ in range(rng.choice((1, 1, 2, 3))):
                payload = changed_value(rng, payload)
            return _framed(_frame(rng, op, payload))


def any_batch(rng: Random) -> bytes:
    """A send of a batch with something changed in it, nearly always with its checksum right."""
    good = rng.choice(BATCHES)
    match rng.randrange(4):
        case 0:
            data = resealed(changed_bytes(rng, good))
        case 1:
            field = rng.choice(_FIELDS)
            data = resealed(_with_field(rng, good, *field))
        case 2:
            parts = changed_value(rng, parts_of(stamped(good)))
            data = assemble(msgpack.packb(parts), rng.randbytes(rng.randrange(8)), count=rng.choice((1, 1, 3, 4096)))
        case _:
            data = changed_bytes(rng, good)
    others = [[rng.randrange(4), rng.choice(BATCHES)]] if rng.random() < 0.2 else []
    return _framed(_frame(rng, Op.SEND, [[[rng.randrange(-1, 5), data], *others]]))


_FIELDS = [
    (0, "I"), (4, "H"), (6, "B"), (7, "B"), (60, "I"), (64, "B"), (65, "B"), (76, "H"), (78, "H"), (80, "Q"),
    (88, "Q"), (96, "H"), (98, "H"), (100, "I"), (104, "I"), (108, "I"), (112, "Q"), (120, "Q"), (128, "B"),
]  # fmt: skip


def _with_field(rng: Random, data: bytes, at: int, kind: str) -> bytes:
    changed = bytearray(data)
    most = (1 << 8 * struct.calcsize(kind)) - 1
    (old,) = struct.unpack_from(">" + kind, changed, at)
    value = rng.choice((0, 1, old + 1, old - 1, old + 8, most, most >> 1, rng.randrange(most))) & most
    struct.pack_into(">" + kind, changed, at, value)
    return bytes(changed)


def resealed(data: bytes) -> bytes:
    """The size and the checksum of a batch made right again, as far as there is a place for them."""
    if len(data) < layout.FIXED_HEADER:
        return data
    changed = bytearray(data + bytes(layout.padding(len(data))))
    struct.pack_into(">I", changed, 0, len(changed))
    meta_size, body_size = struct.unpack_from(">II", changed, 100)
    end = changed[7] * 8 + meta_size + body_size
    struct.pack_into(">I", changed, layout.BROKER_PART, crc32(changed[layout.CRC_FROM : end]))
    return bytes(changed)
