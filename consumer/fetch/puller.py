"""
One long poll for each assignment, which keeps its cache filled and carries its progress.

``Intake`` decides what an answer means and puts its batches into the cache. A broker that filters by tags leaves
batches out. So where our own subscription names tags, offsets that an answer passes up to its ``next_offset`` are
*filtered*: there is nothing for us, and the progress passes them when all before them is done. Where we want every
message, offsets that are missing between batches are a defect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.runtime.tasks import TaskSet
from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import Batch
from rmq.wire.batch.tags import ALL
from rmq.wire.errors import (
    OK,
    BadBatch,
    Damaged,
    Fenced,
    LogTruncated,
    OffsetOutOfRange,
    OtherHistory,
    Refused,
    RmqError,
    code_name,
)
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, PullQueue, PullResult

from ..config import ConsumerConfig
from ..dispatch.turns import SLICE_S
from ..group.assignment import Assignment, LogGap, Stopped, gap_of
from ..group.progress import AGREEING
from ..group.rebalancer import Rebalancer
from ..group.topics import GONE
from ..introspection import Statistics
from .flow_control import FlowControl, stands_still
from .start_offset import StartOffset, after_failure, says_gone

log = get_logger("rmq.consumer")
FEW = 16  # messages for which a listener was idle: it would be late for them, while many more are not delayed


class Puller:
    """
    Pulls for assignments, which exist only under a lease: the lock always comes before the first pull.

    What came back is for :class:`~rmq.consumer.fetch.puller.Intake`, when to ask for
    :class:`~rmq.consumer.fetch.flow_control.FlowControl`, where a group without progress begins for
    :class:`~rmq.consumer.fetch.start_offset.StartOffset`.
    """

    def __init__(
        self,
        assignments: Mapping[MessageQueue, Assignment],
        config: ConsumerConfig,
        broker: GroupClient,
        *,
        tasks: TaskSet,
        believed: Callable[[Assignment], bool],
        progressed: Callable[[], None],
        topics: Rebalancer,
        statistics: Statistics,
    ) -> None:
        self._config = config
        self._broker = broker
        self._tasks = tasks
        self._believed = believed
        self._progressed = progressed
        self._statistics = statistics
        self._flow = FlowControl(assignments, config, broker)
        self._intake = Intake(config, broker, topics=topics, progressed=progressed, room=self._flow.room)
        self._start = StartOffset(config, broker, topics=topics, progressed=progressed)

    def start(self, assignment: Assignment) -> None:
        """Begin to fill an assignment's cache; ends when it is dropped, at the latest by cancelling its task."""
        assignment.pulled_at = self._broker.now()
        assignment.puller = self._tasks.start(self._run(assignment), f"puller of {assignment.queue}")

    async def _run(self, assignment: Assignment) -> None:
        if assignment.cache.end_offset < 0:
            await self._start.find(assignment)
        while not assignment.dropped:
            await self._flow.may_pull(assignment)
            if assignment.dropped:
                return
            context = PullContext(self._broker.log_epoch, assignment.cache.subscription.expression)
            began = assignment.pulled_at = self._broker.now()
            result = await self._pull(assignment)
            took_s = self._broker.now() - began
            if result is not None and not assignment.dropped:
                was_empty = not assignment.cache.messages
                messages = await self._intake.take_in(assignment, result, context)
                if messages:
                    await self._found(assignment, messages, took_s)
                if was_empty and 0 < messages <= FEW:
                    # The listener goes first: asking for more takes as long as its call. Whatever happens meanwhile
                    # is looked at before the next pull, as after every other await here.
                    await asyncio.sleep(0)

    async def _found(self, assignment: Assignment, messages: int, took_s: float) -> None:
        now = assignment.pulled_at = self._broker.now()
        self._statistics.of(assignment.shown.topic).pulled.add(now, messages, seconds=took_s)
        if self._config.pull_interval_s:
            await assignment.pause_asking(self._config.pull_interval_s)

    # One pull

    async def _pull(self, assignment: Assignment) -> PullResult | None:
        config, cache, limits = self._config, assignment.cache, self._flow.limits(assignment)
        # Above its share a queue is pulled only if the listener needs more before it commits: then as ever.
        room = max(1, limits.size - cache.size) if cache.size < limits.size or not cache.size else config.pull_bytes
        progress, log_epoch = cache.commit_offset, self._broker.log_epoch
        agrees = assignment.agrees(log_epoch)
        if not agrees and (stands_still(assignment) or not cache.has_room(*limits)):
            room = 1  # only the answer matters
        rides = progress != assignment.reported and agrees and self._believed(assignment)
        if rides:
            assignment.reported = progress
        wanted = PullQueue(
            *assignment.queue,
            cache.end_offset,
            assignment.epoch,
            progress if rides else NO_OFFSET,
            cache.log_epochs.before(cache.end_offset),
        )
        try:
            result = await self._broker.pull(
                wanted,
                wait_s=config.pull_wait_s if agrees else 0.0,
                max_bytes=min(config.pull_bytes, room),
                timeout_s=config.pull_timeout_s,
            )
        except Fenced as error:
            assignment.lose(error.text)
            return None
        except RmqError as error:
            if says_gone(error):
                self._intake.gone(assignment, str(error))
                return None
            # Whether the progress arrived is not known: it is sent again.
            assignment.reported = NO_OFFSET
            self._progressed()
            await self._wait(assignment, error)
            return None
        if not agrees and result is not None and result.status in AGREEING:
            # What was reported to the broker before it started again may be lost as well.
            assignment.agreed, assignment.reported = log_epoch, NO_OFFSET
            self._progressed()
        return result

    async def _wait(self, assignment: Assignment, error: RmqError) -> None:
        await after_failure(assignment, error, self._broker, pause_s=self._config.lock_retry_s)


NEVER = -1  # no log epoch of a broker


class PullContext(NamedTuple):
    """As what a pull was asked for: the log epoch of the broker, and the expression that the group had."""

    log_epoch: int
    expression: str


class Intake:
    """
    The one writer of caches on the puller's side.

    Where the log has lost messages that the group did not get, the queue stops, or goes on after them (``on_gap``);
    where it has lost messages that the group got, the progress goes back to what both still have.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        broker: GroupClient,
        *,
        topics: Rebalancer,
        progressed: Callable[[], None],
        room: Callable[[Assignment], Awaitable[None]],
    ) -> None:
        self._config = config
        self._broker = broker
        self._topics = topics
        self._progressed = progressed
        self._room = room

    async def take_in(self, assignment: Assignment, result: PullResult, context: PullContext) -> int:
        """Do what an answer asks for; returns when the next pull makes sense, with the number of new messages."""
        asked, status = assignment.cache.end_offset, result.status
        text = result.text or code_name(status)
        if status in (OK, EMPTY) and assignment.stopped is not None:
            log.info("queue.resumed", queue=str(assignment.queue), queue_offset=asked)
            assignment.stopped = None
        if status in (OK, EMPTY):
            messages = await self._put(assignment, result, context)
            if context.expression != ALL:
                left_out = max(assignment.cache.end_offset - asked - messages, 0)
                assignment.selection = assignment.selection.answered(context.expression, messages, left_out)
            return messages
        if status == Fenced.code:
            assignment.lose(text)
        elif status in GONE:
            self.gone(assignment, text)
        elif (gap := gap_of(asked, result)) is not None:
            await self._at_gap(assignment, gap)
        elif status == LogTruncated.code and result.next_offset < asked:
            self._cut(assignment, result.next_offset)
        elif status == OffsetOutOfRange.code and asked > result.max_offset:
            self._behind_the_end(assignment, result.max_offset)
        else:
            error = Refused(text, code=status)
            await after_failure(assignment, error, self._broker, pause_s=self._config.lock_retry_s)
        return 0

    def gone(self, assignment: Assignment, text: str) -> None:
        """The queue does not exist any more: the rebalancer finds out what does."""
        self._topics.topic_missing(assignment.queue.topic, assignment.topic_generation)
        assignment.lose(text)

    # Batches

    async def _put(self, assignment: Assignment, result: PullResult, context: PullContext) -> int:
        """Check and cache what came, giving the loop back every 2 ms; compressed batches only as there is room."""
        cache, clock = assignment.cache, self._broker.now
        before, at, messages, began = cache.end_offset, 0, 0, clock()
        try:
            while at < len(result.batches) and not assignment.dropped:
                batch = self._read(assignment, result.batches, at)
                if batch is None or not self._pass_filtered(assignment, batch.header.base_offset, result, context):
                    return messages
                at += batch.header.size
                before_put = cache.messages
                if cache.put(batch):
                    messages += cache.messages - before_put
                    assignment.arrived()
                if batch.header.codec:
                    # We asked for bytes as they are stored: what they unpack to may be a thousand times as much.
                    await self._room(assignment)
                if clock() - began > SLICE_S:
                    await asyncio.sleep(0)
                    began = clock()
            if not self._pass_filtered(assignment, result.next_offset, result, context):
                return messages
        except Refused as error:
            log.error("pull.bad_batch", queue=str(assignment.queue), error=str(error))
        if result.status == OK and cache.end_offset == before:
            # Nothing that can be used: asking again at once would be asked for ever.
            await assignment.pause(self._config.lock_retry_s)
        return messages

    def _read(self, assignment: Assignment, data: bytes, at: int) -> Batch | None:
        """A batch of this queue; None if it shows that the queue is not what it was."""
        batch = batches.read(data, at, stores=self._broker.stores)
        header = batch.header
        if (header.topic, header.queue_id) != assignment.queue:
            raise BadBatch(f"a batch of {header.topic}/{header.queue_id} came")
        if assignment.topic_generation not in (None, header.topic_gen):
            self.gone(assignment, f"the topic has generation {header.topic_gen}")
            return None
        if assignment.shown is not assignment.queue:
            batch.show_topic(assignment.shown.topic, self._config.namespace)
        return batch

    def _pass_filtered(self, assignment: Assignment, to_offset: int, result: PullResult, context: PullContext) -> bool:
        """
        Go on at ``to_offset`` if the broker has left out what lies before it, since no tag of ours is there.

        False if the subscription is another than when the pull was asked for: what was left out may be wanted now, so
        the rest of the answer is asked for again.

        Raises:
            BadBatch: the answer contradicts itself.
        """
        cache = assignment.cache
        if to_offset <= cache.end_offset or assignment.dropped:
            return True
        if cache.subscription.expression != context.expression:
            return False
        if context.expression == ALL:
            return True  # with every message wanted, the cache refuses a batch after a hole
        if to_offset > min(result.next_offset, result.max_offset):
            raise BadBatch(f"{to_offset} lies after {result.next_offset}, where the answer ends")
        cache.skip_to(to_offset, passed_under=context.log_epoch)
        assignment.arrived()  # the owner passes it when its turn comes
        self._progressed()
        return True

    # A log that does not have what it had

    async def _at_gap(self, assignment: Assignment, gap: LogGap) -> None:
        """
        The log lacks the messages that this reader should get next: stop, or pass them. What came before is delivered.

        Stopped means that nothing is dispatched; the lease is kept, and the queue is asked for again with growing
        pauses, since the answer may change.
        """
        fields = {
            "queue": str(assignment.queue),
            "reason": gap.reason,
            "from_offset": gap.from_offset,
            "to_offset": gap.end_offset - 1,
            "count": gap.count,
        }
        is_other = gap.status == OtherHistory.code
        if gap.from_offset == assignment.found_start and gap.status != Damaged.code and not is_other:
            # Retention came between finding the first message and asking for it: the group has missed nothing.
            log.info("start.moved", queue=fields["queue"], queue_offset=gap.end_offset)
            assignment.found_start = gap.end_offset
            return self._skip(assignment, gap.end_offset)
        if self._config.on_gap == "skip" and not is_other:
            log.warning("queue.gap_skipped", **fields, goes_on_at=gap.end_offset)
            return self._skip(assignment, gap.end_offset)
        if assignment.stopped is None or assignment.stopped.gap != gap:
            assignment.stopped = Stopped(gap)
        if assignment.stopped.found_again(self._broker.now()):
            log.error("queue.stopped", **fields, advice=gap.advice())
        await assignment.pause_asking(assignment.stopped.pause_s)

    def _skip(self, assignment: Assignment, goes_on_at: int) -> None:
        assignment.stopped = None
        assignment.cache.skip_to(goes_on_at)
        assignment.arrived()
        self._progressed()

    def _cut(self, assignment: Assignment, goes_on_at: int) -> None:
        """
        The broker lost messages that we have fetched, and may have given their offsets to others: go back.

        If the listener has one of them, what it answers would be taken for an answer about its successor. So the
        queue is lost, as if to another owner: the call is warned, ends, and counts for nothing.
        """
        cache, asked = assignment.cache, assignment.cache.end_offset
        log.warning(
            "log.truncated",
            queue=str(assignment.queue),
            from_offset=goes_on_at,
            to_offset=asked - 1,
            count=asked - goes_on_at,
            delivered=max(0, cache.commit_offset - goes_on_at),
        )
        assignment.stopped = None
        if not cache.cut(goes_on_at):
            return assignment.lose(f"the log lost messages from {goes_on_at} on, and the listener has one of them")
        assignment.agreed, assignment.reported = NEVER, NO_OFFSET  # the next answer shows whether that was far enough
        assignment.arrived()

    def _behind_the_end(self, assignment: Assignment, end: int) -> None:
        asked = assignment.cache.end_offset
        if assignment.cache.used:
            # The log was cut below messages that we have or have done: none of our offsets means anything now.
            return assignment.lose(f"the queue ends at {end}, and {asked} was asked for")
        log.warning("pull.offset_moved", queue=str(assignment.queue), asked=asked, goes_on_at=end)
        self._skip(assignment, end)
