"""``Puller``: one long poll for each queue generation, which keeps its cache filled and carries its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rmq.client.log import get_logger
from rmq.wire import batch as batches
from rmq.wire.errors import (
    OK,
    BadBatch,
    Damaged,
    Fenced,
    LogTruncated,
    MessagesLost,
    OffsetOutOfRange,
    Refused,
    RmqError,
    code_name,
)
from rmq.wire.model import MessageQueue
from rmq.wire.ops import EMPTY, NO_OFFSET, PullQueue, PullResult

from .config import ConsumerConfig
from .gap import Gap, Stopped, gap_of
from .generation import Generation
from .group_client import GroupClient
from .retrying import after_failure, says_gone
from .start_offset import StartOffset, Topics
from .tasks import TaskSet
from .topics import GONE
from .turns import SLICE_S

log = get_logger("rmq.consumer")

UNCOMMITTED_S = 60.0  # a cache full of what is not committed is warned of this often
LOOK_AGAIN_S = 60.0  # the share of a queue grows when others leave, which nobody tells
NEVER = -1  # no log epoch of a broker
AGREEING = (OK, EMPTY, Damaged.code, MessagesLost.code)  # answers of a broker that has compared its log with ours


class Puller:
    """
    Pulls for generations, which exist only under a lease: the lock always comes before the first pull.

    Where the log has lost messages that the group did not get, the queue stops, or goes on behind them (``on_gap``);
    where it has lost messages that the group got, the progress goes back to what both still have.
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
    ) -> None:
        self._generations = generations
        self._config = config
        self._broker = broker
        self._tasks = tasks
        self._believed = believed
        self._progressed = progressed
        self._topics = topics
        self._start = StartOffset(config, broker, topics=topics, progressed=progressed)

    def start(self, generation: Generation) -> None:
        """Begin to fill a generation's cache; ends when it is dropped, at the latest by cancelling its task."""
        generation.puller = self._tasks.start(self._run(generation), f"puller of {generation.queue}")

    async def _run(self, generation: Generation) -> None:
        if generation.cache.end_offset < 0:
            await self._start.find(generation)
        while not generation.dropped:
            await self._room(generation)
            result = await self._pull(generation)
            if result is not None and not generation.dropped:
                await self._take_in(generation, result)

    # One pull

    async def _pull(self, generation: Generation) -> PullResult | None:
        config, cache, share = self._config, generation.cache, self._share()
        # Above its share a queue is pulled only if the listener needs more before it commits: then as ever.
        room = max(1, share - cache.size) if cache.size < share or not cache.size else config.pull_bytes
        progress, log_epoch = cache.commit_offset, self._broker.log_epoch
        agrees = generation.agrees(log_epoch)
        if not agrees and not cache.has_room(config.cache_messages, share):
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
                self._gone(generation, str(error))
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

    def _gone(self, generation: Generation, text: str) -> None:
        """There is no such queue any more: whoever knows the topics finds out what there is."""
        self._topics.topic_missing(generation.queue.topic, generation.topic_generation)
        generation.lose(text)

    async def _wait(self, generation: Generation, error: RmqError) -> None:
        await after_failure(generation, error, self._broker, pause_s=self._config.lock_retry_s)

    # Flow control

    def _share(self) -> int:
        """The bytes a queue may hold; one batch is always let in."""
        return self._config.cache_bytes // max(1, len(self._generations))

    async def _room(self, generation: Generation) -> None:
        """
        Wait until another pull may be asked for.

        A listener that keeps its progress until it has seen more than a full cache gets more: nothing else could ever
        make room. The memory is its choice then.
        """
        cache, most = generation.cache, self._config.cache_messages
        while not cache.has_room(most, self._share()) and generation.agrees(self._broker.log_epoch):
            if not cache.ready and not generation.guard.held:
                return self._warn_uncommitted(generation)
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            cache.when_room(most, self._share(), lambda room=room: _done(room))  # type: ignore[misc]
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await room
            except TimeoutError:
                pass

    def _warn_uncommitted(self, generation: Generation) -> None:
        now, cache = self._broker.now(), generation.cache
        if now - generation.uncommitted_told_at > UNCOMMITTED_S:
            generation.uncommitted_told_at = now
            advice = "memory grows until the listener returns COMMIT"
            log.warning("pull.uncommitted", queue=str(generation.queue), messages=cache.messages, advice=advice)

    # What came

    async def _take_in(self, generation: Generation, result: PullResult) -> None:
        asked, status = generation.cache.end_offset, result.status
        text = result.text or code_name(status)
        if status in (OK, EMPTY) and generation.stopped is not None:
            log.info("queue.resumed", queue=str(generation.queue), queue_offset=asked)
            generation.stopped = None
        if status == OK:
            await self._put(generation, result)
        elif status == Fenced.code:
            generation.lose(text)
        elif status in GONE:
            self._gone(generation, text)
        elif (gap := gap_of(asked, result)) is not None:
            await self._at_gap(generation, gap)
        elif status == LogTruncated.code and result.next_offset < asked:
            self._cut(generation, result.next_offset)
        elif status == OffsetOutOfRange.code and asked > result.max_offset:
            self._behind_the_end(generation, result.max_offset)
        elif status != EMPTY:
            await self._wait(generation, Refused(text, code=status))

    # A log that does not have what it had

    async def _at_gap(self, generation: Generation, gap: Gap) -> None:
        """
        The log lost messages that the group did not get: stop, or pass them. What came before them is delivered.

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
        if gap.from_offset == generation.found_start and gap.status != Damaged.code:
            # Retention came between finding the first message and asking for it: the group has missed nothing.
            log.info("start.moved", queue=told["queue"], queue_offset=gap.end_offset)
            generation.found_start = gap.end_offset
            return self._skip(generation, gap.end_offset)
        if self._config.on_gap == "skip":
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

    async def _put(self, generation: Generation, result: PullResult) -> None:
        """Check and cache what came, giving the loop back every 2 ms; compressed batches only as there is room."""
        cache, clock = generation.cache, self._broker.now
        before, at, began = cache.end_offset, 0, clock()
        try:
            while at < len(result.batches) and not generation.dropped:
                batch = batches.read(result.batches, at, store_id=self._broker.store_id)
                at += batch.header.size
                if (batch.header.topic, batch.header.queue_id) != generation.queue:
                    raise BadBatch(f"a batch of {batch.header.topic}/{batch.header.queue_id} came")
                if generation.topic_generation not in (None, batch.header.topic_gen):
                    return self._gone(generation, f"the topic has generation {batch.header.topic_gen}")
                if generation.shown is not generation.queue:
                    batch.show_topic(generation.shown.topic)
                if cache.put(batch):
                    generation.arrived()
                if batch.header.codec:
                    # We asked for bytes as they are stored: what they unpack to may be a thousand times as much.
                    await self._room(generation)
                if clock() - began > SLICE_S:
                    await asyncio.sleep(0)
                    began = clock()
        except Refused as error:
            log.error("pull.bad_batch", queue=str(generation.queue), error=str(error))
        if cache.end_offset == before:
            # Nothing that can be used: asking again at once would be asked for ever.
            await generation.pause(self._config.lock_retry_s)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
