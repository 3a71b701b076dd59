"""
When a queue may be pulled again, and in words why it may not.

A queue is pulled while it has at most 1000 messages and less bytes than its share here, with ``pull_when_drained`` only
while it has nothing, and never while it is paused. Where messages are finished in any order, the first and the last
that are not must be at most 2000 offsets apart. These apply before a pull is asked for; what an answer brings is let
in. The limits of a queue are those of the consumer, and those of its topic divided over the queues of that topic that
are here, at least 1: 1024 messages of a topic are 512 a queue with two of them, and 341 with three.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import NamedTuple

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.errors import ConfigError
from rmq.wire.model import MessageQueue

from ..config import ConsumerConfig
from ..group.assignment import Assignment
from .process_queue import ProcessQueue

log = get_logger("rmq.consumer")
LOG_AFTER_S = 1.0  # a wait that is shorter is how a consumer with a backlog works
LOG_EVERY_S = 60.0
LOOK_AGAIN_S = 60.0  # the share of a queue grows when others leave, which is not notified
EXPIRY_PART = 4  # a waiting puller shows that it is alive this often in the time after which a queue is given up


def cause_of(
    messages: int, size: int, limits: Thresholds, *, when_drained: bool, span: int = 0, max_span: int = 0
) -> str | None:
    """Which limit keeps a queue that has so much from being pulled, in words; None if it may be."""
    if when_drained and messages:
        return f"pull_when_drained: {messages} messages are not finished"
    if messages > limits.messages:
        return f"{messages} messages are held, more than {limits.messages}"
    if size and size >= limits.size:
        return f"{size} bytes are held, and the share of the queue is {limits.size}"
    if span > max_span:
        return f"messages that are not finished are {span} offsets apart, more than {max_span}"
    return None


def stands_still(assignment: Assignment) -> bool:
    """Whether nothing of a queue is given to the listener, by the user's wish or since that ends processes."""
    return assignment.paused or assignment.crash_loop is not None


class FlowControl:
    """Lets pulls through, one queue at a time: others go on whatever one of them waits for."""

    def __init__(
        self, assignments: Mapping[MessageQueue, Assignment], config: ConsumerConfig, broker: GroupClient
    ) -> None:
        self._assignments = assignments
        self._config = config
        self._broker = broker
        self._logged_at = float("-inf")
        self._look_again_s = min(LOOK_AGAIN_S, config.pull_expiry_s / EXPIRY_PART)

    def limits(self, assignment: Assignment) -> Thresholds:
        """How much the queue may have before it is not pulled any more; one batch is always let in."""
        return of_queue(self._config, assignment.queue.topic, self._assignments)

    async def may_pull(self, assignment: Assignment) -> None:
        """
        Wait until another pull may be asked for, or the assignment is dropped. Cancelling is safe.

        A broker that started again is asked even if the cache is full or paused: progress is reported to it only when
        an answer has shown that it still has what that is about.
        """
        await self.room(assignment, when_drained=self._config.pull_when_drained)
        while self._is_suspended(assignment):
            assignment.pulled_at = self._broker.now()
            await assignment.pause_asking(self._look_again_s)
            await self.room(assignment, when_drained=self._config.pull_when_drained)

    def _is_suspended(self, assignment: Assignment) -> bool:
        """Whether nothing is to be fetched since nothing is delivered."""
        return stands_still(assignment) and not assignment.dropped and assignment.agrees(self._broker.log_epoch)

    async def room(self, assignment: Assignment, *, when_drained: bool = False) -> None:
        """
        Wait until the queue has no more than it may. Cancelling is safe.

        A listener that keeps its progress until it has seen more than a full cache gets more: nothing else could ever
        make room. The memory is its choice then.
        """
        within_s = min(LOG_AFTER_S, self._look_again_s)
        try:
            while not assignment.dropped:
                assignment.pulled_at = self._broker.now()
                cache, limits = assignment.cache, self.limits(assignment)
                cause = cause_of(
                    cache.messages, cache.size, limits, when_drained=when_drained, span=cache.span,
                    max_span=self._config.max_span,
                )  # fmt: skip
                if cause is None or not assignment.agrees(self._broker.log_epoch):
                    return
                if cache.may_starve and not cache.ready and not assignment.guard.busy:
                    return self._warn_uncommitted(assignment, limits)
                assignment.flow_control = cause
                most = Thresholds(0, limits.size) if when_drained else limits
                if not await _has_room(cache, most, within_s):
                    self._warn(assignment, cause)
                    within_s = self._look_again_s
        finally:
            assignment.flow_control = None

    def _warn(self, assignment: Assignment, cause: str) -> None:
        now = self._broker.now()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            queues = sum(each.flow_control is not None for each in self._assignments.values())
            log.warning("pull.flow_control", queue=str(assignment.queue), cause=cause, queues_waiting=queues)

    def _warn_uncommitted(self, assignment: Assignment, limits: Thresholds) -> None:
        now, cache = self._broker.now(), assignment.cache
        if assignment.left:
            return
        if not cache.has_room(*limits) and now - assignment.uncommitted_logged_at > LOG_EVERY_S:
            assignment.uncommitted_logged_at = now
            advice = "memory grows until the listener returns COMMIT"
            log.warning("pull.uncommitted", queue=str(assignment.queue), messages=cache.messages, advice=advice)


async def _has_room(cache: ProcessQueue, most: Thresholds, within_s: float) -> bool:
    """Wait until there is room, or nothing is left to take; False after ``within_s``."""
    room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cache.when_room(most.messages, most.size, lambda: None if room.done() else room.set_result(None))
    try:
        async with asyncio.timeout(within_s):
            await room
    except TimeoutError:
        return False
    return True


class Thresholds(NamedTuple):
    """A queue is pulled while it has at most ``messages``, and less than ``size`` bytes or nothing."""

    messages: int
    size: int


def of_queue(config: ConsumerConfig, topic: str, owned: Collection[MessageQueue]) -> Thresholds:
    """The thresholds of one queue of ``topic``; ``owned`` are all queues of this consumer, that one included."""
    messages, size = config.cache_messages, divided(config.cache_bytes, len(owned))
    if config.topic_cache_messages or config.topic_cache_bytes:
        of_topic = sum(queue.topic == topic for queue in owned)
        if config.topic_cache_messages:
            messages = min(messages, divided(config.topic_cache_messages, of_topic))
        if config.topic_cache_bytes:
            size = min(size, divided(config.topic_cache_bytes, of_topic))
    return Thresholds(messages, size)


def divided(limit: int, queues: int) -> int:
    """The share of one of ``queues`` queues, at least 1."""
    return max(1, limit // max(1, queues))


Target = str | MessageQueue


class Pauses:
    """
    The newest word counts: one about everything replaces all before, one about a topic those about its queues.

    So a queue that was resumed after its topic was paused runs, and one that is taken later follows its topic.
    """

    def __init__(self) -> None:
        self._all = False
        self._topics: dict[str, bool] = {}
        self._queues: dict[MessageQueue, bool] = {}

    def covers(self, queue: MessageQueue) -> bool:
        """Whether a queue is paused."""
        return self._queues.get(queue, self._topics.get(queue.topic, self._all))

    def set(self, paused: bool, *targets: Target) -> None:
        """
        Pause or resume topics and queues; with none of them, everything.

        Raises:
            ConfigError: something that is neither; nothing has changed then.
        """
        for target in targets:
            if not isinstance(target, str | MessageQueue):
                raise ConfigError(f"a topic or a MessageQueue can be paused and resumed, not {target!r}")
        if not targets:
            self._all = paused
            self._topics.clear()
            self._queues.clear()
        for target in targets:
            if isinstance(target, MessageQueue):
                self._queues[target] = paused
            else:
                self._topics[target] = paused
                self._queues = {queue: value for queue, value in self._queues.items() if queue.topic != target}
