"""
PULL: read, or park until something arrives.

A pull is served in one synchronous stretch: there is no ``await`` between finding nothing and being parked, so an
arrival cannot fall in between. Pulls that are woken, or that waited for a slow reader, stand in one line that is
worked off for at most 2 ms a turn.

What the disk would have to be waited for is read by a thread, one read at a time for a connection, so that memory is
bounded and nobody has all threads. When that is back the pull gets into line again, and is judged anew as things are
*then*: the lease may be gone, the queue may have been deleted, the reader may take nothing any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgpack

from rmq.wire import frames, names
from rmq.wire.codec import decode
from rmq.wire.errors import (
    BadRequest,
    Damaged,
    LogTruncated,
    MessagesLost,
    OffsetOutOfRange,
    Refused,
    StoreFailed,
    TooManyInFlight,
    TopicNotFound,
)
from rmq.wire.layout import Buffer
from rmq.wire.model import MessageQueue
from rmq.wire.ops import EMPTY, NO_OFFSET, Pull

from ..connection import DEFERRED, WORK_S, Connection
from ..log import get_logger
from ..read_pool import ReadPool
from ..services.hold_table import HoldTable, Parked
from ..services.topics import TopicTable
from ..store.consume_queue import ConsumeQueue
from ..store.message_store import MessageStore
from ..store.reading import ColdRead, DamagedRange, Found
from .limits import check_entries

log = get_logger(__name__)

MAX_PULL_BYTES = 8 << 20
MAX_WAITING_QUEUES = 16_384  # of all unanswered pulls of a connection


class Progress(Protocol):
    """Fencing and committed offsets, as far as a pull is concerned."""

    def check_pull(self, session: bytes, group: str, queue: MessageQueue, epoch: int | None) -> None:
        """Refuse a pull of an ordered group that does not hold the lease."""

    def ride(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        """Note progress that came with a pull."""

    def fetched(self, group: str, queue: MessageQueue, next_offset: int) -> None:
        """Note how far the owner of a lease was given messages."""


class PullRequest:
    """A pull that is being served, waits in line, or is parked."""

    __slots__ = ("connection", "expires_at", "generations", "pull", "queues", "read", "request_id")

    def __init__(
        self, connection: Connection, request_id: int, pull: Pull, expires_at: float, generations: list[int]
    ) -> None:
        self.connection = connection
        self.request_id = request_id
        self.pull = pull
        self.queues = tuple(MessageQueue(queue.topic, queue.queue_id) for queue in pull.queues)
        self.expires_at = expires_at
        self.generations = generations  # of each queue's topic, as it was when the pull came
        self.read: dict[int, tuple[ConsumeQueue, Found | Exception]] = {}  # by a thread, for a place in the pull


class _Reads:
    """The pulls of a connection that wait until another one of its reads is back."""

    __slots__ = ("busy", "waiting")

    def __init__(self) -> None:
        self.busy = False
        self.waiting: deque[PullRequest] = deque()


class _Cold(Exception):
    """A part of the answer is not in memory."""

    def __init__(self, i: int, read: ColdRead) -> None:
        super().__init__()
        self.i = i
        self.read = read


class _Truncated(LogTruncated):
    """With the offset up to which log and reader agree."""

    def __init__(self, text: str, next_offset: int) -> None:
        super().__init__(text)
        self.next_offset = next_offset


class PullHandler:
    """Reads and the long-poll hold. ``rescued`` counts arrivals that only the sweep noticed: it should stay 0."""

    def __init__(
        self, store: MessageStore, topics: TopicTable, holds: HoldTable, progress: Progress,
        *, now: Callable[[], float], clock: Callable[[], float], call_soon: Callable[..., object], max_hold_s: float,
        pool: ReadPool,
    ) -> None:  # fmt: skip
        self._store = store
        self._pool = pool
        self._topics = topics
        self._holds = holds
        self._progress = progress
        self._now = now
        self._clock = clock
        self._call_soon = call_soon
        self._max_hold_s = max_hold_s
        self._line: deque[PullRequest] = deque()
        self._working = False
        self._blocked: dict[Connection, list[PullRequest]] = {}
        self._reads: dict[Connection, _Reads] = {}
        self._waiting: dict[Connection, int] = {}  # how many queues the unanswered pulls of a connection name
        self._unswept: list[Parked] = []
        self.rescued = 0
        self.cold_reads = 0
        self.damaged_reads = 0

    # ---- events

    def pull(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Serve a pull, or put it in line behind those of other connections."""
        check_entries(payload, 3)
        pull = decode(Pull, payload)
        if not pull.queues:
            raise BadRequest("a pull names no queue")
        if pull.group is not None:
            names.check_group(pull.group)
        generations = [self._topics.require_queue(queue.topic, queue.queue_id).generation for queue in pull.queues]
        wait_s = min(max(pull.wait_ms, 0) / 1000, self._max_hold_s)
        request = PullRequest(connection, request_id, pull, self._now() + wait_s, generations)
        self._note_progress(request)
        self._admit(request)
        try:
            self._serve(request)
        except BaseException:
            self._done(request)
            raise
        return DEFERRED

    def _admit(self, request: PullRequest) -> None:
        waiting = self._waiting.get(request.connection, 0) + len(request.queues)
        if waiting > MAX_WAITING_QUEUES:
            raise TooManyInFlight(f"the unanswered pulls of this connection name more than {MAX_WAITING_QUEUES} queues")
        self._waiting[request.connection] = waiting
        request.connection.set_aside()  # a member of many queues parks as many pulls, and must still renew

    def _done(self, request: PullRequest) -> None:
        request.connection.take_back()
        waiting = self._waiting.get(request.connection, 0) - len(request.queues)
        if waiting > 0:
            self._waiting[request.connection] = waiting
        else:
            self._waiting.pop(request.connection, None)  # nothing left, or the connection is gone

    def arrived(self, queues: list[MessageQueue]) -> None:
        """Queues can be read further: wake who waits for them."""
        for queue in queues:
            for parked in self._holds.arrived(queue):
                self._enqueue(_request(parked))

    def lease_changed(self, group: str, queue: MessageQueue) -> None:
        """A lease was granted or ended: parked pulls under an old epoch are told."""
        for parked in list(self._holds.of_queue(queue)):
            if _request(parked).pull.group == group:
                self._holds.cancel(parked)
                self._enqueue(_request(parked))

    def topic_ended(self, topic: str, queues: int) -> None:
        """A topic is gone: pulls that wait for it are told, those of a new one of its name begin anew."""
        self.arrived([MessageQueue(topic, queue_id) for queue_id in range(queues)])

    def unblocked(self, connection: Connection) -> None:
        """A slow reader has caught up: its pulls get back into line."""
        for request in self._blocked.pop(connection, ()):
            self._enqueue(request)

    def closed(self, connection: Connection) -> None:
        """A connection ended: nobody waits for its pulls."""
        self._holds.drop_owner(connection)
        self._blocked.pop(connection, None)
        self._reads.pop(connection, None)
        self._waiting.pop(connection, None)

    def expire(self) -> None:
        """Answer the parked pulls whose time is up."""
        for parked in self._holds.expired(now=self._now()):
            self._enqueue(_request(parked))

    def sweep(self) -> None:
        """Look for parked pulls that an arrival should have woken; finding one is a defect worth knowing."""
        if not self._unswept:
            self._unswept = self._holds.all()
        self._sweep_on()

    def _sweep_on(self) -> None:
        until = self._clock() + WORK_S
        while self._unswept:
            if self._clock() > until:
                self._call_soon(self._sweep_on)
                return
            parked = self._unswept.pop()
            if parked.waits and (queue := self._overlooked(_request(parked))) is not None:
                self.rescued += 1
                log.error("pull.rescued", queue=str(queue), total=self.rescued)
                self._holds.cancel(parked)
                self._enqueue(_request(parked))

    def _overlooked(self, request: PullRequest) -> MessageQueue | None:
        find = self._store.queue
        for queue, wanted in zip(request.queues, request.pull.queues, strict=True):
            if find(queue).readable > wanted.queue_offset:
                return queue
        return None

    # ---- the line

    def _enqueue(self, request: PullRequest) -> None:
        self._line.append(request)
        if not self._working:
            self._working = True
            self._call_soon(self._work)

    def _work(self) -> None:
        began = self._clock()
        self._working = False
        while self._line:
            if self._clock() - began > WORK_S:
                self._working = True
                self._call_soon(self._work)
                return
            request = self._line.popleft()
            try:
                self._serve(request)
            except Refused as error:
                self._done(request)
                request.connection.refuse(request.request_id, error)
            except Exception as error:
                self._done(request)
                request.connection.refuse(request.request_id, request.connection.defect(error, request.request_id))
            self._pass_on(request.connection)

    def _pass_on(self, connection: Connection) -> None:
        """Whoever waits for the next read of a connection gets into line, unless one is under way."""
        reads = self._reads.get(connection)
        if reads is not None and not reads.busy:
            if reads.waiting:
                self._enqueue(reads.waiting.popleft())
            else:
                del self._reads[connection]

    def _serve(self, request: PullRequest) -> None:
        connection = request.connection
        if connection.closing:
            return
        if connection.blocked:
            request.read = {}  # to be read again: memory is for those who take what they ask for
            self._blocked.setdefault(connection, []).append(request)
            return
        try:
            parts = self._collect(request)
        except _Cold as cold:
            self._read_beside(request, cold)
            return
        request.read = {}
        if not parts and request.expires_at > self._now():
            self._holds.park(connection, request, request.queues, request.expires_at)
            return
        if not parts:
            parts = [self._answer(i, EMPTY, request) for i in range(len(request.queues))]
        connection.reply_parts(request.request_id, [frames.array_header(len(parts)), *_flatten(parts)])
        self._done(request)

    def _read_beside(self, request: PullRequest, cold: _Cold) -> None:
        files, queue = self._store.files, self._store.queue(request.queues[cold.i])
        reads = self._reads.setdefault(request.connection, _Reads())
        if reads.busy:
            reads.waiting.append(request)
            return

        def done(result: Found | Exception) -> None:
            reads.busy = False
            request.read[cold.i] = (queue, result)
            self._enqueue(request)

        self._pool.submit(lambda: cold.read.run(files), done)
        reads.busy = True
        self.cold_reads += 1

    def _collect(self, request: PullRequest) -> list[list[Buffer]]:
        """What each queue has to say, within the bytes the reader wants and 2 ms."""
        pull, clock = request.pull, self._clock
        until = clock() + WORK_S

        def out_of_time() -> bool:
            return clock() > until

        room = min(max(pull.max_bytes, 1), MAX_PULL_BYTES)
        parts: list[list[Buffer]] = []
        for i in range(len(pull.queues)):
            try:
                self._check(request, i)
                if not self._ready(request, i) or room <= 0:
                    continue
                found = self._read(request, i, room, out_of_time)
            except Refused as error:
                parts.append(self._refused(request, i, error))
                continue
            except DamagedRange as damage:
                parts.append(self._damaged(request, i, damage))
                continue
            if pull.group is not None and found.buffers:
                self._progress.fetched(pull.group, request.queues[i], found.next_offset)
            room -= found.size
            parts.append(self._answer(i, 0, request, next_offset=found.next_offset, buffers=found.buffers))
            if out_of_time():
                break
        return parts

    def _read(self, request: PullRequest, i: int, room: int, out_of_time: Callable[[], bool]) -> Found:
        queue, known = request.read.get(i, (None, None))
        if queue is not self._store.queue(request.queues[i]):
            known = None  # it was read from a topic that is gone
        if isinstance(known, OSError):  # a file was removed meanwhile: that was noticed before; else the disk fails
            raise StoreFailed(f"{request.queues[i]} cannot be read: {known.strerror}") from known
        if isinstance(known, Exception):
            raise known
        if known is not None:
            return known
        try:
            found = self._store.read(request.queues[i], request.pull.queues[i].queue_offset, room, out_of_time)
        except OSError as error:
            raise StoreFailed(f"{request.queues[i]} cannot be read: {error.strerror}") from error
        if isinstance(found, ColdRead):
            raise _Cold(i, found)
        return found

    def _refused(self, request: PullRequest, i: int, error: Refused) -> list[Buffer]:
        following = NO_OFFSET
        if isinstance(error, MessagesLost):
            following = self._store.queue(request.queues[i]).min_offset
        elif isinstance(error, _Truncated):
            following = error.next_offset
        return self._answer(i, error.code, request, next_offset=following, text=error.text)

    def _damaged(self, request: PullRequest, i: int, damage: DamagedRange) -> list[Buffer]:
        queue, offset = request.queues[i], request.pull.queues[i].queue_offset
        self.damaged_reads += 1
        log.error("pull.damaged", queue=str(queue), first=offset, end=damage.next_offset)
        text = f"{queue} is damaged from offset {offset} to {damage.next_offset}: restore the log or go on behind that"
        return self._answer(i, Damaged.code, request, next_offset=damage.next_offset, text=text)

    def _check(self, request: PullRequest, i: int) -> None:
        pull, wanted = request.pull, request.pull.queues[i]
        if not self._is_there(request, i):
            raise TopicNotFound(f"the topic {wanted.topic!r} was deleted")
        if pull.group is not None:
            assert request.connection.session is not None
            self._progress.check_pull(request.connection.session.id, pull.group, request.queues[i], wanted.epoch)
        queue, offset = self._store.queue(request.queues[i]), wanted.queue_offset
        if 0 <= offset < queue.min_offset:
            raise MessagesLost(f"retention removed {request.queues[i]} from offset {offset} to {queue.min_offset}")
        if wanted.log_epoch:
            self._check_epoch(request, i, queue)
        if not queue.min_offset <= offset <= queue.readable:
            held = f"{request.queues[i]} holds {queue.min_offset} to {queue.readable}"
            raise OffsetOutOfRange(f"offset {offset} is out of range: {held}")

    def _check_epoch(self, request: PullRequest, i: int, queue: ConsumeQueue) -> None:
        wanted = request.pull.queues[i]
        diverged = queue.diverged_at(wanted.log_epoch, wanted.queue_offset)
        if diverged is None and wanted.queue_offset > queue.readable and wanted.log_epoch < self._store.log_epoch:
            diverged = queue.readable
        if diverged is not None:
            raise _Truncated(
                f"the log lost {request.queues[i]} from offset {diverged} on, which this reader has got: "
                "the broker went down before it was on the disk",
                diverged,
            )

    def _is_there(self, request: PullRequest, i: int) -> bool:
        topic = self._topics.get(request.queues[i].topic)
        return topic is not None and topic.generation == request.generations[i]

    def _ready(self, request: PullRequest, i: int) -> bool:
        return self._store.queue(request.queues[i]).readable > request.pull.queues[i].queue_offset

    def _note_progress(self, request: PullRequest) -> None:
        pull = request.pull
        if pull.group is None:
            return
        assert request.connection.session is not None
        for i, wanted in enumerate(pull.queues):
            if wanted.commit_offset != NO_OFFSET:
                try:
                    self._progress.check_pull(
                        request.connection.session.id, pull.group, request.queues[i], wanted.epoch
                    )
                except Refused:
                    continue  # the pull itself is answered with the reason
                self._progress.ride(pull.group, request.queues[i], wanted.commit_offset)

    def _answer(
        self, i: int, status: int, request: PullRequest, *, next_offset: int = NO_OFFSET,
        buffers: list[Buffer] | None = None, text: str | None = None,
    ) -> list[Buffer]:  # fmt: skip
        holds = (0, 0)
        if self._is_there(request, i):  # asking for the index of another queue would make one
            queue = self._store.queue(request.queues[i])
            holds = queue.min_offset, queue.readable
        following = next_offset if next_offset != NO_OFFSET else request.pull.queues[i].queue_offset
        head = msgpack.packb((i, status, following, *holds))
        # A named tuple on the other side: an array of seven, whose sixth element is the run of batches.
        size = sum(map(len, buffers)) if buffers else 0
        return [b"\x97" + head[1:] + frames.bin_header(size), *(buffers or ()), msgpack.packb(text)]


def _flatten(parts: list[list[Buffer]]) -> list[Buffer]:
    return [buffer for part in parts for buffer in part]


def _request(parked: Parked) -> PullRequest:
    assert isinstance(parked.token, PullRequest)  # nobody else parks anything
    return parked.token
