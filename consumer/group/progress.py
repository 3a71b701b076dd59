"""
``OffsetReporter``: progress that no pull took along reaches the broker within ``commit_every_s``.

Whether a broker that started anew has what our progress is about: asked where no pull would show it any more.

While a queue is ours, its pulls find that out (see :meth:`~rmq.consumer.group.assignment.Generation.agrees`). One
that is
given up has none: what was done in it while the broker was away would not be said, and done again by the next owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.errors import OK, Damaged, Fenced, MessagesLost, RmqError, code_name
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, CommitEntry, LeaseEnd, PullQueue

from ..config import ConsumerConfig
from .assignment import Generation

log = get_logger("rmq.consumer")


class OffsetReporter:
    """
    Reports the progress of all queues in one request, only while there is any.

    It sleeps until a turn begins, looks every ``commit_every_s`` while turns run, and once more after the last.
    ``Generation.reported`` is what was sent last, by a pull or from here; a failed request sets it back.
    """

    def __init__(
        self,
        generations: Mapping[MessageQueue, Generation],
        config: ConsumerConfig,
        broker: GroupClient,
        *,
        believed: Callable[[Generation], bool],
    ) -> None:
        self._generations = generations
        self._config = config
        self._broker = broker
        self._believed = believed
        self._turned = asyncio.Event()
        self.busy: Callable[[], bool] = lambda: False  # whether turns are running; set by the composition root

    def turned(self) -> None:
        """A turn began or ended."""
        self._turned.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._turned.wait()
            self._turned.clear()
            await asyncio.sleep(self._config.commit_every_s)
            if not await self.report() or self.busy():
                self._turned.set()  # there is more to come, or the same again

    async def report(self) -> bool:
        """Send what is new; says whether nothing is left to be sent."""
        # One that has ended is given back with its progress: a commit behind that would be fenced.
        live = [g for g in self._generations.values() if not g.lease.lost and not g.ended.is_set()]
        unreported = [g for g in live if g.cache.commit_offset != g.reported]
        log_epoch = self._broker.log_epoch
        news = [(g, g.cache.commit_offset) for g in unreported if self._believed(g) and g.agrees(log_epoch)]
        if not news:
            return not unreported  # what is not believed in at the moment may be so the next time
        entries = []
        for generation, offset in news:
            generation.reported = offset
            entries.append(CommitEntry(*generation.queue, generation.epoch, offset))
        try:
            outcomes = await self._broker.commit(entries)
        except RmqError as error:
            log.debug("commit.failed", error=str(error))
            for generation, _ in news:
                generation.reported = NO_OFFSET
            return False
        for (generation, offset), outcome in zip(news, outcomes, strict=True):
            self._judge(generation, offset, outcome.status, outcome.text)
        return True

    def _judge(self, generation: Generation, offset: int, status: int, text: str | None) -> None:
        if status == Fenced.code:
            generation.lose(text or "the commit was fenced")
        elif status != OK:
            log.error(
                "commit.refused", queue=str(generation.queue), queue_offset=offset, code=code_name(status), text=text
            )


def lease_end(generation: Generation, log_epoch: int) -> LeaseEnd:
    """How a lease is given back: with the last progress made under it, if the log is known to be what it was."""
    progress = generation.cache.commit_offset if generation.agrees(log_epoch) else NO_OFFSET
    return LeaseEnd(*generation.queue, generation.epoch, progress)


AGREEING: Final = (
    OK,
    EMPTY,
    Damaged.code,
    MessagesLost.code,
)  # answers of a broker that has compared its log with ours


async def agree(generation: Generation, broker: GroupClient, *, timeout_s: float) -> None:
    """
    Ask for what follows our progress, only for the answer; nothing is asked of a broker that is known to agree.

    Raises:
        RmqError: there is no answer.
    """
    log_epoch, cache = broker.log_epoch, generation.cache
    at = cache.commit_offset
    if at < 0 or generation.lease.lost or generation.agrees(log_epoch):
        return
    wanted = PullQueue(*generation.queue, at, generation.epoch, NO_OFFSET, cache.log_epochs.before(at))
    try:
        result = await broker.pull(wanted, wait_s=0.0, max_bytes=1, timeout_s=timeout_s)
    except Fenced as error:
        generation.lose(error.text)
        return
    if result is not None and result.status in AGREEING:
        generation.agreed = log_epoch
