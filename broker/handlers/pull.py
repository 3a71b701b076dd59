"""
PULL: read, or park until something arrives.

A pull is served in one synchronous stretch: there is no ``await`` between finding nothing and being parked, so an
arrival cannot fall in between. Pulls that are woken, or that waited for a slow reader, stand in one queue that is
worked off for at most 2 ms a turn.

What the disk would have to be waited for is read by a thread, one read at a time for a connection, so that memory is
bounded and no connection has all threads. Then the pull is queued again, and judged as things are *then*: the lease may
be gone, the queue may have been deleted, the reader may take nothing any more.

A parked pull for some tags is not woken by what it does not want: arrivals are looked at in turn, and it stays parked,
with the place it has come to, until something that it wants is found or its time is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from rmq.runtime.logging import get_broker_logger
from rmq.wire import names
from rmq.wire.batch import tags
from rmq.wire.batch.tags import Wanted
from rmq.wire.errors import BadRequest, Refused, TooManyInFlight
from rmq.wire.model import MessageQueue
from rmq.wire.protocol import frames
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops.core import NO_OFFSET, Pull

from ..jobs.read_pool import ReadPool
from ..net.connection import DEFERRED, WORK_S, Connection
from ..net.limits import AnswerBudget
from ..state.groups import MAX_EXPRESSION
from ..state.parked_pulls import ParkedPull, ParkedPullTable
from ..state.topics import TopicTable
from ..store.message_store import MessageStore
from ..store.read import ReadBatches
from .progress import ProgressHandler
from .pull_read import Cold, PullReader, PullRequest, Read
from .requests import check_entries

log = get_broker_logger(__name__)

MAX_WAITING_QUEUES = 16_384  # of all unanswered pulls of a connection
OVERDUE_S = 0.0005  # of each turn, for pulls whose time is up, while the line does not end


class _Reads:
    """The pulls of a connection that wait until another one of its reads is back."""

    __slots__ = ("busy", "waiting")

    def __init__(self) -> None:
        self.busy = False
        self.waiting: deque[PullRequest] = deque()


class PullHandler:
    """Serves pulls and parks them. ``rescued`` counts arrivals that only the sweep noticed: it should stay 0."""

    def __init__(
        self, store: MessageStore, topics: TopicTable, parked_pulls: ParkedPullTable, progress: ProgressHandler,
        *, now: Callable[[], float], clock: Callable[[], float], call_soon: Callable[..., object], max_park_s: float,
        pool: ReadPool, answers: AnswerBudget,
    ) -> None:  # fmt: skip
        self._store = store
        self._pool = pool
        self._topics = topics
        self._parked_pulls = parked_pulls
        self._progress = progress
        self._now = now
        self._clock = clock
        self.reader = PullReader(store, topics, progress, answers, clock=clock)
        self._call_soon = call_soon
        self._max_park_s = max_park_s
        self._ready: deque[PullRequest | ParkedPull] = deque()  # to be served, or to be looked at
        self._overdue: deque[PullRequest] = deque()  # whose time is up; after ``_ready``, since there is no hurry
        self._working = False
        self._blocked: dict[Connection, list[PullRequest]] = {}
        self._reads: dict[Connection, _Reads] = {}
        self._waiting: dict[Connection, int] = {}  # how many queues the unanswered pulls of a connection name
        self._unswept: list[ParkedPull] = []
        self.rescued = 0
        self.cold_reads = 0

    # ---- events

    def pull(self, connection: Connection, request_id: int, payload: Any) -> object:
        """Serve a pull, or queue it after those of other connections."""
        check_entries(payload, 3)
        pull = decode(Pull, payload)
        if not pull.queues:
            raise BadRequest("a pull names no queue")
        if pull.group is not None:
            names.check_group(pull.group)
        wanted = _expressed(pull)
        generations = [self._topics.require_queue(queue.topic, queue.queue_id).generation for queue in pull.queues]
        wait_s = min(max(pull.wait_ms, 0) / 1000, self._max_park_s)
        request = PullRequest(connection, request_id, pull, self._now() + wait_s, generations, wanted=wanted)
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
        """Queues can be read further: wake who waits for them; who waits for some tags, when that is what came."""
        for queue in queues:
            for parked in self._parked_pulls.of_queue(queue):
                request = _request(parked)
                if not request.is_filtered:
                    self._wake(parked)
                    continue
                if not request.stirred:
                    self._enqueue(parked)
                request.stirred.add(queue)

    def _wake(self, parked: ParkedPull) -> None:
        self._parked_pulls.cancel(parked)
        self._enqueue(_request(parked))

    def lease_changed(self, group: str, queue: MessageQueue) -> None:
        """Wake the parked pulls of a group after its lease was granted or ended: an old epoch is refused."""
        for parked in list(self._parked_pulls.of_queue(queue)):
            if _request(parked).pull.group == group:
                self._wake(parked)

    def resubscribed(self, connection: Connection, group: str) -> None:
        """Wake the parked pulls of a member that wants other tags: they read again from the offsets they asked for."""
        for parked in self._parked_pulls.of_owner(connection):
            if _request(parked).pull.group == group:
                self._wake(parked)

    def topic_ended(self, topic: str, queues: int) -> None:
        """Wake the pulls parked on a topic that is gone, so that they are refused."""
        for queue_id in range(queues):
            for parked in self._parked_pulls.arrived(MessageQueue(topic, queue_id)):
                self._enqueue(_request(parked))

    def unblocked(self, connection: Connection) -> None:
        """A slow reader has caught up: its pulls get back into line."""
        for request in self._blocked.pop(connection, ()):
            self._enqueue(request)

    def closed(self, connection: Connection) -> None:
        """Forget the pulls of a connection that ended."""
        self._parked_pulls.drop_owner(connection)
        self._blocked.pop(connection, None)
        self._reads.pop(connection, None)
        self._waiting.pop(connection, None)

    def expire(self) -> None:
        """Answer the parked pulls whose time is up."""
        self._overdue.extend(map(_request, self._parked_pulls.expired(now=self._now())))
        self._begin()

    def sweep(self) -> None:
        """Look for parked pulls that an arrival should have woken; finding one is a defect worth knowing."""
        if not self._unswept:
            self._unswept = self._parked_pulls.all()
        self._sweep_on()

    def _sweep_on(self) -> None:
        until = self._clock() + WORK_S
        while self._unswept:
            if self._clock() > until:
                self._call_soon(self._sweep_on)
                return
            parked = self._unswept.pop()
            request = _request(parked)
            if not parked.waits or request.stirred:  # or it is in line
                continue
            if (queue := self.reader.overlooked(request)) is not None:
                self.rescued += 1
                log.error("pull.rescued", queue=str(queue), total=self.rescued)
                self._wake(parked)

    # ---- the line

    def _enqueue(self, item: PullRequest | ParkedPull) -> None:
        self._ready.append(item)
        self._begin()

    def _begin(self) -> None:
        if not self._working and (self._ready or self._overdue):
            self._working = True
            self._call_soon(self._work)

    def _work(self) -> None:
        began = self._clock()
        try:
            while (line := self._ready or self._overdue) and self._clock() - began <= WORK_S:
                self._work_off(line.popleft())
            if self._ready and self._overdue:
                self._work_off_overdue()
        finally:
            self._working = bool(self._ready or self._overdue)
            if self._working:  # asked for here only: who gets into line meanwhile does not make a second turn of it
                self._call_soon(self._work)

    def _work_off_overdue(self) -> None:
        """Some of them, at least one: a line that does not end must not keep them for ever."""
        began = self._clock()
        while self._overdue:
            self._work_off(self._overdue.popleft())
            if self._clock() - began > OVERDUE_S:
                break

    def _work_off(self, item: PullRequest | ParkedPull) -> None:
        request = item if isinstance(item, PullRequest) else _request(item)
        try:
            if isinstance(item, ParkedPull) and self._stays_parked(item):
                return
            self._serve(request)
        except Refused as error:
            self._done(request)
            request.connection.refuse(request.request_id, error)
        except Exception as error:
            self._done(request)
            request.connection.refuse(request.request_id, request.connection.defect(error, request.request_id))
        self._pass_on(request.connection)

    def _stays_parked(self, parked: ParkedPull) -> bool:
        """Look at what arrived for a parked pull; False if it is taken out, to be served."""
        request = _request(parked)
        if not parked.waits:
            return True  # it was taken out meanwhile, and queued if necessary
        stays = False
        try:
            stays = self.reader.skim(request)
        finally:
            if not stays:
                self._parked_pulls.cancel(parked)
        if stays and request.stirred:
            self._enqueue(parked)
        return stays

    def _pass_on(self, connection: Connection) -> None:
        """Queue the pull that waits for the next read of a connection, unless one is under way."""
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
        is_over = request.expires_at <= self._now()
        try:
            parts = self.reader.collect(request, is_over=is_over)
        except Cold as cold:
            self._read_in_thread(request, cold)
            return
        request.read = {}
        if not parts and not is_over:
            if request.is_unfinished:
                self._enqueue(request)
                return
            request.stirred = set()
            self._parked_pulls.park(connection, request, request.queues, request.expires_at)
            return
        if not parts or request.is_filtered:
            silent = [i for i in range(len(request.queues)) if i not in parts and (not parts or request.has_passed(i))]
            parts |= {i: self.reader.empty(request, i) for i in silent}
        run = [buffer for part in parts.values() for buffer in part]
        connection.reply_parts(request.request_id, [frames.array_header(len(parts)), *run], request.kept)
        self._done(request)

    def _read_in_thread(self, request: PullRequest, cold: Cold) -> None:
        files, queue = self._store.files, self._store.queue(request.queues[cold.place])
        reads = self._reads.setdefault(request.connection, _Reads())
        if reads.busy or (request.had_turn and reads.waiting and not request.read):
            request.had_turn = False  # others first, as long as nothing that was read is kept meanwhile
            reads.waiting.append(request)
            return
        wanted = request.wanted[cold.place]

        def done(result: ReadBatches | Exception) -> None:
            reads.busy = False
            request.read[cold.place] = Read(queue, wanted, result)
            self._enqueue(request)

        self._pool.submit(lambda: cold.read.run(files), done)
        reads.busy = request.had_turn = True
        self.cold_reads += 1

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


def _expressed(pull: Pull) -> Wanted | None:
    """The tags that a pull without a group names; those of a member are in its subscription."""
    if pull.expression is None:
        return None
    if pull.group is not None:
        raise BadRequest("a pull with a group has no expression: the tags of a member are those that it joined with")
    if len(pull.expression) > MAX_EXPRESSION:
        raise BadRequest(f"the tag expression of a pull has at most {MAX_EXPRESSION} characters")
    try:
        return tags.wanted(pull.expression)
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _request(parked: ParkedPull) -> PullRequest:
    assert isinstance(parked.token, PullRequest)  # only this handler parks anything
    return parked.token
