"""
The requests of a member that gets every message of its topics, whatever the others of its group get.

``Broadcaster`` takes the place of :class:`~rmq.engine.native.group.GroupClient`: what others ask the broker for is
decided here. Every queue is granted at once, and begins where the member's own file says; nothing is locked, renewed,
committed or given back, and pulls name no group. The broker learns only that the member is there, so that operators
see it and it hears of topics; and it is asked where queues begin that the member has not seen before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from rmq.engine.native.connection import Connection
from rmq.engine.native.group import BROADCASTING, GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.batch.tags import ALL
from rmq.wire.errors import OK, BadRequest, ConnectionLost, StoreFailed, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol import hello
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import NO_OFFSET, Op
from rmq.wire.protocol.ops.messages import OffsetAt, OffsetsAt

from ..config import FIRST, LAST, ConsumerConfig, parse_start, to_us
from ..group.assignment import Assignment
from ..group.topics import KnownTopics
from .offsets_file import QueueProgress
from .progress import LocalOffsets

log = get_logger("rmq.consumer")

NO_EPOCH = 0  # the fencing token of a queue without a lease


class _Start(NamedTuple):
    """Where a queue begins, or why that is not known."""

    status: int
    offset: int
    text: str | None = None


_NOT_KEPT = _Start(StoreFailed.code, 0, "where it begins cannot be kept, since nothing can be written")


class Broadcaster(GroupClient):
    """
    One broadcasting member. Methods raise what those of ``GroupClient`` do; cancelling is safe.

    A queue without progress begins at 0 if it came into being after its topic was first subscribed to, in this run or
    one before; any other where ``start_from`` says *at that moment*. That is decided once, and on the disk before the
    first message is asked for.
    """

    def __init__(
        self,
        link: Connection,
        group: str,
        config: ConsumerConfig,
        offsets: LocalOffsets,
        *,
        topics: Callable[[], KnownTopics],
        now: Callable[[], float],
    ) -> None:
        super().__init__(
            link, group, now=now, timeout_s=config.request_timeout_s, ordered=config.orderly, model=BROADCASTING
        )
        self._config = config
        self._offsets = offsets
        self._topics = topics
        self._expressions: dict[str, str] = {}  # that the broker has accepted
        self._parked: dict[asyncio.Timeout, str] = {}  # the pulls under way, with their topics
        self._found_first: set[MessageQueue] = set()  # whose first message was looked for, and not asked for yet

    # The group

    async def join(
        self,
        subscriptions: dict[str, str],
        *,
        strategy: str = "average",
        from_end: Sequence[str] = (),
        log_epoch: int = 0,
    ) -> ops.JoinReply:
        """Become or stay a member. Where it begins is its own business, so the broker does not learn that."""
        progress = self._offsets.progress
        store_id = progress.store_id
        reply = await super().join(subscriptions, strategy=strategy)
        missing = subscriptions.keys() - {info.topic for info in reply.topics}
        if new := [topic for topic in missing if not progress.is_known(topic)]:
            self._refuse_if_moved(store_id)
            progress.known(new)  # all queues that they will ever have come into being later
            if not await self._offsets.write():
                self._offsets.turned()
            self._refuse_if_moved(store_id)
        before, self._expressions = self._expressions, dict(subscriptions)
        for pull, topic in list(self._parked.items()):
            if topic in before and before[topic] != subscriptions.get(topic):
                del self._parked[pull]  # it can be woken once
                pull.reschedule(asyncio.get_running_loop().time())  # it waits for tags that are not wanted any more
        return reply

    async def leave(self, leases: list[ops.LeaseEnd]) -> list[ops.Outcome]:
        """Leave; there is nothing to give back."""
        return await super().leave([])

    # Queues

    async def acquire(self, queues: Sequence[MessageQueue]) -> list[ops.Grant]:
        """Take queues; each is granted unless it does not exist."""
        progress, topics = self._offsets.progress, self._topics()
        store_id, log_epoch = progress.store_id, self.log_epoch
        topic_generations = {queue.topic: topics.generation(queue.topic) for queue in queues}
        self._forget_others(topic_generations)
        starts: dict[MessageQueue, _Start] = {}
        for queue in queues:
            at = progress.of(queue, topic_generations[queue.topic])
            if topic_generations[queue.topic] is None:  # it was deleted since it was wanted
                starts[queue] = _Start(TopicNotFound.code, 0, f"there is no topic {queue.topic!r}")
            elif at is not None:
                starts[queue] = _Start(OK, at.offset)
            elif topics.is_new(queue) or progress.is_known(queue.topic):
                starts[queue] = _Start(OK, 0)
        starts |= await self._find([queue for queue in queues if queue not in starts])
        self._refuse_if_moved(store_id)
        for queue, start in starts.items():
            self._decided(queue, topic_generations[queue.topic], start, log_epoch)
        progress.known(
            topic
            for topic, topic_generation in topic_generations.items()
            if topic_generation is not None
            and all(progress.of(queue, topic_generation) for queue in topics.queues(topic))
        )
        await self._offsets.write()
        self._refuse_if_moved(store_id)
        found = [
            _NOT_KEPT
            if starts[queue].status == OK and not self._offsets.is_written(queue, topic_generations[queue.topic])
            else starts[queue]
            for queue in queues
        ]
        return [ops.Grant(start.status, NO_EPOCH, start.offset, text=start.text) for start in found]

    def _decided(self, queue: MessageQueue, topic_generation: int | None, start: _Start, log_epoch: int) -> None:
        progress = self._offsets.progress
        if start.status == OK and topic_generation is not None and progress.of(queue, topic_generation) is None:
            # The messages before it were stored under this log epoch or an earlier one.
            progress.note(queue, QueueProgress(topic_generation, start.offset, log_epoch if start.offset else 0))
            log.info("start.found", queue=str(queue), queue_offset=start.offset)

    def _refuse_if_moved(self, store_id: int) -> None:
        """What was found out while the broker had another store is about other messages."""
        if self._offsets.progress.store_id != store_id:
            raise ConnectionLost("the broker has another store than when it was asked where queues begin")

    def _forget_others(self, topic_generations: dict[str, int | None]) -> None:
        living = {
            topic: topic_generation
            for topic, topic_generation in topic_generations.items()
            if topic_generation is not None
        }
        for topic in self._offsets.progress.forget_others(living):
            log.warning("offsets.other_topic", topic=topic, advice="it was deleted and made again: it is read from 0")

    async def _find(self, queues: list[MessageQueue]) -> dict[MessageQueue, _Start]:
        """Where queues begin that were there before us; asked for in one request, so that it is one moment."""
        if not queues:
            return {}
        refs = [ops.QueueRef(*queue) for queue in queues]
        start = parse_start(self._config.start_from)
        if isinstance(start, datetime):
            at = await self._list(Op.OFFSETS_AT, OffsetsAt(to_us(start), refs), OffsetAt, len(refs))
            found = [_Start(answer.status, answer.offset, answer.text) for answer in at]
        else:
            ranges = await self._list(Op.RANGES, ops.Ranges(None, refs), ops.Range, len(refs))
            found = [_Start(r.status, r.max_offset if start == LAST else r.min_offset, r.text) for r in ranges]
        for queue, begins in zip(queues, found, strict=True):
            if begins.status == OK and begins.offset < 0:
                raise BadRequest(f"the broker says that {queue} begins at {begins.offset}")
        if start == FIRST:
            self._found_first.update(queues)
        return dict(zip(queues, found, strict=True))

    def begun(self, assignment: Assignment) -> None:
        """A queue was taken: from here on its cache knows what the file knows of the log."""
        queue, offset = assignment.queue, assignment.cache.end_offset
        at = self._offsets.progress.of(queue, assignment.topic_generation)
        if at is not None and at.offset == offset > 0 and at.log_epoch:
            assignment.cache.log_epochs.fetched(offset - 1, at.log_epoch)
        if queue in self._found_first:
            self._found_first.discard(queue)
            assignment.found_start = offset

    async def release(self, leases: list[ops.LeaseEnd]) -> list[ops.Outcome]:
        """Nothing: no other member waits for our queues."""
        return [ops.Outcome() for _ in leases]

    # Messages

    async def pull(
        self, queue: ops.PullQueue, *, wait_s: float, max_bytes: int, timeout_s: float
    ) -> ops.PullResult | None:
        """Ask one queue for batches, outside of any group; None without an answer, or if the tags changed meanwhile."""
        expression = self._expressions.get(queue.topic, ALL)
        try:
            async with asyncio.timeout(None) as parked:
                self._parked[parked] = queue.topic
                return await self._pull(
                    ops.Pull(
                        None,
                        round(wait_s * 1000),
                        max_bytes,
                        [queue._replace(epoch=None, commit_offset=NO_OFFSET)],
                        None if expression == ALL else expression,
                    ),
                    timeout_s,
                )
        except TimeoutError:
            if parked.expired():
                return None
            raise
        finally:
            self._parked.pop(parked, None)

    async def attempt(self, queue: MessageQueue, epoch: int, runs: Sequence[hello.AttemptRun]) -> None:
        """Nothing: what failed here is counted here, as long as the process lives."""

    async def dead_letter(
        self, queue: MessageQueue, epoch: int, queue_offsets: Sequence[int], attempts: Sequence[int], *,
        commit_offset: int, reason: str,
    ) -> None:  # fmt: skip
        """Nothing: a message that failed here too often is passed here, and only here."""
