"""Parts with one protection taken away, for builds that the checkers of all modes have to catch."""

from __future__ import annotations

import asyncio

from rmq.broker.app import Broker
from rmq.broker.state.leases import LeaseTable
from rmq.consumer.group.assignment import Assignment
from rmq.consumer.group.handover import Workers
from rmq.consumer.member import ConsumerRuntime
from rmq.wire.model import MessageQueue

from simulation.world import Build


class NoFencing(LeaseTable):
    """Believes every session that says that a queue is its own."""

    def check(self, group: str, queue: MessageQueue, session: bytes, epoch: int | None, *, now: float) -> None:
        """Let every session pass."""

    def renew(self, group: str, queue: MessageQueue, session: bytes, epoch: int, *, now: float) -> bool:
        """Say yes."""
        super().renew(group, queue, session, epoch, now=now)
        return True


class UnfencedBroker(Broker):
    """A broker whose epochs fence no session off."""

    def _build_services(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._build_services(loop)
        self._locks = NoFencing(self.config.lock_lease_s)


class Rushing:
    """Hands queues over without waiting for the running call: what the consume guard is for."""

    def __init__(self, inner: Workers) -> None:
        self._inner = inner

    def start_assignment(self, assignment: Assignment) -> None:
        """As ever."""
        self._inner.start_assignment(assignment)

    async def finish_assignment(self, assignment: Assignment) -> None:
        """Not waited for."""


def without_guard(runtime: ConsumerRuntime) -> None:
    """Take the consume guard away."""
    runtime.rebalancer._handovers._workers = Rushing(runtime)


UNFENCED = Build(broker=UnfencedBroker)
UNGUARDED = Build(change=without_guard)
