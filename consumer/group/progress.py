"""
Reports progress to the broker: ``OffsetReporter`` sends what no pull took along within ``commit_every_s``.

A broker that restarted may lack the messages that our progress is about. While a queue is ours its pulls find that out
(see :meth:`~rmq.consumer.group.assignment.Assignment.agrees`). A queue that is given up has none, so ``agree`` asks:
else what was done while the broker was away would not be reported, and done again by the next owner.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.errors import OK, Damaged, Fenced, MessagesLost, RmqError, code_name
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, CommitEntry, LeaseEnd, PullQueue

from ..config import ConsumerConfig
from .assignment import Assignment

log = get_logger("rmq.consumer")


class ProgressLoop(ABC):
    """
    Reports progress only while there is any.

    It sleeps until a turn begins, reports every ``every_s`` while turns run, and once more after the last.
    """

    def __init__(self, every_s: float, busy: Callable[[], bool]) -> None:
        """``busy`` says whether turns are running."""
        self._every_s = every_s
        self._busy = busy
        self._turned = asyncio.Event()

    def turned(self) -> None:
        """A turn began or ended, or progress was made without one."""
        self._turned.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._turned.wait()
            self._turned.clear()
            await asyncio.sleep(self._every_s)
            if not await self.report() or self._busy():
                self._turned.set()  # there is more to come, or the same again

    @abstractmethod
    async def report(self) -> bool:
        """Report what is new; says whether nothing is left to be reported."""


class OffsetReporter(ProgressLoop):
    """
    Reports the progress of all queues to the broker, in one request.

    ``Assignment.reported`` is what was sent last, by a pull or from here; a failed request sets it back.
    """

    def __init__(
        self,
        assignments: Mapping[MessageQueue, Assignment],
        config: ConsumerConfig,
        broker: GroupClient,
        *,
        believed: Callable[[Assignment], bool],
        busy: Callable[[], bool],
    ) -> None:
        super().__init__(config.commit_every_s, busy)
        self._assignments = assignments
        self._broker = broker
        self._believed = believed

    async def report(self) -> bool:
        """Send what is new; says whether nothing is left to be sent."""
        # One that has ended is given back with its progress: a commit after that would be fenced.
        live = [each for each in self._assignments.values() if not each.lease.lost and not each.ended.is_set()]
        unreported = [each for each in live if each.cache.commit_offset != each.reported]
        log_epoch = self._broker.log_epoch
        news = [
            (each, each.cache.commit_offset) for each in unreported if self._believed(each) and each.agrees(log_epoch)
        ]
        if not news:
            return not unreported  # what is not believed in at the moment may be so the next time
        entries = []
        for assignment, offset in news:
            assignment.reported = offset
            entries.append(CommitEntry(*assignment.queue, assignment.epoch, offset))
        try:
            outcomes = await self._broker.commit(entries)
        except RmqError as error:
            log.debug("commit.failed", error=str(error))
            for assignment, _ in news:
                assignment.reported = NO_OFFSET
            return False
        for (assignment, offset), outcome in zip(news, outcomes, strict=True):
            self._judge(assignment, offset, outcome.status, outcome.text)
        return True

    def _judge(self, assignment: Assignment, offset: int, status: int, text: str | None) -> None:
        if status == Fenced.code:
            assignment.lose(text or "the commit was fenced")
        elif status != OK:
            log.error(
                "commit.refused", queue=str(assignment.queue), queue_offset=offset, code=code_name(status), text=text
            )


def lease_end(assignment: Assignment, log_epoch: int) -> LeaseEnd:
    """How a lease is given back: with the last progress made under it, if the log is known to be what it was."""
    progress = assignment.cache.commit_offset if assignment.agrees(log_epoch) else NO_OFFSET
    return LeaseEnd(*assignment.queue, assignment.epoch, progress)


AGREEING: Final = (
    OK,
    EMPTY,
    Damaged.code,
    MessagesLost.code,
)  # answers of a broker that has compared its log with ours


async def agree(assignment: Assignment, broker: GroupClient, *, timeout_s: float) -> None:
    """
    Ask for what follows our progress, only for the answer; nothing is asked of a broker that is known to agree.

    Raises:
        RmqError: no answer came.
    """
    log_epoch, cache = broker.log_epoch, assignment.cache
    at = cache.commit_offset
    if at < 0 or assignment.lease.lost or assignment.agrees(log_epoch):
        return
    wanted = PullQueue(*assignment.queue, at, assignment.epoch, NO_OFFSET, cache.log_epochs.before(at))
    try:
        result = await broker.pull(wanted, wait_s=0.0, max_bytes=1, timeout_s=timeout_s)
    except Fenced as error:
        assignment.lose(error.text)
        return
    if result is not None and result.status in AGREEING:
        assignment.agreed = log_epoch
