"""A pull consumer in a simulated process, and the loop around it that its user would write."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from rmq.consumer import PullConsumer
from rmq.wire.model import MessageQueue, StoredMessage

from simulation.mixed_history import OK, Group
from simulation.mixed_listeners import MixedListeners, MixedPlan

POLL_S = 1.0


class PullMember:
    """Polls, takes its time with what it got, and polls again: which says that it is done."""

    def __init__(
        self, address: str, group: Group, topic: str, plan: MixedPlan, listeners: MixedListeners, *,
        connect: Callable[..., Any], now: Callable[[], float], settings: dict[str, Any],
        epoch: Callable[[str, MessageQueue], int],
    ) -> None:  # fmt: skip
        self._group, self._plan, self._listeners, self._epoch = group, plan, listeners, epoch
        self._consumer = PullConsumer(address, group=group.name, connect=connect, now=now, **settings)
        self._consumer.subscribe(topic, group.expression)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the process that calls this."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Finish what is in hand, and leave."""
        self._stopping.set()
        assert self._task is not None
        await self._task

    async def _work(self) -> None:
        async with self._consumer as consumer:
            with contextlib.ExitStack() as call:
                while not self._stopping.is_set():
                    call.close()  # what the last poll gave is done when the next one begins
                    messages = await consumer.poll(POLL_S)
                    if messages:
                        await self._process(messages, call)

    async def _process(self, messages: list[StoredMessage], stack: contextlib.ExitStack) -> None:
        first = messages[0]
        queue, name = MessageQueue(first._origin.topic, first.queue_id), self._plan.process.name
        epoch = self._epoch(name, queue)
        lost = lambda: self._lost(queue, epoch)  # noqa: E731
        noted = self._listeners.call(self._group.name, name, messages, queue=queue, epoch=epoch, lost=lost)
        call = stack.enter_context(noted)
        await self._listeners.take_time(self._plan, self._plan.next.popleft() if self._plan.next else None)
        call.fates = (OK,) * len(messages)

    def _lost(self, queue: MessageQueue, epoch: int) -> bool:
        runtime = self._consumer._runtime
        assignment = None if runtime is None else runtime.assignments.get(queue)
        return assignment is None or assignment.epoch != epoch or bool(assignment.lost)
