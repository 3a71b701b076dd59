"""
Measures how long a queue is without a consumer when a member of the group is killed, stops or joins.

A broker, a producer that sends to every queue every few milliseconds, and consumers as processes of their own
(:mod:`rmq.bench.workers.failover_member`), all at default settings. Each consumer reports its first call of a queue
under a new lease; all of them use the machine's clock.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import NamedTuple

import uvloop

from rmq.client import Admin, Producer

from ..figures import Figure, Report, Verdict
from ..janitor import JANITOR
from ..options import Load, Options, Steps
from ..processes import STOP_S, BenchError, first_leaf

PATIENCE_S = 90.0  # longer than the lease: what only its end brings back is measured, not given up
TICK_S = 0.01
RATE = 1000
QUICK_QUIET_S = 0.3
LIMITS = {
    "failover.kill": ("take-over after a kill", 10.0),
    "failover.stop": ("take-over after a stop", 1.0),
    "failover.join": ("a share for who joins", 2.0),
}


class Fleet:
    """Owns the consumer processes and what they report."""

    def __init__(
        self, address: str, topic: str, calls: FirstCalls, stack: AsyncExitStack, tasks: asyncio.TaskGroup
    ) -> None:
        self.calls = calls
        self.processes: dict[int, Process] = {}  # of those that are members, oldest first
        self._orders = json.dumps({"broker": address, "topic": topic})
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
        process = await self._stack.enter_async_context(_member(self._orders))
        self.processes[number] = process
        self._stack.callback(self._tasks.create_task(self._read(number, process)).cancel)
        await self.rest()
        last = max(call.at for call in self.calls.of(number).values())
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
        """Wait until every member has its share and nothing moves."""
        what = f"{len(self.processes)} consumers share the queues"
        await self._until(lambda: self.calls.at_rest(len(self.processes), time.monotonic()), what)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    await asyncio.sleep(TICK_S)
        except TimeoutError:
            raise BenchError(f"within {PATIENCE_S:g} s it did not happen that {what}") from None

    async def _read(self, number: int, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed within a line
            report = json.loads(line)
            if "started_at" in report:
                self._started[number] = report["started_at"]
            else:
                self.calls.add(report["queue_id"], FirstCall(number, report["epoch"], report["at"]))
        if number not in self._ended:
            raise BenchError("a consumer of this benchmark ended by itself: see above")


def measure(load: Load, options: Options, steps: Steps, *, rate: int = RATE) -> Report:
    """Each round lets a consumer join, stops the oldest, lets one join, and kills the oldest."""
    members = load.consumers
    if not 2 <= members <= load.queues:
        raise BenchError("a failover needs two consumers or more, and a queue for each of them")
    flush = options.flush
    killed = Figure("failover.kill", "SIGKILL of a consumer until its last queue is consumed elsewhere", "s", flush)
    stopped = Figure("failover.stop", "the same from SIGTERM, a clean stop", "s", flush)
    joined = Figure("failover.join", "start of a further consumer until it has its whole share", "s", flush)
    process = Figure("failover.join_process", "the same from the start of its process", "s", flush)
    quiet_s = QUICK_QUIET_S if options.quick else QUIET_S
    steps.expect(members - 1 + 4 * options.rounds)

    async def run(address: str) -> None:
        async with _fleet(address, load.queues, rate, quiet_s) as fleet:
            for _ in range(members - 1):
                steps("failover.begin")
                await fleet.join()
            for how, figure in [(signal.SIGTERM, stopped), (signal.SIGKILL, killed)] * options.rounds:
                steps(joined.key)
                for took, of in zip(await fleet.join(), (joined, process), strict=True):
                    of.samples.append(took)
                steps(figure.key)
                figure.samples.append(await fleet.end(how))

    with options.ground() as address:
        try:
            uvloop.run(run(address))
        except BaseExceptionGroup as errors:  # of the tasks: the first is the cause
            raise first_leaf(errors) from errors
    figures = [killed, stopped, joined, process]
    about = {"load": load.as_object(), "flush": flush, "rounds": options.rounds, "messages_per_s": rate}
    return Report("failover", about, figures, list(verdicts(figures)))


def verdicts(figures: list[Figure]) -> Iterator[Verdict]:
    """Judge the worst samples: no take-over may last too long."""
    for figure in figures:
        if figure.key in LIMITS:
            what, limit_s = LIMITS[figure.key]
            worst = f"{what}, the longest of {len(figure.samples)}"
            yield Verdict(figure.key, worst, "s", figure.flush, [max(figure.samples)], at_most=limit_s)


@asynccontextmanager
async def _fleet(address: str, queues: int, rate: int, quiet_s: float) -> AsyncIterator[Fleet]:
    """Consumers to be, of a topic that gets messages."""
    topic = f"bench-failover-{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_load(address, topic, queues, rate))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        members = await stack.enter_async_context(AsyncExitStack())
        yield Fleet(address, topic, FirstCalls(queues, quiet_s), members, tasks)


@asynccontextmanager
async def _load(address: str, topic: str, queues: int, rate: int) -> AsyncIterator[None]:
    """Within the block there is a topic, and every queue of it gets messages, ``rate`` a second in all."""
    async with Admin(address) as admin:
        await admin.create_topic(topic, queues)
        try:
            async with Producer(address) as producer, asyncio.TaskGroup() as tasks:
                sending = [
                    tasks.create_task(_send(producer, topic, queue_id, queues / rate), name=f"load of queue {queue_id}")
                    for queue_id in range(queues)
                ]
                try:
                    yield
                finally:
                    for task in sending:
                        task.cancel()
        finally:
            await admin.delete_topic(topic)


async def _send(producer: Producer, topic: str, queue_id: int, every_s: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    for number in count():
        await producer.send_bodies(topic, [b"%d" % number], queue_id=queue_id)
        due = max(due + every_s, loop.time() - 1.0)  # messages missed in a long stall are not caught up
        await asyncio.sleep(due - loop.time())


@asynccontextmanager
async def _member(orders: str) -> AsyncIterator[Process]:
    """A consuming process; it is ended with the block."""
    command = (sys.executable, "-m", "rmq.bench.workers.failover_member", orders)
    # A group of its own: Ctrl-C is for the benchmark, which then ends its processes in order.
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, start_new_session=True)
    JANITOR.add(process.pid)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        JANITOR.remove(process.pid)


QUIET_S = 1.0  # no queue has moved for so long: the group is at rest


class FirstCall(NamedTuple):
    """The first call of a consumer for a queue under a new lease."""

    member: int
    epoch: int
    at: float


class FirstCalls:
    """
    Tracks the newest first call of each queue.

    The call with the highest epoch names the owner, since epochs grow with every change of owner.
    """

    def __init__(self, queues: int, quiet_s: float = QUIET_S) -> None:
        self._queues = queues
        self._quiet_s = quiet_s
        self._newest: dict[int, FirstCall] = {}
        self.moved_at = float("-inf")  # when a queue last came to another member

    def add(self, queue_id: int, call: FirstCall) -> None:
        """Record a report."""
        known = self._newest.get(queue_id)
        if known is None or call.epoch > known.epoch:
            self._newest[queue_id] = call
            self.moved_at = max(self.moved_at, call.at)

    def of(self, member: int) -> dict[int, FirstCall]:
        """Return the queues of a member, each with its first call."""
        return {queue_id: call for queue_id, call in self._newest.items() if call.member == member}

    def at_rest(self, members: int, now: float) -> bool:
        """True if every queue has an owner, all members have their share, and nothing has moved for a while."""
        held = [len(self.of(member)) for member in {call.member for call in self._newest.values()}]
        fair = len(held) == min(members, self._queues) and max(held) - min(held) <= 1
        return sum(held) == self._queues and fair and now - self.moved_at >= self._quiet_s

    def taken_over(self, lost: dict[int, FirstCall]) -> float | None:
        """Return when the last of these queues was first called at another member, None until all were."""
        newer = [self._newest[queue_id] for queue_id, call in lost.items() if self._newest[queue_id].epoch > call.epoch]
        return max((call.at for call in newer), default=0.0) if len(newer) == len(lost) else None
