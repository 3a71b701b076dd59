"""When a delayed batch is due: what its header asks for, judged by the levels and the clock of this broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq.runtime.logging import get_broker_logger
from rmq.wire.batch import layout
from rmq.wire.errors import BadDelay

from .deferred import DelayTable
from .delay_clock import SMALL_STEP_US

log = get_broker_logger(__name__)


class Delays:
    """``levels`` are lengths in microseconds, from level 1 on; ``now_us`` is the clock of delivery."""

    def __init__(
        self, table: DelayTable, levels: Sequence[int], *, max_delay_s: float, now_us: Callable[[], int]
    ) -> None:
        self._table = table
        self._levels = levels
        self._longest = int(max_delay_s * 1_000_000)
        self.now_us = now_us

    def start(self, newest_us: int) -> None:
        """
        Go by the clock as it is now, whatever it showed before the broker stopped; ``newest_us`` is in the log.

        What waits keeps its time, so that it is late by as much as the clock was set back meanwhile: that is logged. A
        clock that is behind by a moment is waited for, as it is while the broker runs.
        """
        now, reached = self.now_us(), self._table.reached.due_at
        behind = max(reached, newest_us if self._table.batches else 0) - now
        if behind > SMALL_STEP_US:
            log.warning("delay.clock_set_back", by_s=round(behind / 1e6, 3), waiting_batches=self._table.batches)
        if reached - now > SMALL_STEP_US:
            self._table.set_back(now)

    def due_at(self, header: layout.Header) -> int:
        """
        When a producer's batch is due; 0: deliver it now.

        Raises:
            BadDelay: there is no such level, or that is too far away.
        """
        if not (header.delay_level or header.deliver_at):
            return 0
        now = self.now_us()
        if header.delay_level:
            if header.delay_level > len(self._levels):
                raise BadDelay(
                    f"there is no delay level {header.delay_level}: this broker has 1 to {len(self._levels)}"
                )
            due_at = now + self._levels[header.delay_level - 1]
        else:
            due_at = header.deliver_at
        if due_at <= now:
            return 0
        if due_at - now > self._longest:
            far, most = (due_at - now) / 1e6, self._longest / 1e6
            raise BadDelay(f"a delay of {far:.0f} s is longer than this broker allows (max_delay_s = {most:.0f})")
        return self._allowed(due_at)

    @property
    def last_level(self) -> int:
        """The last level there is."""
        return len(self._levels)

    def due_of_level(self, level: int) -> int:
        """When something that the broker itself puts off is due: after that level, or the longest there is."""
        return self._allowed(self.now_us() + self._levels[min(max(level, 1), len(self._levels)) - 1])

    def _allowed(self, due_at: int) -> int:
        return min(self._table.earliest(due_at), layout.MAX_TIME - 1)
