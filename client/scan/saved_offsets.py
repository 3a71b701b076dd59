"""
Offsets that a reader saves between two scans, and the history of the log that they belong to.

An offset alone does not say which message comes before it: a broker that was restored from a backup gives the same
offsets to other messages. So the id of the store and the log epoch of that message are saved with it, and the next
scan compares them before it reads (:mod:`rmq.client.scan.scan`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from rmq.wire.batch.layout import Header
from rmq.wire.errors import OK, from_wire
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import QueueRef, Range
from rmq.wire.stores import StoreIds

HISTORY: Final = "@history"  # no topic can be called so
STORE: Final = "store"
EPOCHS: Final = "epochs"


class SavedHistory(NamedTuple):
    """The store that offsets were saved of, and by topic and queue the log epoch of the message before each."""

    store_id: int
    epochs: Mapping[str, Mapping[int, int]]

    def has_read(self, header: Header, stores: StoreIds) -> bool:
        """
        Return whether the message before a saved offset, in a batch with this header, is the one that was read.

        The message itself shows it. If it is another one, or cannot be read, :meth:`log_epoch` is what the broker needs
        to say where the two histories part.
        """
        if saved := self.epochs.get(header.topic, {}).get(header.queue_id, 0):
            return header.log_epoch == saved
        former = stores.find(self.store_id)
        return former is None or header.physical_offset < former.until

    def log_epoch(self, topic: str, queue_id: int, stores: StoreIds) -> int:
        """
        Return the log epoch for the broker to compare the offset of a queue by, in a store of these ids; 0: by none.

        Of a store that was copied since, the copy has no message that is later than its own first start.
        """
        saved = self.epochs.get(topic, {}).get(queue_id, 0)
        former = stores.find(self.store_id)
        if former is None:
            return saved
        last = former.log_epoch - 1
        return min(saved, last) if saved else last


def starting_offsets(queues: Iterable[MessageQueue | QueueRef], ranges: Iterable[Range]) -> dict[str, Any]:
    """
    Return the ends of queues with their history, to be saved as JSON: the ``startingOffsets`` of the next scan.

    ``ranges`` is what :meth:`rmq.client.Admin.ranges` returned for ``queues``. The offsets are under the name of their
    topic; they are the ``endingOffsets`` of a scan that ends there, without what is under ``"@history"``. A broker of
    an older version names no store: its offsets have no history.

    Raises:
        RmqError: one of the queues does not exist.
        ValueError: the ranges are of different stores.
    """
    offsets: dict[str, dict[str, int]] = {}
    epochs: dict[str, dict[str, int]] = {}
    stores = set()
    for (topic, queue_id), held in zip(queues, ranges, strict=True):
        if held.status != OK:
            raise from_wire(held.status, held.text or f"queue {queue_id} of topic {topic} was refused")
        stores.add(held.store_id)
        offsets.setdefault(topic, {})[str(queue_id)] = held.max_offset
        if held.log_epoch:
            epochs.setdefault(topic, {})[str(queue_id)] = held.log_epoch
    if len(stores) > 1:
        raise ValueError("the ranges are of different stores: ask one broker for all of them, once more")
    history = [{STORE: f"{store_id:016x}", EPOCHS: epochs} for store_id in stores if store_id]
    return offsets | ({HISTORY: history[0]} if history else {})
