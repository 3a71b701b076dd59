"""
What the queues of a pull have to offer, as things are now.

Everything is decided at the moment of the read: lease, topic, bounds, and which tags the member wants. For a member
with a tag expression, batches without such a tag are skipped: they are not sent, and cost at most 2 ms a turn however
many they are. A damaged batch cannot be distinguished from a wanted one, so it is not skipped.

A :class:`PullRequest` is a pull while it is served, queued, read for by a thread, or parked.
"""

from __future__ import annotations

from collections.abc import Callable

import msgpack

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch.layout import Buffer
from rmq.wire.batch.tags import Wanted
from rmq.wire.errors import Damaged, MessagesLost, OffsetOutOfRange, OtherHistory, Refused, StoreFailed, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol import frames
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, Pull

from ..net.connection import WORK_S, Connection
from ..net.limits import AnswerBudget
from ..state.topics import TopicTable
from ..store.consume_queue import ConsumeQueue
from ..store.history import PositionRefused
from ..store.message_store import MessageStore
from ..store.read import ColdRead, DamagedRange, ReadBatches
from .progress import ProgressHandler

log = get_broker_logger(__name__)
MAX_PULL_BYTES = 8 << 20


class Cold(Exception):
    """A part of the answer is not in memory."""

    def __init__(self, place: int, read: ColdRead) -> None:
        super().__init__()
        self.place = place
        self.read = read


class PullReader:
    """
    Reads for pulls.

    ``damaged_reads`` counts what had to be answered as damaged, ``failed_reads`` what the disk did not give,
    ``other_histories`` refusals of readers that follow another history of the store.
    """

    def __init__(
        self, store: MessageStore, topics: TopicTable, progress: ProgressHandler, answers: AnswerBudget, *,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store = store
        self._topics = topics
        self._progress = progress
        self._answers = answers
        self._clock = clock
        self.damaged_reads = 0
        self.other_histories = 0
        self.failed_reads = 0
        self._failing: set[MessageQueue] = set()  # queues whose failure was logged; it may pass

    def collect(self, request: PullRequest, *, is_over: bool) -> dict[int, list[Buffer]]:
        """
        What each queue has to say, by place, within the bytes the reader wants and may have, and 2 ms.

        Raises:
            Cold: a thread has to read first. Never, if something can be answered, or the time of the pull ``is_over``,
                for more than one read of a queue: then it is answered how far that has come.
        """
        out_of_time = self._deadline()
        room = min(max(request.pull.max_bytes, 1), MAX_PULL_BYTES, self._answers.share)
        request.is_unfinished = False
        request.kept = 0
        parts: dict[int, list[Buffer]] = {}
        colder: Cold | None = None
        for i in request.order():
            try:
                self._check(request, i)
                if not self._ready(request, i) or room <= 0:
                    continue
                found = self._read_on(request, i, room, out_of_time)
            except Refused as error:
                parts[i] = self._refused(request, i, error)
                continue
            except DamagedRange as damage:
                parts[i] = self._damaged(request, i, damage)
                continue
            except Cold as cold:
                if not request.has_passed(i):
                    raise
                colder = colder or cold
                continue
            if found.buffers:
                room -= found.size
                request.kept += found.kept
                parts[i] = self._found(request, i, found)
            if out_of_time():
                request.is_unfinished = request.is_filtered
                break
        if colder is not None and not parts and not is_over:
            raise colder
        return parts

    def _found(self, request: PullRequest, i: int, found: ReadBatches) -> list[Buffer]:
        self._store.traffic.gave(request.queues[i].topic, found.next_offset - request.offsets[i], found.size)
        if request.pull.group is not None:
            self._progress.fetched(request.pull.group, request.queues[i], found.next_offset)
        return self._answer(request, i, 0, next_offset=found.next_offset, buffers=found.buffers)

    def empty(self, request: PullRequest, i: int) -> list[Buffer]:
        """The answer that there is nothing, up to where unwanted batches were passed."""
        return self._answer(request, i, EMPTY, next_offset=request.offsets[i])

    def skim(self, request: PullRequest) -> bool:
        """
        Pass what is not wanted in the queues that have grown; says whether there is nothing but that.

        Queues for which the time did not suffice are still ``stirred``.
        """
        out_of_time = self._deadline()
        try:
            for queue in list(request.stirred):
                for i in request.places_of(queue):
                    self._check(request, i)
                    if self._ready(request, i) and self._read_on(request, i, 1, out_of_time).buffers:
                        return False
                    if self._ready(request, i):
                        return True
                request.stirred.discard(queue)
        except (Refused, DamagedRange, Cold):
            return False
        return True

    def overlooked(self, request: PullRequest) -> MessageQueue | None:
        """A queue that holds something the pull was not shown."""
        find = self._store.queue
        for queue, offset in zip(request.queues, request.offsets, strict=True):
            if find(queue).readable > offset:
                return queue
        return None

    def _deadline(self) -> Callable[[], bool]:
        clock = self._clock
        until = clock() + WORK_S
        return lambda: clock() > until

    # ---- one place

    def _read_on(self, request: PullRequest, i: int, room: int, out_of_time: Callable[[], bool]) -> ReadBatches:
        """Batches from where the pull has come to; none if all that could be looked at in time is not wanted."""
        while True:
            found = self._read(request, i, room, out_of_time)
            if found.buffers:
                return found
            request.offsets[i] = found.next_offset
            request.read.pop(i, None)
            request.first = (i + 1) % len(request.queues)
            if not self._ready(request, i) or out_of_time():
                return found

    def _read(self, request: PullRequest, i: int, room: int, out_of_time: Callable[[], bool]) -> ReadBatches:
        queue, wanted, read = request.queues[i], request.wanted[i], request.read.get(i)
        if read is not None and read.queue is self._store.queue(queue) and read.wanted == wanted:
            result = read.result  # else it was read from a topic that is gone, or for other tags
            if isinstance(result, OSError):  # a file was removed meanwhile: that was noticed before
                raise self._failed(queue, result) from result
            if isinstance(result, Exception):
                raise result
            self._failing.discard(queue)
            return result
        try:
            found = self._store.read(queue, request.offsets[i], room, out_of_time, wanted)
        except OSError as error:
            raise self._failed(queue, error) from error
        if isinstance(found, ColdRead):
            raise Cold(i, found)
        return found

    def _failed(self, queue: MessageQueue, error: OSError) -> StoreFailed:
        self.failed_reads += 1
        if queue not in self._failing:
            self._failing.add(queue)
            log.error("pull.failed", queue=str(queue), error=str(error))
        return StoreFailed(f"{queue} cannot be read: {error.strerror}")

    def _check(self, request: PullRequest, i: int) -> None:
        pull, asked = request.pull, request.pull.queues[i]
        if not self._is_there(request, i):
            raise TopicNotFound(f"the topic {asked.topic!r} was deleted")
        if pull.group is not None:
            assert request.connection.session is not None
            session = request.connection.session.id
            self._progress.check_pull(session, pull.group, request.queues[i], asked.epoch)
            request.want(i, self._progress.wanted(session, pull.group, asked.topic))
        queue, offset = self._store.queue(request.queues[i]), request.offsets[i]
        if 0 <= offset < queue.min_offset:
            raise MessagesLost(f"retention removed {request.queues[i]} from offset {offset} to {queue.min_offset}")
        if asked.log_epoch:
            self._store.history.check(
                queue, request.queues[i], asked.log_epoch, asked.queue_offset, in_group=pull.group is not None
            )
        if not queue.min_offset <= offset <= queue.readable:
            bounds = f"{request.queues[i]} holds {queue.min_offset} to {queue.readable}"
            raise OffsetOutOfRange(f"offset {offset} is out of range: {bounds}")

    def _is_there(self, request: PullRequest, i: int) -> bool:
        topic = self._topics.get(request.queues[i].topic)
        return topic is not None and topic.generation == request.generations[i]

    def _ready(self, request: PullRequest, i: int) -> bool:
        return self._store.queue(request.queues[i]).readable > request.offsets[i]

    # ---- its answer

    def _refused(self, request: PullRequest, i: int, error: Refused) -> list[Buffer]:
        following = NO_OFFSET
        if isinstance(error, MessagesLost):
            if request.has_passed(i):
                return self.empty(request, i)  # so that what is lost is reported with its exact bounds
            following = self._store.queue(request.queues[i]).min_offset
        elif isinstance(error, PositionRefused):
            following = error.next_offset
            self.other_histories += error.code == OtherHistory.code
        return self._answer(request, i, error.code, next_offset=following, text=error.text)

    def _damaged(self, request: PullRequest, i: int, damage: DamagedRange) -> list[Buffer]:
        if request.has_passed(i):
            return self.empty(request, i)
        queue, offset = request.queues[i], request.pull.queues[i].queue_offset
        self.damaged_reads += 1
        log.error("pull.damaged", queue=str(queue), first=offset, end=damage.next_offset)
        text = f"{queue} is damaged from offset {offset} to {damage.next_offset}: restore the log or go on after that"
        return self._answer(request, i, Damaged.code, next_offset=damage.next_offset, text=text)

    def _answer(
        self, request: PullRequest, i: int, status: int, *, next_offset: int = NO_OFFSET,
        buffers: list[Buffer] | None = None, text: str | None = None,
    ) -> list[Buffer]:  # fmt: skip
        bounds = (0, 0)
        if self._is_there(request, i):  # asking for the index of another queue would make one
            queue = self._store.queue(request.queues[i])
            bounds = queue.min_offset, queue.readable
        following = next_offset if next_offset != NO_OFFSET else request.pull.queues[i].queue_offset
        head = msgpack.packb((i, status, following, *bounds))
        # A named tuple on the other side: an array of seven, whose sixth element is the run of batches.
        size = sum(map(len, buffers)) if buffers else 0
        return [b"\x97" + head[1:] + frames.bin_header(size), *(buffers or ()), msgpack.packb(text)]


class Read:
    """What a thread has read for a place of a pull, and what it was asked for."""

    __slots__ = ("queue", "result", "wanted")

    def __init__(self, queue: ConsumeQueue, wanted: Wanted | None, result: ReadBatches | Exception) -> None:
        self.queue = queue
        self.wanted = wanted
        self.result = result


class PullRequest:
    """
    A pull and how far it has come.

    ``offsets`` says where each of its queues is read on: after what it has asked for, where batches were passed that
    hold no wanted tag. That counts under the expression in ``wanted`` only, and is reported with the reply.
    """

    __slots__ = (
        "_places",
        "connection",
        "expires_at",
        "first",
        "generations",
        "had_turn",
        "is_filtered",
        "is_unfinished",
        "kept",
        "offsets",
        "pull",
        "queues",
        "read",
        "request_id",
        "stirred",
        "wanted",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, request_id: int, pull: Pull, expires_at: float, generations: list[int], *,
        wanted: Wanted | None = None,
    ) -> None:  # fmt: skip
        self.connection = connection
        self.request_id = request_id
        self.pull = pull
        self.queues = tuple(MessageQueue(queue.topic, queue.queue_id) for queue in pull.queues)
        self.expires_at = expires_at
        self.generations = generations  # of each queue's topic, as it was when the pull came
        self.offsets = [queue.queue_offset for queue in pull.queues]
        self.wanted = [wanted] * len(pull.queues)
        self.is_filtered = wanted is not None  # whether any of them is for some tags only
        self.read: dict[int, Read] = {}  # by place
        self.first = 0  # the place to begin with: no queue with much that is unwanted holds up the others
        self.is_unfinished = False  # the time was over before all that is unwanted was passed
        self.kept = 0  # bytes of frames that the batches of its answer keep in memory, besides their own
        self.had_turn = False  # a thread has read for it since it last stood in line for that
        self.stirred: set[MessageQueue] = set()  # queues that grew while it is parked, still to be looked at
        self._places: dict[MessageQueue, list[int]] = {}

    def has_passed(self, place: int) -> bool:
        """Whether unwanted batches were passed at a place."""
        return self.offsets[place] != self.pull.queues[place].queue_offset

    def want(self, place: int, wanted: Wanted | None) -> None:
        """Read a place for these tags; what was passed for others is looked at again."""
        if wanted != self.wanted[place]:
            self.wanted[place] = wanted
            self.is_filtered = any(self.wanted)
            self.offsets[place] = self.pull.queues[place].queue_offset

    def order(self) -> list[int]:
        """All places, in the order in which they are to be served."""
        places = [*range(len(self.queues))]
        return places[self.first :] + places[: self.first] if self.first else places

    def places_of(self, queue: MessageQueue) -> list[int]:
        """The places of a queue; a pull may name one twice."""
        if not self._places:
            for place, of in enumerate(self.queues):
                self._places.setdefault(of, []).append(place)
        return self._places[queue]
