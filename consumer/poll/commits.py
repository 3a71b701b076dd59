"""
When the progress of polled queues is committed, and what can no longer be committed.

With ``auto_commit_every_s`` all that is done is committed at that rate; :meth:`PullCommits.commit` does so at once and
returns when the broker has it on disk. Queues that went away with uncommitted progress are reported by the next commit,
once; the others are committed all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.errors import OK, ConnectionLost, Fenced, RequestTimeout, RmqError, code_name, from_wire
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET, CommitEntry

from ..config import ConsumerConfig
from ..group.assignment import Assignment
from .queue import cache_of

log = get_logger("rmq.consumer")

LOOK_AGAIN_S = 0.05  # a commit that waits for a proof, or for a hand-over that takes the progress along


class PullCommits:
    """The commits of one consumer."""

    def __init__(
        self,
        assignments: Mapping[MessageQueue, Assignment],
        config: ConsumerConfig,
        broker: GroupClient,
        *,
        believed: Callable[[Assignment], bool],
        progressed: Callable[[], None],
    ) -> None:
        self._assignments = assignments
        self._config = config
        self._broker = broker
        self._believed = believed
        self._progressed = progressed
        self._lost: list[MessageQueue] = []  # with progress that was not committed, and not reported yet

    async def run(self) -> None:
        """Mark and report every ``auto_commit_every_s``, until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._config.auto_commit_every_s, loop.time())
            await asyncio.sleep(due - loop.time())
            self._mark_all()
            try:
                await self.commit_these(list(self._assignments.values()))
            except RequestTimeout as error:
                log.debug("commit.failed", error=str(error))  # the next one sends it along
            except RmqError as error:
                log.error("commit.refused", error=str(error))

    def note(self, assignment: Assignment) -> None:
        """A queue went away with progress that cannot be committed any more."""
        cache = cache_of(assignment)
        if not cache.loss_noted and not assignment.topic_gone:  # messages of a deleted topic are not delivered again
            cache.loss_noted = True
            self._lost.append(assignment.shown)

    async def commit(self) -> None:
        """
        Have all that is done committed; returns when it is durable. Cancelling is safe.

        Raises:
            Fenced: queues were lost before that; all others are committed.
            RequestTimeout: the broker did not answer for ``request_timeout_s``; what is done stays so.
            Refused: the broker does not want it.
        """
        self._mark_all()
        for assignment in self._assignments.values():
            if assignment.lease.lost and cache_of(assignment).uncommitted:
                self.note(assignment)
        await self.commit_these(list(self._assignments.values()))
        self.report_losses()

    def left(self, taken: Collection[Assignment]) -> None:
        """Note the queues that were given up and whose progress the broker has not ``taken``, as far as is known."""
        for assignment in self._assignments.values():
            if assignment not in taken and cache_of(assignment).uncommitted:
                self.note(assignment)

    def report_losses(self) -> None:
        """
        Report the queues that went away with progress that was not committed, once.

        Raises:
            Fenced: there were any.
        """
        if self._lost:
            lost, self._lost = self._lost, []
            names = ", ".join(map(str, lost))
            raise Fenced(f"{names} went to another owner before all of it was committed: the rest is delivered again")

    def _mark_all(self) -> None:
        for assignment in self._assignments.values():
            if not assignment.lease.lost and not assignment.ended.is_set():
                cache_of(assignment).mark_done()

    async def commit_these(self, assignments: Iterable[Assignment]) -> None:
        """Have what is marked of these made durable; see :meth:`commit`."""
        open_ones = [assignment for assignment in assignments if not self._is_settled(assignment)]
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                while open_ones:
                    await self._broker.link.wait_connected()
                    try:
                        sent = await self._send(open_ones)
                    except (ConnectionLost, RequestTimeout) as error:
                        log.debug("commit.failed", error=str(error))
                        continue
                    open_ones = [assignment for assignment in open_ones if not self._is_settled(assignment)]
                    if open_ones and not sent:
                        await asyncio.sleep(LOOK_AGAIN_S)
        except TimeoutError as error:
            names = ", ".join(str(assignment.shown) for assignment in open_ones)
            text = f"the progress of {names} was not committed within {self._config.request_timeout_s:g} s"
            raise RequestTimeout(text) from error

    def _is_settled(self, assignment: Assignment) -> bool:
        """Whether nothing is left to be sent; one that is being given back has its progress taken along."""
        if assignment.lease.lost or self._assignments.get(assignment.queue) is not assignment:
            return True
        cache = cache_of(assignment)
        return cache.commit_offset <= cache.durable

    async def _send(self, assignments: Iterable[Assignment]) -> bool:
        """Send the progress of those whose lease and log are proven; says whether there were any."""
        log_epoch = self._broker.log_epoch
        ready = [
            assignment
            for assignment in assignments
            if not assignment.ended.is_set() and self._believed(assignment) and assignment.agrees(log_epoch)
        ]
        if not ready:
            return False
        entries = []
        for assignment in ready:
            assignment.reported = assignment.cache.commit_offset
            entries.append(CommitEntry(*assignment.queue, assignment.epoch, assignment.cache.commit_offset))
        try:
            outcomes = await self._broker.commit(entries)
        except BaseException:
            for assignment in ready:
                assignment.reported = NO_OFFSET  # whether it arrived is not known
            self._progressed()
            raise
        refused: RmqError | None = None
        for assignment, entry, outcome in zip(ready, entries, outcomes, strict=True):
            if outcome.status == OK:
                cache_of(assignment).durable = max(cache_of(assignment).durable, entry.queue_offset)
            elif outcome.status == Fenced.code:
                self.note(assignment)
                assignment.lose(outcome.text or "the commit was fenced")
            else:
                text = outcome.text or code_name(outcome.status)
                refused = from_wire(outcome.status, f"{assignment.shown}: {text}")
        if refused is not None:
            raise refused
        return True
