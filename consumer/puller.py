"""``Puller``: one long poll for each queue generation, which keeps its cache filled and carries its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rmq.client.log import get_logger
from rmq.wire.errors import (
    OK,
    Damaged,
    Fenced,
    MessagesLost,
    RmqError,
)
from rmq.wire.model import MessageQueue
from rmq.wire.ops import EMPTY, NO_OFFSET, PullQueue, PullResult

from .config import ConsumerConfig
from .generation import Generation
from .group_client import GroupClient
from .intake import Asked, Intake
from .retrying import after_failure, says_gone
from .start_offset import StartOffset, Topics
from .tasks import TaskSet

log = get_logger("rmq.consumer")

UNCOMMITTED_S = 60.0  # a cache full of what is not committed is warned of this often
LOOK_AGAIN_S = 60.0  # the share of a queue grows when others leave, which nobody tells
AGREEING = (OK, EMPTY, Damaged.code, MessagesLost.code)  # answers of a broker that has compared its log with ours


class Puller:
    """
    Pulls for generations, which exist only under a lease: the lock always comes before the first pull.

    What came back is for :class:`~rmq.consumer.intake.Intake`; where a group without progress begins, for
    :class:`~rmq.consumer.start_offset.StartOffset`.
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
        self._intake = Intake(config, broker, topics=topics, progressed=progressed, room=self._room)
        self._start = StartOffset(config, broker, topics=topics, progressed=progressed)

    def start(self, generation: Generation) -> None:
        """Begin to fill a generation's cache; ends when it is dropped, at the latest by cancelling its task."""
        generation.puller = self._tasks.start(self._run(generation), f"puller of {generation.queue}")

    async def _run(self, generation: Generation) -> None:
        if generation.cache.end_offset < 0:
            await self._start.find(generation)
        while not generation.dropped:
            await self._room(generation)
            asked_as = Asked(self._broker.log_epoch, generation.cache.subscription.expression)
            result = await self._pull(generation)
            if result is not None and not generation.dropped:
                await self._intake.take_in(generation, result, asked_as)

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


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
