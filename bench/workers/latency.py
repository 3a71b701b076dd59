"""
The clients of ``rmq-bench latency``, one process each: ``single``, ``send``, ``receive``, ``ping`` and ``flood``.

All of them report microseconds. Under a schedule time counts from when something was due, also when it was sent later;
the due time travels in the body, on the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from itertools import cycle, islice
from typing import Any

from rmq.client import Connection, Message, Producer
from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus, StoredMessage
from rmq.wire.protocol.ops.core import Op

from ..options import Load
from ..processes import go, roles, run, say
from .schedule import SECOND, WARM_UP, DueTimes, StampedBodies, stamp_of

DIFFERENT = 1000  # messages of ``single``, sent again and again
WARM_SENDS = 200
WARM_PINGS = 50
LEAD_NS = SECOND // 20  # between the start signal and the first thing that is due
SETTLE_NS = SECOND // 2  # the same of a drip: consumers report their progress, and their pulls are parked again
TICK_S = 0.001
NEAR_S = 0.001  # before a message that is alone
LOOK_S = 0.01
TIMEOUT_S = 60.0  # a message or an answer that takes longer is lost
AT_ONCE = 5  # consumers that start together: if all did, their loop would log that it stalls


async def single(address: str, topic: str, size: int, seconds: float) -> None:
    """Send one message after the other, and report each round trip; messages are made before the clock runs."""
    bodies = StampedBodies(size)
    messages = cycle([Message(topic, bodies.stamped(WARM_UP)) for _ in range(DIFFERENT)])
    took = []
    async with Producer(address) as producer:
        for message in islice(messages, WARM_SENDS):
            await producer.send(message)
        await go()
        began = before = time.perf_counter_ns()
        until = began + int(seconds * 1e9)
        while before < until:
            message = next(messages)
            before = time.perf_counter_ns()
            await producer.send(message)
            took.append((time.perf_counter_ns() - before) / 1000)
    say(us=took)


async def ping(address: str, per_second: float, count: int) -> None:
    """Ping by a schedule, whether or not the ping before was answered; report times and the pinger's own delays."""
    took: list[float] = []
    late: list[float] = []
    connection = Connection(address)
    await connection.open(timeout_s=TIMEOUT_S)

    async def answered(due: int) -> None:
        await connection.request(Op.PING, (), timeout_s=TIMEOUT_S)
        took.append((time.monotonic_ns() - due) / 1000)

    try:
        for _ in range(WARM_PINGS):
            await connection.request(Op.PING, (), timeout_s=TIMEOUT_S)
        await go()
        schedule = DueTimes(time.monotonic_ns() + LEAD_NS, per_second, count)
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                await asyncio.sleep(schedule.wait_s(number, time.monotonic_ns()))
                now, due = time.monotonic_ns(), schedule.due(number)
                late.append((now - due) / 1000)
                tasks.create_task(answered(min(now, due)))  # the loop may be early by half a millisecond
    finally:
        await connection.close()
    say(us=took, late_us=late)


async def flood(address: str, topic: str, load: dict[str, Any], warm_s: float) -> None:
    """Send as much as possible, from before the ready line until the start signal; report messages a second."""
    asked = Load(**load)
    batches = cycle(asked.bodies())
    sent = 0
    over = False
    async with Producer(address) as producer:

        async def send_on() -> None:
            nonlocal sent
            while not over:
                bodies = next(batches)
                await producer.send_bodies(topic, bodies)
                sent += len(bodies)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(asked.in_flight):
                tasks.create_task(send_on())
            await asyncio.sleep(warm_s)
            began, before = time.perf_counter(), sent
            await go()
            rate = (sent - before) / (time.perf_counter() - began)
            over = True
    say(rate=rate)


async def send(
    *, address: str, manner: str, topics: list[str], queues: int, size: int, per_second: float, **counts: int
) -> None:
    """Send by a schedule, ``drip`` or ``stream``; report how late each send was."""
    async with Producer(address) as producer:
        sender = ScheduledSender(producer, topics, queues, StampedBodies(size))
        if manner == "drip":
            late = await sender.drip(per_second, **counts)
        else:
            late = await sender.stream(per_second, **counts)
    say(us=late)


class ScheduledSender:
    """
    Sends by a schedule, without waiting for receipts.

    *drip*: one message at a time to a random queue. *stream*: about once a millisecond everything that has become due,
    in one ``send_bodies``.
    """

    def __init__(self, producer: Producer, topics: list[str], queues: int, bodies: StampedBodies) -> None:
        self._producer = producer
        self._topics = topics
        self._queues = queues
        self._bodies = bodies

    async def drip(self, per_second: float, *, count: int) -> list[float]:
        """Send one to each queue to warm up, then ``count``, one at a time."""
        everywhere = [(topic, queue_id) for topic in self._topics for queue_id in range(self._queues)]
        async with asyncio.TaskGroup() as tasks:
            for topic, queue_id in everywhere:
                warming = self._producer.send(Message(topic, self._bodies.stamped(WARM_UP)), queue_id=queue_id)
                tasks.create_task(_done(warming))
        await go()
        schedule = DueTimes(time.monotonic_ns() + SETTLE_NS, per_second, count)
        late = []
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                await until_due(schedule, number)
                topic, queue_id = random.choice(everywhere)
                due = schedule.due(number)
                late.append((time.monotonic_ns() - due) / 1000)
                sending = self._producer.send(Message(topic, self._bodies.stamped(due)), queue_id=queue_id)
                tasks.create_task(_done(sending))
        return late

    async def stream(self, per_second: float, *, warm: int, count: int) -> list[float]:
        """Send ``warm`` messages without a time, then, by the same schedule, ``count`` with theirs."""
        await go()
        schedule = DueTimes(time.monotonic_ns() + LEAD_NS, per_second, warm + count)
        (topic,) = self._topics
        sent, late = 0, []
        async with asyncio.TaskGroup() as tasks:
            while sent < warm + count:
                await asyncio.sleep(max(TICK_S, schedule.wait_s(sent, time.monotonic_ns())))
                now = time.monotonic_ns()
                owed = schedule.owed(now)
                if owed == sent:
                    continue
                if owed > warm:
                    late.append((now - schedule.due(max(sent, warm))) / 1000)
                stamps = [WARM_UP if number < warm else schedule.due(number) for number in range(sent, owed)]
                bodies = [self._bodies.stamped(stamp) for stamp in stamps]
                tasks.create_task(_done(self._producer.send_bodies(topic, bodies)))
                sent = owed
        return late


async def until_due(schedule: DueTimes, number: int, now: Callable[[], int] = time.monotonic_ns) -> None:
    """
    Wait until a message that is alone is due, to the moment.

    The loop counts whole milliseconds, and such a message may take less than one: during the last the clock is watched.
    """
    await asyncio.sleep(schedule.wait_s(number, now()) - NEAR_S)
    due = schedule.due(number)
    while now() < due:
        pass


async def _done(sending: Coroutine[Any, Any, object]) -> None:
    await sending


class LatencyListener:
    """Keeps how long messages took, and signals each ``count`` of them; those of the warm-up count apart."""

    def __init__(self, count: int, warm: int, now: Callable[[], int] = time.monotonic_ns) -> None:
        self.came = asyncio.Event()
        self.warmed = asyncio.Event()
        self._count = count
        self._warm = warm
        self._now = now
        self._took: list[float] = []
        if not warm:
            self.warmed.set()

    async def __call__(self, messages: Sequence[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Look at the clock first."""
        now = self._now()
        for message in messages:
            stamp = stamp_of(message.body)
            if stamp == WARM_UP:
                self._warm -= 1
                if self._warm == 0:
                    self.warmed.set()
            else:
                self._took.append((now - stamp) / 1000)
                if len(self._took) >= self._count:
                    self.came.set()
        return ConsumeStatus.SUCCESS

    def take(self) -> list[float]:
        """Remove and return the oldest ``count`` of them, in microseconds."""
        took, self._took = self._took[: self._count], self._took[self._count :]
        if len(self._took) < self._count:
            self.came.clear()
        return took


async def receive(
    *, address: str, topics: list[str], queues: int, warm: int, count: int, rounds: int, ahead: bool
) -> None:
    """
    Consume in order at default settings, and report ``rounds`` times how long the next ``count`` messages took.

    Each topic has a consumer with a group and a connection of its own, and each of its queues one pull, parked at the
    broker while the queue is empty. ``warm`` more messages come first: before the ready line if ``ahead``, else after
    the start signal.
    """
    listener = LatencyListener(count, warm)
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(TIMEOUT_S):
            for at in range(0, len(topics), AT_ONCE):
                names = topics[at : at + AT_ONCE]
                some = [Consumer(address, group=name, listener=listener, topics={name: "*"}) for name in names]
                for consumer in some:
                    await stack.enter_async_context(consumer)
                while any(len(consumer.assignment) < queues for consumer in some):
                    await asyncio.sleep(LOOK_S)
            if ahead:
                await listener.warmed.wait()
        await go()
        async with asyncio.timeout(TIMEOUT_S):
            await listener.warmed.wait()
        for _ in range(rounds):
            async with asyncio.timeout(TIMEOUT_S):
                await listener.came.wait()
            say(us=listener.take())


if __name__ == "__main__":
    run(roles(single=single, send=send, receive=receive, ping=ping, flood=flood))
