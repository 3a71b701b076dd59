"""
``rmq-bench failover``: how long a queue is without a consumer when one of the group dies, stops or joins.

A broker, a producer under which every queue gets a message every few milliseconds, and consumers as processes of their
own, all at default settings. Each consumer says when it was first called for a queue under a new lock; the clock of the
machine is the same for all of them.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from . import exit_codes
from .bench_figures import Figure
from .child import child, own_broker
from .command import Failure
from .progress import progress
from .render import to_json
from .stopping import stop_signals

if TYPE_CHECKING:
    from rmq.client import Producer
    from rmq.consumer import ConsumeContext
    from rmq.wire.model import ConsumeStatus, StoredMessage

TOPIC, GROUP = "failover", "failover"
PATIENCE_S = 90.0  # longer than the lease: what only its end brings back is measured, not given up
QUIET_S = 1.0  # no queue has moved for so long: the group is at rest
TICK_S = 0.01
STEPS = 4  # of a repeat: join, stop, join, kill


class FirstCall(NamedTuple):
    """A consumer was called for a queue under a lock it had not been called under before."""

    member: int
    epoch: int
    at: float


class Calls:
    """
    The newest first call of each queue. Pure.

    Which member has a queue is told by the epochs: they grow with every change of owner.
    """

    def __init__(self, queues: int) -> None:
        self._queues = queues
        self._newest: dict[int, FirstCall] = {}
        self.moved_at = float("-inf")  # when a queue last came to another member

    def add(self, queue_id: int, call: FirstCall) -> None:
        """A consumer reported."""
        known = self._newest.get(queue_id)
        if known is None or call.epoch > known.epoch:
            self._newest[queue_id] = call
            self.moved_at = max(self.moved_at, call.at)

    def of(self, member: int) -> dict[int, FirstCall]:
        """The queues that a member has, each with its first call."""
        return {queue_id: call for queue_id, call in self._newest.items() if call.member == member}

    def at_rest(self, members: int, now: float) -> bool:
        """Whether every queue has an owner, all members have their share, and nothing has moved for a while."""
        held = [len(self.of(member)) for member in {call.member for call in self._newest.values()}]
        fair = len(held) == min(members, self._queues) and max(held) - min(held) <= 1
        return sum(held) == self._queues and fair and now - self.moved_at >= QUIET_S

    def taken_over(self, lost: dict[int, FirstCall]) -> float | None:
        """When the last of these queues was first called for at somebody else; None until all were."""
        newer = [self._newest[queue_id] for queue_id, call in lost.items() if self._newest[queue_id].epoch > call.epoch]
        return max((call.at for call in newer), default=0.0) if len(newer) == len(lost) else None


class Fleet:
    """The consumers as processes, and what they reported."""

    def __init__(self, address: str, queues: int, stack: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        self.calls = Calls(queues)
        self.processes: dict[int, Process] = {}  # of those that are members, oldest first
        self._address = address
        self._stack = stack
        self._tasks = tasks
        self._numbers = count(1)
        self._started: dict[int, float] = {}
        self._ended: set[int] = set()

    async def join(self) -> tuple[float, float]:
        """
        Add a consumer and wait until it has its share.

        Returns:
            The seconds that took from its ``Consumer`` being started, and from its process being started.
        """
        number, began = next(self._numbers), time.monotonic()
        process = await self._stack.enter_async_context(
            child("rmq.cli.rmq_bench", "failover-member", "--broker", self._address)
        )
        self.processes[number] = process
        self._stack.callback(self._tasks.create_task(self._read(number, process)).cancel)
        await self.rest()
        last = max((call.at for call in self.calls.of(number).values()), default=None)
        if last is None:
            raise Failure("there are more consumers than queues: one has nothing to do", exit_codes.USAGE)
        return last - self._started[number], last - began

    async def end(self, how: signal.Signals) -> float:
        """End the oldest consumer; the seconds until each of its queues was called for at another."""
        number, process = next(iter(self.processes.items()))
        lost = self.calls.of(number)
        del self.processes[number]
        self._ended.add(number)
        sent_at = time.monotonic()
        process.send_signal(how)
        what = f"every queue of a consumer after {how.name} is consumed elsewhere"
        await self._until(lambda: self.calls.taken_over(lost) is not None, what)
        taken_over = self.calls.taken_over(lost)
        assert taken_over is not None
        await process.wait()
        await self.rest()
        return taken_over - sent_at

    async def rest(self) -> None:
        """Wait until everybody has a share and nothing moves."""
        what = f"{len(self.processes)} consumers share the queues"
        await self._until(lambda: self.calls.at_rest(len(self.processes), time.monotonic()), what)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    await asyncio.sleep(TICK_S)
        except TimeoutError:
            raise Failure(f"within {PATIENCE_S:g} s it did not happen that {what}", exit_codes.FAILURE) from None

    async def _read(self, number: int, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed in the middle of a line
            told = json.loads(line)
            if "started_at" in told:
                self._started[number] = told["started_at"]
            else:
                self.calls.add(told["queue_id"], FirstCall(number, told["epoch"], told["at"]))
        if number not in self._ended:
            raise Failure("a consumer of this command ended by itself: see above", exit_codes.FAILURE)


async def measure(*, repeats: int, queues: int, members: int, rate: int) -> list[Figure]:
    """All repeats: each lets a consumer join, stops the oldest, lets one join, and kills the oldest."""
    killed = Figure("kill", "from SIGKILL of a consumer to the first call of the last of its queues elsewhere", 10.0)
    stopped = Figure("stop", "the same from SIGTERM, a clean stop", 1.0)
    joined = Figure(
        "join", "from the start of a further consumer to the first call of the last queue of its share", 2.0
    )
    process = Figure("join-process", "the same from the start of its process, loading Python included")
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(own_broker("--log-level", "error"))  # kills are meant
        await stack.enter_async_context(_load(address, queues, rate))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        fleet = Fleet(address, queues, await stack.enter_async_context(AsyncExitStack()), tasks)
        for _ in range(members - 1):
            await fleet.join()
        done = 0
        async with progress("failing over", repeats * STEPS, lambda: done):
            for how, figure in [(signal.SIGTERM, stopped), (signal.SIGKILL, killed)] * repeats:
                for took, of in zip(await fleet.join(), (joined, process), strict=True):
                    of.taken.append(took)
                done += 1
                figure.taken.append(await fleet.end(how))
                done += 1
    return [killed, stopped, joined, process]


@asynccontextmanager
async def _load(address: str, queues: int, rate: int) -> AsyncIterator[None]:
    """Within the block every queue gets messages, ``rate`` a second in all."""
    from rmq.client import Admin, Producer

    async with Admin(address) as admin:
        await admin.create_topic(TOPIC, queues)
    async with Producer(address) as producer, asyncio.TaskGroup() as tasks:
        sending = [
            tasks.create_task(_send(producer, queue_id, queues / rate), name=f"load of queue {queue_id}")
            for queue_id in range(queues)
        ]
        try:
            yield
        finally:
            for task in sending:
                task.cancel()


async def _send(producer: Producer, queue_id: int, every_s: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    for number in count():
        await producer.send_bodies(TOPIC, [b"%d" % number], queue_id=queue_id)
        due = max(due + every_s, loop.time() - 1.0)  # what a long stall left out is not made up for
        await asyncio.sleep(due - loop.time())


# ---- the process of a consumer


class Reporter:
    """Its listener: says when it is called for a queue under a new lock, and does nothing else."""

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        from rmq.wire.model import ConsumeStatus

        self._say = say
        self._epochs: dict[int, int] = {}
        self._success = ConsumeStatus.SUCCESS

    async def __call__(self, messages: Sequence[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Report the first call of a queue."""
        queue_id, epoch = context.queue.queue_id, context.epoch
        if self._epochs.get(queue_id) != epoch:
            self._epochs[queue_id] = epoch
            self._say({"queue_id": queue_id, "epoch": epoch, "at": time.monotonic()})
        return self._success


async def take_part(broker: str) -> None:
    """Consume until told to stop."""
    from rmq.consumer import Consumer

    consumer = Consumer(broker, group=GROUP, listener=Reporter(_say), topics={TOPIC: "*"})
    with stop_signals() as asked:
        _say({"started_at": time.monotonic()})
        async with consumer:
            await asked.wait()


def _say(what: dict[str, Any]) -> None:
    click.echo(to_json(what))
