"""The parts of a started pull consumer: those of any consumer, with polls in the place of a listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dispatch.service import ConsumeService
from ..fetch.process_queue import MakeCache
from ..group.assignment import Assignment
from ..listener import AsyncListener
from ..running import ConsumerRuntime
from .commits import PullCommits
from .polls import PullService, RebalanceHook
from .queue import PullCache
from .seeks import Seeks
from .watchdog import PollWatchdog


class PullRuntime(ConsumerRuntime):
    """Shares rebalancing, leases, pulls, flow control and hand-overs with the consumer that has a listener."""

    def __init__(
        self,
        *arguments: Any,
        on_assigned: RebalanceHook | None = None,
        on_revoked: RebalanceHook | None = None,
        on_started: Callable[[], None],
        **named: Any,
    ) -> None:
        """``on_started`` is told of each queue that came; the others are those of ``ConsumerRuntime``."""
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_started = on_started
        super().__init__(*arguments, **named)
        self.seeks = Seeks(
            self._config,
            self._broker,
            tasks=self.tasks,
            service=self.polls,
            commits=self.commits,
            pull=self.puller.start,
        )

    def _make_cache(self) -> MakeCache:
        return PullCache

    def _make_service(self, listener: AsyncListener | None) -> ConsumeService:
        self.commits = PullCommits(
            self.assignments,
            self._config,
            self._broker,
            believed=self.keeper.believed,
            progressed=self.reporter.turned,
        )
        self.watchdog = PollWatchdog(self._config.consume_timeout_s, now=self._broker.now, rest=self._rest)
        self.polls = PullService(
            self._config,
            self._broker,
            tasks=self.tasks,
            leases=self.keeper,
            losses=self.commits,
            watchdog=self.watchdog,
            statistics=self.statistics,
            stalled=self.stalls.stalled,
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
        )
        return self.polls

    def _polled_ago_s(self) -> float | None:
        return self.watchdog.away_s

    def _rest(self, resting: bool) -> None:
        self.rebalancer.rest(resting)

    def start(self) -> None:
        """Start every loop."""
        super().start()
        if self._config.auto_commit_every_s:
            self.tasks.start(self.commits.run(), "auto-commit")
        self.tasks.start(self.watchdog.watch(), "poll watchdog")

    def _waits_for_user(self) -> bool:
        return super()._waits_for_user() or (self._on_revoked is not None and bool(self.assignments))

    async def _leave(self) -> list[Assignment]:
        taken = await super()._leave()
        self.commits.left(taken)
        return taken

    def start_assignment(self, assignment: Assignment) -> None:
        """Pull a queue, unless the user has paused it."""
        super().start_assignment(assignment)
        self._on_started()
