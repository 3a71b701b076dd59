"""A listener for tests of turns, and the names they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus, PullConsumer
from rmq.consumer.group.assignment import QueueGates
from rmq.wire.model import MessageQueue, StoredMessage

Make = Callable[..., Consumer]
Messages = list[StoredMessage]
SUCCESS, SUSPEND = ConsumeStatus.SUCCESS, ConsumeStatus.SUSPEND
COMMIT, ROLLBACK = ConsumeStatus.COMMIT, ConsumeStatus.ROLLBACK
QUEUE = MessageQueue("t", 0)


def now() -> float:
    return asyncio.get_running_loop().time()


class Recorder:
    """A listener that notes each call, takes its time, and answers from a script, then SUCCESS."""

    def __init__(self, *script: Any, takes_s: float = 0.0) -> None:
        self.script = list(script)
        self.takes_s = takes_s
        self.calls: list[tuple[float, int, list[int]]] = []  # begin, queue, offsets
        self.attempts: list[int] = []
        self.ended: list[float] = []
        self.running = 0
        self.most = 0

    async def __call__(self, messages: Messages, context: ConsumeContext) -> Any:
        self.calls.append((round(now(), 6), context.queue.queue_id, [m.queue_offset for m in messages]))
        self.attempts.append(messages[0].attempt)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.running -= 1
            self.ended.append(now())
        answer = self.script.pop(0) if self.script else SUCCESS
        if isinstance(answer, BaseException):
            raise answer
        return answer(context) if callable(answer) else answer

    @property
    def offsets(self) -> list[int]:
        return [offset for _, _, offsets in self.calls for offset in offsets]

    @property
    def times(self) -> list[float]:
        return [at for at, _, _ in self.calls]


def occupied(gates: QueueGates) -> list[MessageQueue]:
    """The queues that have a turn inside."""
    return [queue for queue, gate in gates._gates.items() if gate.locked()]


async def run_for(seconds: float, consumer: Consumer | PullConsumer) -> None:
    """Start a consumer, let it work for so long, and stop it."""
    async with consumer:
        await asyncio.sleep(seconds)
