"""
A message that cannot be processed becomes a dead letter; the listener is mended, and the letter is replayed.

    python examples/dead_letter_replay.py                                # with a broker of its own, in memory
    RMQ_BROKER=127.0.0.1:10911 python examples/dead_letter_replay.py     # with one that runs

``max_attempts`` lets an ordered group pass a message that failed so often: its queue goes on, and the order of that one
key has a gap. Without it the queue waits, and everything behind it. In a terminal the same is done with
``rmq-admin dlq list``, ``dlq show GROUP`` and ``dlq replay GROUP``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Callable

from rmq import Admin, Consumer, ConsumeStatus, Message, Producer, RmqError
from rmq.client import MessageQueue
from rmq.consumer import ConsumeContext, StoredMessage
from rmq.testing import InMemoryBroker

TOPIC = GROUP = "dead_letter_replay"
INVOICES = ("10.00", "20.00", "30,00", "40.00")  # a customer of ours writes a comma
PATIENCE_S = 30.0


def strict(amount: str) -> float:
    """How the first version of the service reads amounts."""
    return float(amount)


def lenient(amount: str) -> float:
    """How the mended version does."""
    return float(amount.replace(",", "."))


class Bookkeeping:
    """The listener, with the version of the code that it runs."""

    def __init__(self, run: str, read: Callable[[str], float]) -> None:
        self._run = run
        self._read = read
        self.booked: list[float] = []

    async def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Book; an exception is a failed attempt, and its text becomes the reason of the dead letter."""
        for message in messages:
            run, amount = message.body.decode().split()
            if run != self._run:
                continue  # left over from a run that was interrupted
            context.suspend_s = 0.05  # the pause before the next attempt
            try:
                self.booked.append(self._read(amount))
            except ValueError:
                print(f"attempt {message.attempt}: cannot read {amount!r}")
                raise
            print(f"booked {self.booked[-1]:.2f}")
        return ConsumeStatus.SUCCESS


async def consume(broker: str, listener: Bookkeeping, is_done: Callable[[], bool]) -> None:
    """Run a version of the service until there is nothing left for it to do."""
    group = Consumer(broker, group=GROUP, listener=listener, topics={TOPIC: "*"}, max_attempts=2)
    async with asyncio.timeout(PATIENCE_S), group:
        while not is_done():
            await asyncio.sleep(0.01)


async def waiting_letters(admin: Admin) -> list[StoredMessage]:
    """The dead letters of the group that nobody has dealt with."""
    row = next(row for row in await admin.list_dead_letters() if row.group == GROUP)
    settled = {
        offset for run in await admin.dead_letter_states(GROUP) for offset in range(run.from_offset, run.end_offset)
    }
    letters: list[StoredMessage] = []
    async for some in admin.read(MessageQueue(row.topic, 0), row.min_offset, row.max_offset):
        letters += [letter for letter in some if letter.queue_offset not in settled]
    return letters


async def tell(broker: str) -> None:
    """Four invoices, one of which the first version cannot read."""
    run = secrets.token_hex(8)
    async with Producer(broker, delivery_timeout_s=5) as producer:
        for amount in INVOICES:
            await producer.send(Message(TOPIC, f"{run} {amount}".encode(), key="customer-7"))

    first = Bookkeeping(run, strict)
    await consume(broker, first, lambda: len(first.booked) == 3)

    async with Admin(broker) as admin:
        letters = await waiting_letters(admin)
        for letter in letters:
            print(f"dead letter {letter.queue_offset}: {letter.body.decode().split()[1]!r}")
            print(f"  {letter.properties['RMQ_DEAD_REASON']}")
        results = await admin.replay_dead_letters(GROUP, [letter.queue_offset for letter in letters])
        print(f"replayed: {len(results)}")

    mended = Bookkeeping(run, lenient)
    await consume(broker, mended, lambda: bool(mended.booked))
    print(f"booked in all: {sum(first.booked + mended.booked):.2f}")


async def main() -> None:
    """With the broker that was named, or one of our own."""
    logging.getLogger("rmq").setLevel(logging.CRITICAL)  # a service keeps the tracebacks; here they hide the story
    if named := os.environ.get("RMQ_BROKER"):
        await tell(named)
        return
    async with InMemoryBroker() as own:
        await tell(own.address)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except RmqError as error:
        sys.exit(f"dead_letter_replay: {error}")
    except TimeoutError:
        sys.exit(f"dead_letter_replay: not everything was booked within {PATIENCE_S:g} s")
