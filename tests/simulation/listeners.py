"""
Listeners and a pull loop that do what a script says, and note every call.

A message says itself how often it fails: ``bad3/...`` fails at its first three deliveries, whichever member gets it;
an ordered group takes no notice of it. What an ordered listener has done is written, when its call commits, to a sink
that checks the fencing token.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeAlias

from rmq.consumer import ConsumeStatus, PullConsumer
from rmq.consumer.listener import ConsumeContext
from rmq.wire.model import MessageQueue, StoredMessage

from simulation.groups import CONCURRENT, ORDERLY, TOPIC, Group
from simulation.history import (
    CUT,
    DONE,
    FAILED,
    GIVEN_UP,
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
Listener: TypeAlias = Callable[[list[StoredMessage], Any], Coroutine[Any, Any, ConsumeStatus | None]]
Stay: TypeAlias = tuple[MessageQueue, int]  # a queue under one epoch

STATUS = {"retry": ConsumeStatus.RETRY, "suspend": ConsumeStatus.SUSPEND, "ack": ConsumeStatus.SUCCESS, "none": None}
POLL_S = 1.0


def body_of(bad: int, name: str, size: int) -> bytes:
    """Return the body of a message that fails so often."""
    return f"bad{bad}/{name}".encode().ljust(size, b".")


def is_bad(message: StoredMessage) -> bool:
    """Return whether a delivery of a message fails by itself."""
    bad = message.body.partition(b"/")[0].removeprefix(b"bad")
    return bad.isdigit() and message.attempt <= int(bad)


class Plan:
    """What the next calls of a member do, in their order; later ones take no longer than the script says."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.next: deque[Behaviour] = deque()
        self.kept: defaultdict[Stay, list[StoredMessage]] = defaultdict(list)  # done, and not committed


class Call:
    """A call under way; the listener sets its fates."""

    def __init__(self, number: int, messages: list[StoredMessage]) -> None:
        self.number = number
        self.messages = messages
        self.level = 0
        self.all(CUT)

    def all(self, fate: str) -> None:
        """Give all messages the same fate."""
        self.fates: tuple[str, ...] = (fate,) * len(self.messages)


class Listeners:
    """The listeners of all members. ``heal`` ends whatever hinders them but what messages say themselves."""

    def __init__(self, script: Script, note: Callable[[Event], None]) -> None:
        self._script = script
        self._note = note
        self._loop = asyncio.get_running_loop()
        self._healed = asyncio.Event()
        self._numbers = itertools.count(1)
        self._running: dict[int, tuple[str, MessageQueue, Callable[[], bool]]] = {}
        self._sink = Sink()

    def killed(self, process: str) -> None:
        """A process died: its calls have no end."""
        self._running = {call: running for call, running in self._running.items() if running[0] != process}

    def heal(self) -> None:
        """End slow calls now, and make no further one slow."""
        self._healed.set()

    # Listeners

    def listener(self, plan: Plan, group: Group) -> Listener:
        """Return the listener of a member that does not pull."""

        async def on_messages(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus | None:
            behaviour = plan.next.popleft() if plan.next else None
            lost = lambda: bool(context.lost)  # noqa: E731
            with self.call(group, plan, messages, queue=context.queue, epoch=context.epoch, lost=lost) as call:
                await self.take_time(plan, behaviour)
                if group.kind == CONCURRENT:
                    return self._concurrent(call, context, behaviour)
                if isinstance(behaviour, Fail) or (group.kind != ORDERLY and any(map(is_bad, messages))):
                    return self._fail(call, context, behaviour, plan, group)
                if group.kind == ORDERLY:
                    return self._succeed(call, context, plan, group)
                call.all(DONE)
                return ConsumeStatus.SUCCESS

        return on_messages

    def _succeed(self, call: Call, context: ConsumeContext, plan: Plan, group: Group) -> ConsumeStatus:
        stay = context.queue, context.epoch
        kept = plan.kept[stay]
        kept += call.messages
        every = self._script.commit_every
        context.auto_commit = not every
        if len(kept) < every and not self._healed.is_set():
            call.all(KEPT)
            return ConsumeStatus.SUCCESS
        call.all(DONE)
        for message in kept:
            if self._sink.write((group.name, context.queue), context.epoch):
                self._note(Wrote(self._loop.time(), *stay, message.queue_offset, group.name))
        kept.clear()
        return ConsumeStatus.COMMIT if every else ConsumeStatus.SUCCESS

    def _fail(
        self, call: Call, context: ConsumeContext, behaviour: Behaviour | None, plan: Plan, group: Group
    ) -> ConsumeStatus:
        """All messages fail together, and with them those that were kept, if the call rolls back."""
        how = behaviour if isinstance(behaviour, Fail) else Fail(plan.process.name, 1, "suspend")
        attempt, kept = call.messages[0].attempt, plan.kept[context.queue, context.epoch]
        rolls_back = bool(self._script.commit_every and attempt % 2)
        if rolls_back and kept:
            attempt = kept[0].attempt  # the pause is that of the first message that is given again
        pause_s = how.pause_s
        if pause_s is None:
            pause_s = min(group.setting("suspend_s", 1.0) * 2.0 ** (attempt - 1), 30.0)
        else:
            context.suspend_s = pause_s
        now = self._loop.time()
        self._note(Hindered(now, now + pause_s))
        call.all(ROLLED_BACK if rolls_back else FAILED)
        if rolls_back:
            kept.clear()
            context.auto_commit = False
            return ConsumeStatus.ROLLBACK
        if how.how == "raise":
            raise RuntimeError("the script says so")
        return ConsumeStatus.SUSPEND

    def _concurrent(self, call: Call, context: Any, behaviour: Behaviour | None) -> ConsumeStatus | None:
        count = len(call.messages)
        good = next((index for index, message in enumerate(call.messages) if is_bad(message)), count)
        how = "ack"
        if isinstance(behaviour, Fail):
            call.level = context.delay_level = behaviour.level
            how, good = behaviour.how, min(good, 1) if behaviour.how == "ack" else 0
        elif good == count:
            call.all(DONE)
            return ConsumeStatus.SUCCESS
        call.fates = (DONE,) * good + (GIVEN_UP if call.level < 0 else FAILED,) * (count - good)
        if how == "raise":
            raise RuntimeError("the script says so")
        if how == "ack":
            context.ack_index = good - 1
        return STATUS[how]

    # A call

    @contextlib.contextmanager
    def call(
        self, group: Group, plan: Plan, messages: list[StoredMessage], *, queue: MessageQueue, epoch: int,
        lost: Callable[[], bool],
    ) -> Iterator[Call]:  # fmt: skip
        """Note the begin and the end of a call."""
        call, process = Call(next(self._numbers), messages), plan.process.name
        for number, (_, other, is_lost) in self._running.items():
            if other == queue and is_lost():
                self._note(Lost(self._loop.time(), number))
        self._note(
            Started(
                self._loop.time(), call.number, process, queue, epoch,
                tuple(message.queue_offset for message in messages), tuple(message.attempt for message in messages),
                tuple(message.body for message in messages), lost(), group.name,
            )
        )  # fmt: skip
        self._running[call.number] = process, queue, lost
        try:
            yield call
        finally:
            if self._running.pop(call.number, None) is not None:
                if lost():
                    self._note(Lost(self._loop.time(), call.number))
                self._note(Ended(self._loop.time(), call.number, call.fates, call.level))

    async def take_time(self, plan: Plan, behaviour: Behaviour | None) -> None:
        """Do what a call does before it ends."""
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


class PullMember:
    """Polls, takes its time with what it got, and polls again, which says that it is done: a user's loop."""

    def __init__(
        self, address: str, group: Group, plan: Plan, listeners: Listeners, *, connect: Callable[..., Any],
        now: Callable[[], float], epoch: Callable[[str, MessageQueue], int],
    ) -> None:  # fmt: skip
        self._group, self._plan, self._listeners, self._epoch = group, plan, listeners, epoch
        settings: dict[str, Any] = dict(group.settings)
        self._consumer = PullConsumer(address, group=group.name, connect=connect, now=now, **settings)
        self._consumer.subscribe(TOPIC, group.expression)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the process that calls this."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Finish the messages of the last poll, and leave."""
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
        queue = MessageQueue(messages[0]._origin.topic, messages[0].queue_id)
        epoch = self._epoch(self._plan.process.name, queue)
        lost = lambda: self._lost(queue, epoch)  # noqa: E731
        noted = self._listeners.call(self._group, self._plan, messages, queue=queue, epoch=epoch, lost=lost)
        call = stack.enter_context(noted)
        await self._listeners.take_time(self._plan, self._plan.next.popleft() if self._plan.next else None)
        call.all(DONE)

    def _lost(self, queue: MessageQueue, epoch: int) -> bool:
        running = self._consumer._runtime
        assignment = None if running is None else running.assignments.get(queue)
        return assignment is None or assignment.epoch != epoch or bool(assignment.lost)
