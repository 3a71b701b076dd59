"""
Copies of stored messages: for later, for nobody (dead letters), or once more. Made in a thread, since the messages may
lie on the disk only; nothing here knows the loop.

A copy keeps tag, keys, ordering key, body, properties and the time of birth. Properties of ours say where the message
came from at first, whatever it was copied through. What does not fit beside them is left out, and that is said too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from rmq.wire import names
from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import Batch, Rows
from rmq.wire.errors import BatchTooLarge, Damaged, Refused
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.stores import StoreIds

from ..store.log_reader import LogReader
from ..store.lookup import Locator

PORTION_BYTES: Final = 8 << 20  # of copies that are made before they are appended
PORTION_COPIES: Final = 128  # appending so many takes about 2 ms
MAX_ATTEMPTS: Final = (1 << 16) - 1  # that the column of a batch can hold

ORIGIN_QUEUE: Final = "RMQ_ORIGIN_QUEUE"
ORIGIN_OFFSET: Final = "RMQ_ORIGIN_OFFSET"
ORIGIN_ID: Final = "RMQ_ORIGIN_ID"
ORIGIN: Final = (names.ORIGIN_TOPIC, ORIGIN_QUEUE, ORIGIN_OFFSET, ORIGIN_ID)
GROUP: Final = "RMQ_GROUP"
ATTEMPTS: Final = "RMQ_ATTEMPTS"
REASON: Final = "RMQ_DEAD_REASON"
LEFT_OUT: Final = "RMQ_LEFT_OUT"


class Found(NamedTuple):
    """A message that is to be copied, and the batch it lies in."""

    message: StoredMessage
    source: Batch

    @property
    def place(self) -> int:
        """Its place in the batch."""
        return self.message.queue_offset - self.source.header.base_offset

    @property
    def origin(self) -> int:
        """Its handle."""
        return batches.handle(self.source.header.physical_offset, self.place)

    @property
    def attempts(self) -> int:
        """How often it was delivered before its batch was made."""
        return self.source.columns.attempts_of(self.place)


class Copy(NamedTuple):
    """A copy that is ready to be appended to ``to``, of the message at ``queue_offset``; ``level`` 0: at once."""

    queue_offset: int
    origin: int
    to: MessageQueue
    batch: bytes
    checked: batches.Checked
    level: int = 0


class LastBatch:
    """
    The batch that was read last, for whoever reads next.

    When all messages fail, as they do when a database is down, they are sent back one by one: then the next one lies
    in the same batch. It belongs to one reader at a time.
    """

    __slots__ = ("batch",)

    def __init__(self) -> None:
        self.batch: Batch | None = None


class Sources:
    """The messages of a queue as they could be read when this was made; a batch is read once for those in a row."""

    def __init__(
        self, queue: MessageQueue, generation: int, locator: Locator, reader: LogReader, stores: StoreIds,
        *, last: LastBatch,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._generation = generation
        self._locator = locator
        self._reader = reader
        self._stores = stores
        self._last = last

    def find(self, offset: int) -> Found:
        """
        The message at an offset.

        Raises:
            Damaged: it cannot be read, or something else lies in its place.
        """
        source = self._last.batch
        if source is None or not self._holds(source, offset):
            source = self._last.batch = self._batch(offset)
        (message,) = source.pick([offset - source.header.base_offset])
        return Found(message, source)

    def _holds(self, source: Batch, offset: int) -> bool:
        header = source.header
        is_here = (header.topic, header.queue_id, header.topic_gen) == (*self._queue, self._generation)
        return is_here and header.base_offset <= offset < header.end_offset

    def _batch(self, offset: int) -> Batch:
        damaged = f"{self._queue} is damaged at offset {offset}"
        place = self._locator.position_of(offset)
        data = None if place is None else self._reader.batch(place[0])
        if data is None:
            raise Damaged(f"{damaged}: the message cannot be copied")
        try:
            source = batches.read(data, stores=self._stores)
        except Refused as error:
            raise Damaged(f"{damaged}: {error.text}") from error
        if not self._holds(source, offset):
            raise Damaged(f"{damaged}: another message lies in its place")
        return source

    def copies(self, offsets: Iterable[int], make: Callable[[Found], Copy]) -> list[Copy | Refused]:
        """
        Copies of messages, in order, as many as go into one portion.

        In the place of one that cannot be made stands why: ``Damaged``, or what ``make`` raised.
        """
        made: list[Copy | Refused] = []
        size = 0
        with self._reader:
            for offset in offsets:
                try:
                    copy = make(self.find(offset))
                except Refused as error:
                    made.append(error)
                    continue
                size += len(copy.batch)
                if made and (size > PORTION_BYTES or len(made) == PORTION_COPIES):
                    break
                made.append(copy)
        return made


def dead_copy(found: Found, group: str, attempts: int, reason: str) -> Copy:
    """A copy for the dead letters of a group that has failed at a message so often."""
    to = MessageQueue(names.dead_letter_topic(group), 0)
    said = {**came_from(found), ATTEMPTS: str(attempts), REASON: reason, GROUP: group}
    return _copy(found, to, {**found.message.properties, **said}, said)


def retry_copy(found: Found, group: str, attempts: int, level: int) -> Copy:
    """A copy that is delivered to a group again later, after so many deliveries."""
    to = MessageQueue(names.retry_topic(group), 0)
    said = {**came_from(found), GROUP: group}
    return _copy(found, to, {**found.message.properties, **said}, said, attempts=attempts, level=level)


def replay_copy(found: Found, group: str) -> Copy:
    """A copy of a dead letter that is delivered to its group at once, as if it had never failed."""
    kept = {name: text for name, text in found.message.properties.items() if name not in (ATTEMPTS, REASON)}
    said = {name: kept[name] for name in (*ORIGIN, GROUP) if name in kept}
    return _copy(found, MessageQueue(names.retry_topic(group), 0), kept, said)


def returned_copy(found: Found) -> Copy:
    """
    A copy of a dead letter for the queue it came from, as it was before we wrote into it.

    Raises:
        Damaged: the dead letter does not say where it came from.
    """
    properties = found.message.properties
    try:
        to = MessageQueue(properties[names.ORIGIN_TOPIC], int(properties[ORIGIN_QUEUE]))
    except (KeyError, ValueError) as error:
        raise Damaged(
            f"the dead letter at offset {found.message.queue_offset} does not say where it is from"
        ) from error
    ours = (*ORIGIN, GROUP, ATTEMPTS, REASON)
    return _copy(found, to, {name: text for name, text in properties.items() if name not in ours}, {})


def came_from(found: Found) -> dict[str, str]:
    """The properties that say where a message was sent to at first; those of a retry are told on."""
    message, header = found.message, found.source.header
    properties = message.properties
    if header.topic.startswith(names.RETRIES) and all(name in properties for name in ORIGIN):
        return {name: properties[name] for name in ORIGIN}
    told = (header.topic, str(header.queue_id), str(message.queue_offset), message.message_id)
    return dict(zip(ORIGIN, told, strict=True))


def _copy(
    found: Found, to: MessageQueue, properties: Mapping[str, str], said: Mapping[str, str],
    *, attempts: int = 0, level: int = 0,
) -> Copy:  # fmt: skip
    """A batch of one message; ``said`` are the properties that it cannot do without."""
    message = found.message
    rows = Rows(
        [message.body], found.source.columns.born_at_of(found.place), tags=[message.tag], keys=[message.keys],
        ordering_keys=[message.ordering_key], properties=[properties],
        attempts=[min(attempts, MAX_ATTEMPTS)] if attempts else None,
    )  # fmt: skip
    data = _encode_what_fits(rows, to, said, len(properties) - len(said), level)
    return Copy(message.queue_offset, found.origin, to, data, batches.check(data, stamped=False), level)


def _encode_what_fits(rows: Rows, to: MessageQueue, said: Mapping[str, str], more: int, level: int) -> bytes:
    """The message was as large as one can be, and what we say of it comes on top: the least needed goes first."""
    left_out: list[str] = []
    while True:
        try:
            return bytes(batches.encode(*to, rows, delay_level=level))
        except BatchTooLarge:
            if more:
                left_out.append(f"{more} properties")
                more = 0
            elif rows.keys is not None and rows.keys[0]:
                left_out.append(f"{len(rows.keys[0])} keys")
                rows = rows._replace(keys=None)
            elif rows.ordering_keys is not None and rows.ordering_keys[0]:
                left_out.append("the ordering key")
                rows = rows._replace(ordering_keys=None)
            else:
                raise
            told = {**said, LEFT_OUT: f"{', '.join(left_out)}: the copy would be too large"}
            rows = rows._replace(properties=[told])
