"""One ``asyncio.Lock`` per queue, kept across the generations of the queue in this process."""

from __future__ import annotations

import asyncio

from rmq.wire.model import MessageQueue


class QueueGates:
    """
    The gates: one turn at a time for each queue in this process.

    A gate outlives the generation that used it: when a queue leaves and comes back while a listener of before is
    still inside, the new generation waits here until that one has really ended.
    """

    def __init__(self) -> None:
        self._gates: dict[MessageQueue, asyncio.Lock] = {}

    def __getitem__(self, queue: MessageQueue) -> asyncio.Lock:
        gate = self._gates.get(queue)
        if gate is None:
            gate = self._gates[queue] = asyncio.Lock()
        return gate

    def held(self) -> list[MessageQueue]:
        """The queues that have a turn inside."""
        return [queue for queue, gate in self._gates.items() if gate.locked()]
