"""
Listeners that do what a script says, and note every call for :mod:`simulation.ordered`.

What a call has done is written to a sink that checks the fencing token, when the call commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeAlias

from rmq.consumer import ConsumeStatus
from rmq.consumer.listener import ConsumeContext
from rmq.wire.model import MessageQueue, StoredMessage

from simulation.history import (
    AGAIN,
    CUT,
    DONE,
    KEPT,
    ROLLED_BACK,
    Continued,
    Ended,
    Event,
    Hindered,
    Lost,
    Sink,
    Started,
    Stopped,
    Wrote,
)
from simulation.processes import Process
from simulation.scripts import Block, Fail, Script, Slow

Behaviour: TypeAlias = Slow | Block | Fail
Listener: TypeAlias = Callable[[list[StoredMessage], Any], Coroutine[Any, Any, ConsumeStatus]]
Stay: TypeAlias = tuple[MessageQueue, int]  # a queue under one epoch


class Plan:
    """What the next calls of a member do, in their order; later ones take no longer than the script says."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.next: deque[Behaviour] = deque()
        self.kept: defaultdict[Stay, list[StoredMessage]] = defaultdict(list)  # done, and not committed


class ScriptedListeners:
    """The listeners of all members. ``heal`` ends whatever hinders them."""

    def __init__(self, script: Script, note: Callable[[Event], None]) -> None:
        self._script = script
        self._note = note
        self._loop = asyncio.get_running_loop()
        self._healed = asyncio.Event()
        self._numbers = itertools.count(1)
        self._running: dict[int, tuple[str, ConsumeContext]] = {}
        self._sink = Sink()

    def listener(self, plan: Plan) -> Listener:
        """The listener of a member."""

        async def on_messages(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
            behaviour = plan.next.popleft() if plan.next else None
            with self._call(plan.process.name, messages, context) as end:
                await self._take_time(plan, behaviour)
                if isinstance(behaviour, Fail):
                    return self._fail(plan, behaviour, messages, context, end)
                return self._succeed(plan, messages, context, end)

        return on_messages

    def killed(self, process: str) -> None:
        """A process is no more: its calls have no end."""
        self._running = {call: running for call, running in self._running.items() if running[0] != process}

    def heal(self) -> None:
        """Slow calls end now, and no further one is slow."""
        self._healed.set()

    # A call

    @contextlib.contextmanager
    def _call(self, process: str, messages: list[StoredMessage], context: ConsumeContext) -> Iterator[list[str]]:
        """Note the begin and the end of a call. The body appends how it ended; without that it was cut."""
        number, end, queue = next(self._numbers), [CUT], context.queue
        for call, (_, other) in self._running.items():
            if other.queue == queue and other.lost:
                self._note(Lost(self._loop.time(), call))
        self._note(
            Started(
                self._loop.time(), number, process, queue, context.epoch,
                tuple(message.queue_offset for message in messages), tuple(message.attempt for message in messages),
                tuple(message.body for message in messages), bool(context.lost),
            )
        )  # fmt: skip
        self._running[number] = process, context
        try:
            yield end
        finally:
            if self._running.pop(number, None) is not None:
                self._note(Ended(self._loop.time(), number, end[-1]))

    async def _take_time(self, plan: Plan, behaviour: Behaviour | None) -> None:
        if isinstance(behaviour, Block):
            self._note(Stopped(self._loop.time(), plan.process.name))
            await plan.process.block(behaviour.seconds)
            self._note(Continued(self._loop.time(), plan.process.name))
            return
        seconds = behaviour.seconds if isinstance(behaviour, Slow) else self._script.pace_s
        if seconds and not self._healed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._healed.wait()

    def _succeed(
        self, plan: Plan, messages: list[StoredMessage], context: ConsumeContext, end: list[str]
    ) -> ConsumeStatus:
        kept = plan.kept[context.queue, context.epoch]
        kept += messages
        every = self._script.commit_every
        context.auto_commit = not every
        if len(kept) < every and not self._healed.is_set():
            end.append(KEPT)
            return ConsumeStatus.SUCCESS
        end.append(DONE)
        for offset in [message.queue_offset for message in kept]:
            if self._sink.write(context.queue, context.epoch):
                self._note(Wrote(self._loop.time(), context.queue, context.epoch, offset))
        kept.clear()
        return ConsumeStatus.COMMIT if every else ConsumeStatus.SUCCESS

    def _fail(
        self, plan: Plan, how: Fail, messages: list[StoredMessage], context: ConsumeContext, end: list[str]
    ) -> ConsumeStatus:
        attempt, kept = messages[0].attempt, plan.kept[context.queue, context.epoch]
        rolls_back = bool(self._script.commit_every and attempt % 2)
        if rolls_back and kept:
            attempt = kept[0].attempt  # the pause is that of the first message that is given again
        pause_s = how.pause_s if how.pause_s is not None else min(2.0 ** (attempt - 1), 30.0)
        now = self._loop.time()
        self._note(Hindered(now, now + pause_s))
        context.suspend_s = how.pause_s
        if rolls_back:
            kept.clear()
            context.auto_commit = False
            end.append(ROLLED_BACK)
            return ConsumeStatus.ROLLBACK
        end.append(AGAIN)
        if how.pause_s is None:
            raise RuntimeError("the script says so")
        return ConsumeStatus.SUSPEND
