"""
Moves what is returned next of a queue to another offset.

Everything cached or in hand is let go in one stretch with the new beginning, and the pull under way is ended, so that
its answer cannot be taken for one after the seek. Progress is not taken back: messages below what was committed are
delivered again, and the progress stays where it is until they are passed. A seek forwards passes what lies between,
with the next commit.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.runtime.tasks import TaskSet
from rmq.wire.errors import OK, ConfigError, OffsetOutOfRange, code_name, from_wire
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET, Range

from ..config import FIRST, LAST, ConsumerConfig, to_us
from ..group.assignment import Assignment, Task
from .polls import PullService
from .queue import NotAssigned, cache_of

log = get_logger("rmq.consumer")


class Seeks:
    """Seeks in queues that are owned; ``pull`` starts to fill the cache of one."""

    def __init__(
        self,
        config: ConsumerConfig,
        broker: GroupClient,
        *,
        tasks: TaskSet,
        service: PullService,
        pull: Callable[[Assignment], None],
    ) -> None:
        self._config = config
        self._broker = broker
        self._tasks = tasks
        self._service = service
        self._pull = pull

    async def seek(self, assignment: Assignment, to: int | str) -> int:
        """
        Go on at an offset, the ``first`` message, or after the ``last``; returns the offset. Cancelling is safe.

        Raises:
            OffsetOutOfRange: the queue does not hold it.
            NotAssigned: the queue was taken away meanwhile.
            RmqError: the broker could not be asked.
        """
        kept = await self._range(assignment.queue)
        offset = {FIRST: kept.min_offset, LAST: kept.max_offset}.get(to, to) if isinstance(to, str) else to
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise ConfigError(f'a queue is sought to an offset, "first" or "last", not {to!r}')
        if not kept.min_offset <= offset <= kept.max_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is out of range: {assignment.shown} holds {kept.min_offset} to {kept.max_offset}"
            )
        await self._go_to(assignment, offset, is_first=to == FIRST)
        return offset

    async def seek_to_time(self, assignment: Assignment, time: datetime) -> int:
        """Go on at the first message that was stored at a time or later, after the last if none was."""
        try:
            time_us = to_us(time.astimezone(UTC))
        except (ValueError, OverflowError, OSError) as error:
            raise ConfigError(f"{time} is a time that has no equal in UTC: take a later or an earlier one") from error
        found = await self._broker.offset_at(assignment.queue, time_us)
        if found.status != OK:
            raise from_wire(found.status, found.text or code_name(found.status))
        await self._go_to(assignment, found.offset, is_first=False)
        return found.offset

    async def committed(self, queue: MessageQueue) -> int | None:
        """What the group has committed of a queue, owned or not; None if nothing."""
        kept = await self._range(queue)
        return None if kept.committed == NO_OFFSET else kept.committed

    async def _range(self, queue: MessageQueue) -> Range:
        kept = await self._broker.range(queue)
        if kept.status != OK:
            raise from_wire(kept.status, kept.text or code_name(kept.status))
        return kept

    async def _go_to(self, assignment: Assignment, offset: int, *, is_first: bool) -> None:
        cache = cache_of(assignment)
        if self._config.auto_commit_every_s and offset < cache.finished_offset:
            # The mark must be at the broker before its messages are let go: see PullCache.commit_offset.
            cache.mark_done()
            await self._service.commits.commit_these([assignment])
        if assignment.dropped:
            raise NotAssigned(f"{assignment.shown} was taken away from this consumer: there is nothing to seek in")
        self._tasks.end(assignment.puller)
        self._service.let_go(assignment)
        cache.seek(offset)
        assignment.stopped = None
        assignment.found_start = offset if is_first else NO_OFFSET
        assignment.reported = NO_OFFSET  # what rode on the pull that is ended may not have arrived
        log.info("queue.sought", queue=str(assignment.queue), queue_offset=offset)
        # In the background: a seek that is cancelled here must not leave the queue without a puller.
        self._tasks.start(self._pull_anew(assignment, assignment.puller), f"seek in {assignment.queue}")

    async def _pull_anew(self, assignment: Assignment, ended: Task | None) -> None:
        """Start another puller when the last has ended, unless another seek has done so."""
        await self._tasks.cancel(ended)
        if assignment.puller is ended and not assignment.dropped:
            self._pull(assignment)
