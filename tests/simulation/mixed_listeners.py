"""
Listeners of every mode that do what a script says, and note every call for :mod:`simulation.concurrent`.

A message says itself how often it fails: ``bad3/...`` fails at its first three deliveries, whoever gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeAlias

from rmq.consumer import ConsumeStatus
from rmq.consumer.listener import ConsumeContext
from rmq.wire.model import MessageQueue, StoredMessage

from simulation.history import Continued, Hindered, Lost, Stopped
from simulation.mixed_history import CONCURRENT, CUT, FAILED, GIVEN_UP, OK, ORDERLY, Called, Group, MixedEvent, Returned
from simulation.mixed_scripts import Reject
from simulation.processes import Process
from simulation.scripts import Block, Slow

Behaviour: TypeAlias = Slow | Block | Reject
Listener: TypeAlias = Callable[[list[StoredMessage], Any], Coroutine[Any, Any, ConsumeStatus | None]]
STATUS = {"retry": ConsumeStatus.RETRY, "suspend": ConsumeStatus.SUSPEND, "ack": ConsumeStatus.SUCCESS, "none": None}


def body_of(bad: int, name: str, size: int) -> bytes:
    """The body of a message that fails so often."""
    return f"bad{bad}/{name}".encode().ljust(size, b".")


def is_bad(message: StoredMessage) -> bool:
    """Whether a delivery of a message fails by itself."""
    bad = message.body.partition(b"/")[0].removeprefix(b"bad")
    return bad.isdigit() and message.attempt <= int(bad)


class MixedPlan:
    """What the next calls of a member do, in their order."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.next: deque[Behaviour] = deque()


class Call:
    """A call under way; whoever makes it says how it ended."""

    def __init__(self, number: int, messages: list[StoredMessage]) -> None:
        self.number = number
        self.messages = messages
        self.fates: tuple[str, ...] = (CUT,) * len(messages)
        self.level = 0


class MixedListeners:
    """The listeners of all members. ``heal`` ends whatever hinders them but what messages say themselves."""

    def __init__(self, pace_s: float, note: Callable[[MixedEvent], None]) -> None:
        self._pace_s = pace_s
        self._note = note
        self._loop = asyncio.get_running_loop()
        self._healed = asyncio.Event()
        self._numbers = itertools.count(1)
        self._running: dict[int, tuple[str, MessageQueue, Callable[[], bool]]] = {}

    def killed(self, process: str) -> None:
        """A process is no more: its calls have no end."""
        self._running = {call: running for call, running in self._running.items() if running[0] != process}

    def heal(self) -> None:
        """Slow calls end now, and no further one is slow."""
        self._healed.set()

    # Listeners

    def listener(self, plan: MixedPlan, group: Group) -> Listener:
        """The listener of a member of a group that is not a pull consumer's."""

        async def on_messages(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus | None:
            behaviour = plan.next.popleft() if plan.next else None
            lost = lambda: bool(context.lost)  # noqa: E731
            name, queue, epoch = plan.process.name, context.queue, context.epoch
            with self.call(group.name, name, messages, queue=queue, epoch=epoch, lost=lost) as call:
                await self.take_time(plan, behaviour)
                if group.kind == CONCURRENT:
                    return self._concurrent(call, context, behaviour)
                return self._whole(call, behaviour, group)

        return on_messages

    def _whole(self, call: Call, behaviour: Behaviour | None, group: Group) -> ConsumeStatus:
        """All messages succeed or fail together."""
        fails = isinstance(behaviour, Reject) or (group.kind != ORDERLY and any(map(is_bad, call.messages)))
        call.fates = (FAILED if fails else OK,) * len(call.messages)
        if fails:
            now, first_s = self._loop.time(), group.setting("suspend_s", 1.0)
            pause_s = min(first_s * 2.0 ** (call.messages[0].attempt - 1), 30.0)
            self._note(Hindered(now, now + pause_s))
        if isinstance(behaviour, Reject) and behaviour.how == "raise":
            raise RuntimeError("the script says so")
        return ConsumeStatus.SUSPEND if fails else ConsumeStatus.SUCCESS

    def _concurrent(self, call: Call, context: Any, behaviour: Behaviour | None) -> ConsumeStatus | None:
        count = len(call.messages)
        good = next((index for index, message in enumerate(call.messages) if is_bad(message)), count)
        how = "ack"
        if isinstance(behaviour, Reject):
            call.level = context.delay_level = behaviour.level
            how, good = behaviour.how, min(good, 1) if behaviour.how == "ack" else 0
        elif good == count:
            call.fates = (OK,) * count
            return ConsumeStatus.SUCCESS
        call.fates = (OK,) * good + (GIVEN_UP if call.level < 0 else FAILED,) * (count - good)
        if how == "raise":
            raise RuntimeError("the script says so")
        if how == "ack":
            context.ack_index = good - 1
        return STATUS[how]

    # A call

    @contextlib.contextmanager
    def call(
        self, group: str, process: str, messages: list[StoredMessage], *, queue: MessageQueue, epoch: int,
        lost: Callable[[], bool],
    ) -> Iterator[Call]:  # fmt: skip
        """Note the begin and the end of a call."""
        call = Call(next(self._numbers), messages)
        for number, (_, other, is_lost) in self._running.items():
            if other == queue and is_lost():
                self._note(Lost(self._loop.time(), number))
        self._note(
            Called(
                self._loop.time(), call.number, group, process, queue, epoch,
                tuple(message.queue_offset for message in messages), tuple(message.attempt for message in messages),
                tuple(message.body for message in messages), lost(),
            )
        )  # fmt: skip
        self._running[call.number] = process, queue, lost
        try:
            yield call
        finally:
            if self._running.pop(call.number, None) is not None:
                if lost():
                    self._note(Lost(self._loop.time(), call.number))
                self._note(Returned(self._loop.time(), call.number, call.fates, call.level))

    async def take_time(self, plan: MixedPlan, behaviour: Behaviour | None) -> None:
        """What a call does before it ends."""
        if isinstance(behaviour, Block):
            self._note(Stopped(self._loop.time(), plan.process.name))
            await plan.process.block(behaviour.seconds)
            self._note(Continued(self._loop.time(), plan.process.name))
            return
        seconds = behaviour.seconds if isinstance(behaviour, Slow) else self._pace_s
        if seconds and not self._healed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._healed.wait()
