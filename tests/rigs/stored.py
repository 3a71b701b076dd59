"""Batches and messages as a log has them, made without a broker."""

from __future__ import annotations

from collections.abc import Mapping

from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import Rows
from rmq.wire.model import StoredMessage
from rmq.wire.stores import StoreIds

STORE_ID = 7
LOG_EPOCH = 3


def stored_batch(
    topic: str, queue_id: int, base_offset: int, *bodies: bytes, at: int = 1000, tag: str | None = None,
    generation: int = 1, properties: Mapping[str, str] | None = None, origin: int = 0, attempts: int = 0,
    position: int | None = None, kind: int = layout.KIND_DATA,
) -> bytes:  # fmt: skip
    """A batch of messages that are equal but for their bodies; ``at`` (us) is when it was stored."""
    count = len(bodies)
    rows = Rows(
        list(bodies), 1, tags=[tag] * count, properties=[properties or {}] * count,
        attempts=[attempts] * count if attempts else None,
    )  # fmt: skip
    data = batches.encode(topic, queue_id, rows, delay_level=1 if kind == layout.KIND_PARKED else 0)
    place = 8 * (base_offset + 100 * queue_id) if position is None else position
    by = layout.Stamp(LOG_EPOCH, place, base_offset, at, 0, origin, generation, queue_id, kind)
    data[: layout.BROKER_PART] = layout.stamp(data, layout.parse_header(data).header_size, by)
    return bytes(data)


def stored_message(
    topic: str, queue_id: int = 0, offset: int = 0, body: bytes = b"x", *, at: int = 1000, position: int,
    due_at: int = 0, copy_of: int = 0, tag: str | None = None, properties: Mapping[str, str] | None = None,
    attempts: int = 0,
) -> StoredMessage:  # fmt: skip
    """
    One message, alone in the batch at a position of the log; ``copy_of`` is the position of another one.

    With ``due_at`` (us) it is parked.
    """
    data = stored_batch(
        topic, queue_id, due_at or offset, body, at=at, tag=tag, properties=properties, attempts=attempts,
        origin=batches.handle(copy_of, 0), position=position,
        kind=layout.KIND_PARKED if due_at else layout.KIND_DATA,
    )  # fmt: skip
    (message,) = batches.read(data, stores=StoreIds(STORE_ID)).pick([0])
    return message
