"""
``Puller``: one long poll for each queue generation, which keeps its cache filled and carries its progress.

``Intake``: what the answer to a pull means for a queue, and how its batches get into the cache.

A broker that filters by tags leaves batches out. So where our own subscription names tags, offsets that an answer
passes up to its ``next_offset`` are *filtered*: there is nothing for us, and the progress passes them when all before
them is done. Where we want every message, offsets that are missing between batches are a defect.
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
from ..group.assignment import Gap, Generation, Stopped, gap_of
from ..group.progress import AGREEING
from ..group.topics import GONE
from ..introspection import Statistics
from .flow_control import FlowControl, stands_still
from .start_offset import StartOffset, Topics, after_failure, says_gone

log = get_logger("rmq.consumer")
FEW = 16  # messages for which a listener was idle: it would be late for them, while many more are not held up


class Puller:
    """
    Pulls for generations, which exist only under a lease: the lock always comes before the first pull.

    What came back is for :class:`~rmq.consumer.fetch.puller.Intake`, when to ask for
    :class:`~rmq.consumer.fetch.flow_control.FlowControl`, where a group without progress begins for
    :class:`~rmq.consumer.fetch.start_offset.StartOffset`.
    """

    def __init__(
        self,
        generations: Mapping[MessageQueue, Generation],
        config: ConsumerConfig,
        broker: GroupClient,
        *,
        tasks: TaskSet,
        believed: Callable[[Generation], bool],
        progressed: Callable[[], None],
        topics: Topics,
        statistics: Statistics,
    ) -> None:
        self._config = config
        self._broker = broker
        self._tasks = tasks
        self._believed = believed
        self._progressed = progressed
        self._statistics = statistics
        self._flow = FlowControl(generations, config, broker)
        self._intake = Intake(config, broker, topics=topics, progressed=progressed, room=self._flow.room)
        self._start = StartOffset(config, broker, topics=topics, progressed=progressed)

    def start(self, generation: Generation) -> None:
        """Begin to fill a generation's cache; ends when it is dropped, at the latest by cancelling its task."""
        generation.pulled_at = self._broker.now()
        generation.puller = self._tasks.start(self._run(generation), f"puller of {generation.queue}")

    async def _run(self, generation: Generation) -> None:
        if generation.cache.end_offset < 0:
            await self._start.find(generation)
        while not generation.dropped:
            await self._flow.may_pull(generation)
            if generation.dropped:
                return
            asked_as = Asked(self._broker.log_epoch, generation.cache.subscription.expression)
            began = generation.pulled_at = self._broker.now()
            result = await self._pull(generation)
            took_s = self._broker.now() - began
            if result is not None and not generation.dropped:
                was_empty = not generation.cache.messages
                messages = await self._intake.take_in(generation, result, asked_as)
                if messages:
                    await self._found(generation, messages, took_s)
                if was_empty and 0 < messages <= FEW:
                    # The listener goes first: asking for more takes as long as its call. Whatever happens meanwhile
                    # is looked at before the next pull, as behind every other await here.
                    await asyncio.sleep(0)

    async def _found(self, generation: Generation, messages: int, took_s: float) -> None:
        now = generation.pulled_at = self._broker.now()
        self._statistics.of(generation.shown.topic).pulled.add(now, messages, seconds=took_s)
        if self._config.pull_interval_s:
            await generation.pause_asking(self._config.pull_interval_s)

    # One pull

    async def _pull(self, generation: Generation) -> PullResult | None:
        config, cache, limits = self._config, generation.cache, self._flow.limits(generation)
        # Above its share a queue is pulled only if the listener needs more before it commits: then as ever.
        room = max(1, limits.size - cache.size) if cache.size < limits.size or not cache.size else config.pull_bytes
        progress, log_epoch = cache.commit_offset, self._broker.log_epoch
        agrees = generation.agrees(log_epoch)
        if not agrees and (stands_still(generation) or not cache.has_room(*limits)):
            room = 1  # only the answer matters
        rides = progress != generation.reported and agrees and self._believed(generation)
        if rides:
            generation.reported = progress
        wanted = PullQueue(
            *generation.queue,
            cache.end_offset,
            generation.epoch,
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
            generation.lose(error.text)
            return None
        except RmqError as error:
            if says_gone(error):
                self._intake.gone(generation, str(error))
                return None
            # Whether the progress arrived is not known: it is sent again.
            generation.reported = NO_OFFSET
            self._progressed()
            await self._wait(generation, error)
            return None
        if not agrees and result is not None and result.status in AGREEING:
            # What was reported to the broker before it started again may be lost as well.
            generation.agreed, generation.reported = log_epoch, NO_OFFSET
            self._progressed()
        return result

    async def _wait(self, generation: Generation, error: RmqError) -> None:
        await after_failure(generation, error, self._broker, pause_s=self._config.lock_retry_s)


NEVER = -1  # no log epoch of a broker


class Asked(NamedTuple):
    """As what a pull was asked for: the log epoch of the broker, and the expression that the group had."""

    log_epoch: int
    expression: str


class Intake:
    """
    The one writer of caches on the puller's side.

    Where the log has lost messages that the group did not get, the queue stops, or goes on behind them (``on_gap``);
    where it has lost messages that the group got, the progress goes back to what both still have.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        broker: GroupClient,
        *,
        topics: Topics,
        progressed: Callable[[], None],
        room: Callable[[Generation], Awaitable[None]],
    ) -> None:
        self._config = config
        self._broker = broker
        self._topics = topics
        self._progressed = progressed
        self._room = room

    async def take_in(self, generation: Generation, result: PullResult, asked_as: Asked) -> int:
        """Do what an answer asks for; returns when the next pull makes sense, with the number of new messages."""
        asked, status = generation.cache.end_offset, result.status
        text = result.text or code_name(status)
        if status in (OK, EMPTY) and generation.stopped is not None:
            log.info("queue.resumed", queue=str(generation.queue), queue_offset=asked)
            generation.stopped = None
        if status in (OK, EMPTY):
            messages = await self._put(generation, result, asked_as)
            if asked_as.expression != ALL:
                left_out = max(generation.cache.end_offset - asked - messages, 0)
                generation.selection = generation.selection.answered(asked_as.expression, messages, left_out)
            return messages
        if status == Fenced.code:
            generation.lose(text)
        elif status in GONE:
            self.gone(generation, text)
        elif (gap := gap_of(asked, result)) is not None:
            await self._at_gap(generation, gap)
        elif status == LogTruncated.code and result.next_offset < asked:
            self._cut(generation, result.next_offset)
        elif status == OffsetOutOfRange.code and asked > result.max_offset:
            self._behind_the_end(generation, result.max_offset)
        else:
            error = Refused(text, code=status)
            await after_failure(generation, error, self._broker, pause_s=self._config.lock_retry_s)
        return 0

    def gone(self, generation: Generation, text: str) -> None:
        """There is no such queue any more: whoever knows the topics finds out what there is."""
        self._topics.topic_missing(generation.queue.topic, generation.topic_generation)
        generation.lose(text)

    # Batches

    async def _put(self, generation: Generation, result: PullResult, asked_as: Asked) -> int:
        """Check and cache what came, giving the loop back every 2 ms; compressed batches only as there is room."""
        cache, clock = generation.cache, self._broker.now
        before, at, messages, began = cache.end_offset, 0, 0, clock()
        try:
            while at < len(result.batches) and not generation.dropped:
                batch = self._read(generation, result.batches, at)
                if batch is None or not self._pass_filtered(generation, batch.header.base_offset, result, asked_as):
                    return messages
                at += batch.header.size
                held = cache.messages
                if cache.put(batch):
                    messages += cache.messages - held
                    generation.arrived()
                if batch.header.codec:
                    # We asked for bytes as they are stored: what they unpack to may be a thousand times as much.
                    await self._room(generation)
                if clock() - began > SLICE_S:
                    await asyncio.sleep(0)
                    began = clock()
            if not self._pass_filtered(generation, result.next_offset, result, asked_as):
                return messages
        except Refused as error:
            log.error("pull.bad_batch", queue=str(generation.queue), error=str(error))
        if result.status == OK and cache.end_offset == before:
            # Nothing that can be used: asking again at once would be asked for ever.
            await generation.pause(self._config.lock_retry_s)
        return messages

    def _read(self, generation: Generation, data: bytes, at: int) -> Batch | None:
        """A batch of this queue; None if it shows that the queue is not what it was."""
        batch = batches.read(data, at, stores=self._broker.stores)
        header = batch.header
        if (header.topic, header.queue_id) != generation.queue:
            raise BadBatch(f"a batch of {header.topic}/{header.queue_id} came")
        if generation.topic_generation not in (None, header.topic_gen):
            self.gone(generation, f"the topic has generation {header.topic_gen}")
            return None
        if generation.shown is not generation.queue:
            batch.show_topic(generation.shown.topic, self._config.namespace)
        return batch

    def _pass_filtered(self, generation: Generation, to_offset: int, result: PullResult, asked_as: Asked) -> bool:
        """
        Go on at ``to_offset`` if the broker has left out what lies before it, since no tag of ours is there.

        False if the subscription is another than when the pull was asked for: what was left out may be wanted now, so
        the rest of the answer is asked for again.

        Raises:
            BadBatch: the answer contradicts itself.
        """
        cache = generation.cache
        if to_offset <= cache.end_offset or generation.dropped:
            return True
        if cache.subscription.expression != asked_as.expression:
            return False
        if asked_as.expression == ALL:
            return True  # with every message wanted, the cache refuses a batch behind a hole
        if to_offset > min(result.next_offset, result.max_offset):
            raise BadBatch(f"{to_offset} lies behind {result.next_offset}, where the answer ends")
        cache.skip_to(to_offset, passed_under=asked_as.log_epoch)
        generation.arrived()  # the owner passes it when its turn comes
        self._progressed()
        return True

    # A log that does not have what it had

    async def _at_gap(self, generation: Generation, gap: Gap) -> None:
        """
        The log lacks the messages that this reader should get next: stop, or pass them. What came before is delivered.

        Stopped means that nothing is dispatched; the lease is kept, and the queue is asked for again with growing
        pauses, since the answer may change.
        """
        told = {
            "queue": str(generation.queue),
            "reason": gap.reason,
            "from_offset": gap.from_offset,
            "to_offset": gap.end_offset - 1,
            "count": gap.count,
        }
        is_other = gap.status == OtherHistory.code
        if gap.from_offset == generation.found_start and gap.status != Damaged.code and not is_other:
            # Retention came between finding the first message and asking for it: the group has missed nothing.
            log.info("start.moved", queue=told["queue"], queue_offset=gap.end_offset)
            generation.found_start = gap.end_offset
            return self._skip(generation, gap.end_offset)
        if self._config.on_gap == "skip" and not is_other:
            log.warning("queue.gap_skipped", **told, goes_on_at=gap.end_offset)
            return self._skip(generation, gap.end_offset)
        if generation.stopped is None or generation.stopped.gap != gap:
            generation.stopped = Stopped(gap)
        if generation.stopped.found_again(self._broker.now()):
            log.error("queue.stopped", **told, advice=gap.advice())
        await generation.pause_asking(generation.stopped.pause_s)

    def _skip(self, generation: Generation, goes_on_at: int) -> None:
        generation.stopped = None
        generation.cache.skip_to(goes_on_at)
        generation.arrived()
        self._progressed()

    def _cut(self, generation: Generation, goes_on_at: int) -> None:
        """
        The broker lost messages that we have fetched, and may have given their offsets to others: go back.

        If the listener has one of them, what it answers would be taken for an answer about its successor. So the
        queue is lost, as if to another owner: the call is told, ends, and counts for nothing.
        """
        cache, asked = generation.cache, generation.cache.end_offset
        log.warning(
            "log.truncated",
            queue=str(generation.queue),
            from_offset=goes_on_at,
            to_offset=asked - 1,
            count=asked - goes_on_at,
            delivered=max(0, cache.commit_offset - goes_on_at),
        )
        generation.stopped = None
        if not cache.cut(goes_on_at):
            return generation.lose(f"the log lost messages from {goes_on_at} on, and the listener has one of them")
        generation.agreed, generation.reported = NEVER, NO_OFFSET  # the next answer shows whether that was far enough
        generation.arrived()

    def _behind_the_end(self, generation: Generation, end: int) -> None:
        asked = generation.cache.end_offset
        if generation.cache.used:
            # The log was cut behind messages that we hold or have done: none of our offsets means anything now.
            return generation.lose(f"the queue ends at {end}, and {asked} was asked for")
        log.warning("pull.offset_moved", queue=str(generation.queue), asked=asked, goes_on_at=end)
        self._skip(generation, end)
