"""
A process that consumes, by one of the ways of :mod:`rmq.consumer`, with a listener that looks at every body.

It warms up by reading another topic to its end, in a group of its own. Then it joins the measured group and is ready
when it holds its share of the queues; with ``paused`` nothing is fetched before the start signal. After the signal it
is sent the ends of the queues, and it reports its counts once it has seen all of its share.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from rmq.consumer import Consumer, PullConsumer
from rmq.wire.model import ConsumeStatus, MessageQueue, StoredMessage

from ..processes import go, run, say

BATCH = 500
LOOK_AGAIN_S = 0.01

# Settings that are not the defaults, by the way of consuming; by default a listener gets one message a call.
SETTINGS: Mapping[str, dict[str, Any]] = {
    "messages": {},
    "batches": {"batch": BATCH},
    "concurrent": {"orderly": False},
    "pull": {"batch": BATCH},
}
STYLES = tuple(SETTINGS)
SUCCESS = ConsumeStatus.SUCCESS


class Tally:
    """
    The listener: counts messages and bytes, and remembers when the last one came.

    It does little, since all of it is inside the clock: when it knows how many come, it reads the clock for the last.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.count = 0
        self.bytes = 0
        self.last_at = 0.0
        self.done = asyncio.Event()
        self._expected: float = math.inf
        self._mark_from: float = 0  # the count from which on the time may be that of the last one
        self._now = now

    def expect(self, messages: int) -> None:
        """Set how many messages come in all."""
        self._expected = self._mark_from = messages
        if self.count >= messages:
            self.done.set()

    async def listen(self, messages: Sequence[StoredMessage], context: object) -> ConsumeStatus:
        """Count one message, as a listener at default settings gets it."""
        self.bytes += len(messages[0].body)
        self.count = count = self.count + 1
        if count >= self._mark_from:
            self._mark()
        return SUCCESS

    async def listen_to_many(self, messages: Sequence[StoredMessage], context: object) -> ConsumeStatus:
        """Count a batch."""
        self.add(messages)
        return SUCCESS

    def add(self, messages: Sequence[StoredMessage]) -> None:
        """Count what came; an empty batch changes nothing."""
        if not messages:
            return
        for message in messages:
            self.bytes += len(message.body)
        self.count += len(messages)
        if self.count >= self._mark_from:
            self._mark()

    def _mark(self) -> None:
        self.last_at = self._now()
        if self.count >= self._expected:
            self.done.set()


@asynccontextmanager
async def consuming(
    style: str, address: str, topic: str, group: str, tally: Tally, *, paused: bool = False
) -> AsyncIterator[Consumer | PullConsumer]:
    """Run a consumer of one topic that gives its messages to the tally; its failure is raised in the block."""
    member: Consumer | PullConsumer
    if style == "pull":
        member = PullConsumer(address, group=group, topics={topic: "*"}, **SETTINGS[style])
    else:
        listener = tally.listen if style != "batches" else tally.listen_to_many
        member = Consumer(address, group=group, listener=listener, topics={topic: "*"}, **SETTINGS[style])
    if paused:
        member.pause()
    async with member, asyncio.TaskGroup() as tasks:
        # A consumer that ends must end the block, which would otherwise wait for messages for ever.
        tasks.create_task(_poll(member, tally) if isinstance(member, PullConsumer) else member.run())
        yield member
        await member.stop()


async def _poll(consumer: PullConsumer, tally: Tally) -> None:
    async for batch in consumer:
        tally.add(batch)


def is_share(held: int, queues: int, consumers: int) -> bool:
    """True for as many queues as each consumer gets."""
    return queues // consumers <= held <= -(-queues // consumers)


def share_end(held: Sequence[MessageQueue], ends: Sequence[int]) -> int:
    """Return how many messages these queues of a topic that began empty have."""
    return sum(ends[queue.queue_id] for queue in held)


async def _line() -> str:
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def main(
    *,
    address: str,
    style: str,
    topic: str,
    messages: int,
    warm_topic: str,
    warm_messages: int,
    group: str,
    part: int,
    queues: int,
    consumers: int,
    paused: bool,
) -> None:
    """Warm up, join, consume; report the counts, and the times of the start and the last message."""
    logging.getLogger("rmq.consumer").setLevel(logging.ERROR)  # that a listener is slower than pulls is what we measure
    warm = Tally()
    warm.expect(warm_messages)
    async with consuming(style, address, warm_topic, f"{group}-warm-{part}", warm):
        await warm.done.wait()
    tally = Tally()
    if consumers == 1:
        tally.expect(messages)  # else its share is known when everything was sent
    async with consuming(style, address, topic, group, tally, paused=paused) as member:
        while not is_share(len(member.assignment), queues, consumers):
            await asyncio.sleep(LOOK_AGAIN_S)
        await go()
        began = monotonic()  # before anything of a backlog is asked for
        member.resume()
        tally.expect(share_end(member.assignment, json.loads(await _line())["ends"]))
        await tally.done.wait()
    say(count=tally.count, bytes=tally.bytes, began=began, last_at=tally.last_at)


if __name__ == "__main__":
    run(main)
