"""``OffsetReporter``: progress that no pull took along reaches the broker within ``commit_every_s``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.errors import OK, Fenced, RmqError, code_name
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET, CommitEntry, LeaseEnd

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
