"""``Puller``: one long poll for each queue generation, which keeps its cache filled and carries its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.runtime.tasks import TaskSet
from rmq.wire.errors import Fenced, RmqError
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET, PullQueue, PullResult

from ..config import ConsumerConfig
from ..group.agreement import AGREEING
from ..group.assignment import Generation
from ..statistics import Statistics
from .flow_control import FlowControl, stands_still
from .intake import Asked, Intake
from .retrying import after_failure, says_gone
from .start_offset import StartOffset, Topics

log = get_logger("rmq.consumer")

FEW = 16  # messages for which a listener was idle: it would be late for them, while many more are not held up


class Puller:
    """
    Pulls for generations, which exist only under a lease: the lock always comes before the first pull.

    What came back is for :class:`~rmq.consumer.fetch.intake.Intake`, when to ask for
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
