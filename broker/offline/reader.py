"""
The log of a stopped broker, or a backup of it, that answers as the broker would.

It takes the requests of the wire that a scan needs (ROUTE, LIST_TOPICS, RANGES, OFFSETS_AT and pulls without a group)
and gives the same answers, so that a scan needs no other code and gets the same rows in the same order. Batches are
found and judged by the code that serves them online: what is damaged is ``DAMAGED`` here, too.

Opening it walks the log once, as a start without a checkpoint does. With a hint for a queue that is skipped: other
processes read their part of a scan at once. Nothing is written; the directory is locked against a broker that would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import msgpack

from rmq.wire.batch import tags
from rmq.wire.errors import OK, BadRequest, Damaged, MessagesLost, OffsetOutOfRange, Refused
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops import messages
from rmq.wire.protocol.ops.core import EMPTY, Op
from rmq.wire.stores import StoreIds

from ..state.topics import Topic
from ..store import lookup
from ..store.commitlog import Extent
from ..store.consume_queue import Bounds
from ..store.directory import SharedLock, StoreError
from ..store.files import Files, IndexFaults
from ..store.history import PositionRefused
from ..store.lookup import LogReader
from ..store.read import ColdRead, DamagedRange, Only
from ..store.rebuild import first_store_id
from .index import StoppedIndex, StoppedQueue, log_files

TOPICS_A_PAGE = 1000
_MAX_BATCHES = 4096
_MAX_ENTRIES = 1 << 20


class OfflineLog:
    """
    A data directory that is not written to while this is open; use it in a ``with`` block.

    With a hint, only the queue that it is of can be pulled, and nothing else is answered.

    Raises:
        StoreError: there is no log, a broker uses it, or it cannot be read.
    """

    def __init__(self, path: str, hint: bytes = b"", *, files: Files | None = None) -> None:
        self._path = Path(path)
        self._files = files or Files()
        self._lock = SharedLock(self._path, "read a backup")
        try:
            self._lock.take()
            pieces = log_files(self._files, self._path)
            self._extents = tuple(Extent(piece.start, piece.path) for piece in pieces)
            self._index = None if hint else StoppedIndex(self._files, self._path)
            self._end = self._index.end if self._index is not None else pieces[-1].end
            self._hinted = StoppedQueue.unpack(hint) if hint else None
            self.stores = self._stores()
        except OSError as error:
            self.close()
            raise StoreError(f"{error.filename or path} cannot be read: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let a broker have the directory again; may be called again."""
        self._lock.close()

    def request(self, op: Op, payload: Sequence[Any] | dict[str, Any]) -> Any:
        """
        The payload of the answer, as it would come over the wire.

        Raises:
            WireError: a broker would refuse.
        """
        answer = self._answers().get(op)
        if answer is None:
            raise BadRequest(f"a stopped log does not answer {op.name}")
        try:
            found = answer(msgpack.unpackb(msgpack.packb(payload)))
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error.strerror}") from error
        if op is Op.PULL:
            return [list(found)]  # batches are not copied once more
        return msgpack.unpackb(msgpack.packb(found))

    def hint(self, topic: str, queue_id: int, start: int, end: int) -> bytes:
        """What lets another process read ``[start, end)`` of a queue without a walk."""
        return self._known().queue(MessageQueue(topic, queue_id)).pack(start, end)

    # ---- answers

    def _answers(self) -> dict[Op, Callable[[Any], Any]]:
        return {
            Op.ROUTE: self._route,
            Op.LIST_TOPICS: self._list_topics,
            Op.RANGES: self._ranges,
            Op.OFFSETS_AT: self._offsets_at,
            Op.PULL: self._pull,
        }

    def _route(self, payload: Any) -> Any:
        return _info(self._known().topics.require(decode(ops.Route, payload).topic))

    def _list_topics(self, payload: Any) -> Any:
        after = decode(ops.ListTopics, payload).after
        page = [topic for topic in self._known().topics.all() if topic.name > after]
        return [_info(topic) for topic in page[:TOPICS_A_PAGE]]

    def _ranges(self, payload: Any) -> Any:
        return [self._range(MessageQueue(*ref)) for ref in decode(ops.Ranges, payload).queues]

    def _range(self, of: MessageQueue) -> ops.Range:
        try:
            queue = self._required(of)
        except Refused as error:
            return ops.Range(error.code, text=error.text)
        store_id, log_epoch = self.stores.current, queue.epoch_before(queue.readable)
        return ops.Range(OK, queue.min_offset, queue.readable, store_id=store_id, log_epoch=log_epoch)

    def _offsets_at(self, payload: Any) -> Any:
        asked = decode(messages.OffsetsAt, payload)
        with LogReader(self._files, self._extents, self._end) as reader:
            return [self._offset_at(asked.time_us, MessageQueue(*ref), reader) for ref in asked.queues]

    def _offset_at(self, time_us: int, of: MessageQueue, reader: LogReader) -> messages.OffsetAt:
        try:
            place = self._required(of).locator(self._files)
        except Refused as error:
            return messages.OffsetAt(error.code, text=error.text)

        def stored_at(position: int) -> int | None:
            head = reader.head(position)
            return None if head is None else head.stored_at

        offset = lookup.offset_at(time_us, place.min_offset, place.max_offset, place.position_of, stored_at)
        return messages.OffsetAt(OK, offset, place.min_offset, place.max_offset)

    def _pull(self, payload: Any) -> ops.PullResult:
        asked = decode(ops.Pull, payload)
        if asked.group is not None or asked.wait_ms or len(asked.queues) != 1:
            raise BadRequest("a stopped log serves free reads of one queue that do not wait")
        queue = asked.queues[0]
        of = MessageQueue(queue.topic, queue.queue_id)
        if self._hinted is None:
            self._required(of)
            if queue.log_epoch and (refused := self._refused(of, queue)) is not None:
                return refused
        return self._read(of, queue.queue_offset, max(asked.max_bytes, 1), asked.expression)

    def _refused(self, of: MessageQueue, asked: ops.PullQueue) -> ops.PullResult | None:
        """Refuse a reader whose position is not of this log, as a broker does."""
        queue, history = self._known().queue(of), self._known().history
        try:
            history.check(queue, of, asked.log_epoch, asked.queue_offset, in_group=False)
        except PositionRefused as error:
            text = error.text
            if asked.log_epoch > history.log_epoch:
                text = f"{self._path} ends before offset {asked.queue_offset} of {of} was saved: read a later backup"
            return ops.PullResult(0, error.code, error.next_offset, queue.min_offset, queue.readable, b"", text)
        return None

    def _read(self, of: MessageQueue, offset: int, max_bytes: int, expression: str | None = None) -> ops.PullResult:
        """What a broker answers to a pull that does not wait."""
        queue = self._hinted or self._known().queue(of)
        range_ = queue.min_offset, queue.readable
        try:
            self._check(of, queue, offset)
            if offset == queue.readable:
                return ops.PullResult(0, EMPTY, offset, *range_, b"")
            wanted = tags.wanted(expression) if expression is not None else None
            only = None if wanted is None else Only(wanted, max_bytes)
            bounds = Bounds(max_bytes, _MAX_BATCHES, _MAX_ENTRIES)
            where = queue.locate(offset, bounds)
            found = ColdRead(
                of, queue.generation, offset, bounds, None, where, self._extents, self._end, IndexFaults(), only
            ).run(self._files)  # fmt: skip
        except DamagedRange as damage:
            text = f"{of} is damaged from offset {offset} to {damage.next_offset}: restore the log or go on after that"
            return ops.PullResult(0, Damaged.code, damage.next_offset, *range_, b"", text)
        except Refused as error:
            following = self._first_left(queue) if isinstance(error, MessagesLost) else offset
            return ops.PullResult(0, error.code, following, *range_, b"", error.text)
        except OSError as error:
            raise StoreError(f"{of} cannot be read: {error.strerror}") from error
        status = OK if found.buffers else EMPTY
        return ops.PullResult(0, status, found.next_offset, *range_, b"".join(found.buffers))

    # ---- what there is

    def _known(self) -> StoppedIndex:
        if self._index is None:
            raise BadRequest("this log was opened for the batches of one queue only")
        return self._index

    def _required(self, of: MessageQueue) -> StoppedQueue:
        index = self._known()
        index.topics.require_queue(*of)
        return index.queue(of)

    def _check(self, of: MessageQueue, queue: StoppedQueue, offset: int) -> None:
        first = self._first_left(queue)
        if 0 <= offset < first:
            raise MessagesLost(f"retention removed {of} from offset {offset} to {first}")
        if not first <= offset <= queue.readable:
            raise OffsetOutOfRange(f"offset {offset} is out of range: {of} holds {first} to {queue.readable}")

    def _first_left(self, queue: StoppedQueue) -> int:
        """The first offset that is there; segments may have gone since a hint was made."""
        return queue.min_offset if self._hinted is None else queue.first_after(self._extents[0].start)

    def _stores(self) -> StoreIds:
        """
        Return the ids that the last start in the log has.

        A log that has no start, or is not walked since there is a hint, is named by ``store.json``, which has the
        current id, and by its first segment, which may have a former one.
        """
        walked = self._index
        if walked is not None and walked.history.stores.current:
            return walked.history.stores
        in_log, in_file = first_store_id(self._files, self._extents[0]) or 0, self._id_in_file()
        return StoreIds(in_log or in_file if walked is not None else in_file or in_log)

    def _id_in_file(self) -> int:
        """Return the id in ``store.json``, or 0."""
        try:
            return int(json.loads(self._files.read_file(self._path / "config" / "store.json"))["store_id"], 16)
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return 0


def _info(topic: Topic) -> ops.TopicInfo:
    queues = [ops.QueueInfo(queue_id, "") for queue_id in range(topic.queues)]
    return ops.TopicInfo(topic.name, topic.generation, topic.shards, queues)
