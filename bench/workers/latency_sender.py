"""
A client that sends by a schedule, without waiting for answers.

*drip*: one message at a time to a random queue. *stream*: about once a millisecond everything that has become due, in
one ``send_bodies``. Each message has the time at which it was due.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

from rmq.client import Message, Producer

from ..processes import go, run, say
from .schedule import SECOND, WARM_UP, Bodies, Schedule

LEAD_NS = SECOND // 20  # between the word and the first message
SETTLE_NS = SECOND // 2  # the same of a drip: consumers report their progress, and their pulls are parked again
TICK_S = 0.001
NEAR_S = 0.001  # before a message that is alone


async def main(
    *, address: str, manner: str, topics: list[str], queues: int, size: int, per_second: float, **counts: int
) -> None:
    """Send, and say how late the sender itself was, in microseconds, each time that it sent something."""
    async with Producer(address) as producer:
        sender = Sender(producer, topics, queues, Bodies(size))
        if manner == "drip":
            behind = await sender.drip(per_second, **counts)
        else:
            behind = await sender.stream(per_second, **counts)
    say(us=behind)


class Sender:
    """The two manners of sending."""

    def __init__(self, producer: Producer, topics: list[str], queues: int, bodies: Bodies) -> None:
        self._producer = producer
        self._topics = topics
        self._queues = queues
        self._bodies = bodies

    async def drip(self, per_second: float, *, count: int) -> list[float]:
        """One to each queue to warm up; then ``count``, one at a time."""
        everywhere = [(topic, queue_id) for topic in self._topics for queue_id in range(self._queues)]
        async with asyncio.TaskGroup() as tasks:
            for topic, queue_id in everywhere:
                warming = self._producer.send(Message(topic, self._bodies.stamped(WARM_UP)), queue_id=queue_id)
                tasks.create_task(_done(warming))
        await go()
        schedule = Schedule(time.monotonic_ns() + SETTLE_NS, per_second, count)
        behind = []
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                await until_due(schedule, number)
                topic, queue_id = random.choice(everywhere)
                due = schedule.due(number)
                behind.append((time.monotonic_ns() - due) / 1000)
                sending = self._producer.send(Message(topic, self._bodies.stamped(due)), queue_id=queue_id)
                tasks.create_task(_done(sending))
        return behind

    async def stream(self, per_second: float, *, warm: int, count: int) -> list[float]:
        """``warm`` messages without a time, and behind them, by the same schedule, ``count`` with theirs."""
        await go()
        schedule = Schedule(time.monotonic_ns() + LEAD_NS, per_second, warm + count)
        (topic,) = self._topics
        sent, behind = 0, []
        async with asyncio.TaskGroup() as tasks:
            while sent < warm + count:
                await asyncio.sleep(max(TICK_S, schedule.wait_s(sent, time.monotonic_ns())))
                now = time.monotonic_ns()
                owed = schedule.owed(now)
                if owed == sent:
                    continue
                if owed > warm:
                    behind.append((now - schedule.due(max(sent, warm))) / 1000)
                stamps = [WARM_UP if number < warm else schedule.due(number) for number in range(sent, owed)]
                bodies = [self._bodies.stamped(stamp) for stamp in stamps]
                tasks.create_task(_done(self._producer.send_bodies(topic, bodies)))
                sent = owed
        return behind


async def until_due(schedule: Schedule, number: int, now: Callable[[], int] = time.monotonic_ns) -> None:
    """
    Wait for a message that is alone, not a moment less.

    The loop counts whole milliseconds, and such a message may take less than one: during the last the clock is watched.
    """
    await asyncio.sleep(schedule.wait_s(number, now()) - NEAR_S)
    due = schedule.due(number)
    while now() < due:
        pass


async def _done(sending: Coroutine[Any, Any, object]) -> None:
    await sending


if __name__ == "__main__":
    run(main)
