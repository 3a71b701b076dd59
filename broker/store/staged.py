"""Batches that were given a place in the log and are not written yet."""

from __future__ import annotations

from typing import NamedTuple

from rmq.wire.batch.columns import Columns, TagColumn
from rmq.wire.model import MessageQueue

from .background import Keyed
from .consume_queue import ConsumeQueue


class Placed(NamedTuple):
    """Where a staged batch will lie; ``end`` is the log position behind it. A parked one has ``base_offset`` -1."""

    base_offset: int
    physical_offset: int
    stored_at: int
    end: int


class Owner(NamedTuple):
    """What a batch is stamped with beside its place; ``base_offset`` of a parked one is the time it is due."""

    base_offset: int
    origin: int
    topic_gen: int
    queue_id: int
    kind: int


class Publication(NamedTuple):
    """What a batch brings into the indexes once it is written."""

    queue: MessageQueue
    place: ConsumeQueue
    position: int
    size: int
    messages: int
    tags: TagColumn | None
    keyed: Keyed | None


def keyed_of(position: int, stored_at: int, columns: Columns) -> Keyed | None:
    """A batch as the key index notes it; None without keys."""
    return None if columns.key_hashes is None else Keyed(position, stored_at, columns.key_hashes)
