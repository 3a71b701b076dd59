"""
Reminders that wait in the broker until their time comes, and one that is not needed any more by then.

    python examples/delayed_reminders.py                                # with a broker of its own, in memory
    RMQ_BROKER=127.0.0.1:10911 python examples/delayed_reminders.py     # with one that runs

A delayed message is stored at once and survives a restart; it takes its place in its queue when its time has come. So
the reminders of one key come in the order of their times, whatever the order in which they were sent.
There is no way to take it back: the listener looks whether the reminder is still wanted.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from datetime import UTC, datetime, timedelta

from rmq import Admin, Consumer, ConsumeStatus, Message, Producer, RmqError
from rmq.consumer import ConsumeContext, StoredMessage
from rmq.testing import InMemoryBroker

TOPIC = GROUP = "delayed_reminders"
PATIENCE_S = 30.0
CUSTOMER = "customer-7"
AFTER_S = {"o-1": 1.5, "o-2": 0.5, "o-3": 1.0}  # in a real shop: days, or delay_level=18 for 2 h


class Reminders:
    """The listener. ``paid`` is what a database would tell."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._left = set(AFTER_S)
        self.paid: set[str] = set()
        self.done = asyncio.Event()

    async def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Remind those who have not paid."""
        for message in messages:
            run, order, due = message.body.decode().split()
            if run != self._run:
                continue  # left over from a run that was interrupted
            late_s = (message.stored_at - datetime.fromisoformat(due)).total_seconds()
            if order in self.paid:
                print(f"{order}: paid by now, no reminder")
            else:
                print(f"{order}: reminded, {'on time' if 0 <= late_s < 1 else f'{late_s:.1f} s late'}")
            self._left.discard(order)
        if not self._left:
            self.done.set()
        return ConsumeStatus.SUCCESS


async def schedule(broker: str, run: str) -> None:
    """One reminder for each order; only the time says which comes first."""
    now = datetime.now(UTC)
    async with Producer(broker, delivery_timeout_s=5) as producer, Admin(broker) as admin:
        for order, seconds in AFTER_S.items():
            due = now + timedelta(seconds=seconds)
            body = f"{run} {order} {due.isoformat()}".encode()
            await producer.send(Message(TOPIC, body, key=CUSTOMER, index_keys=(order,), deliver_at=due))
            print(f"{order}: scheduled in {seconds} s")
        waiting = await admin.list_deferred(TOPIC)
        print(f"waiting in the broker: {waiting.total_messages}")


async def remind(broker: str) -> None:
    """Schedule, let one order be paid, and consume."""
    run = secrets.token_hex(8)
    reminders = Reminders(run)
    await schedule(broker, run)
    reminders.paid.add("o-3")
    async with Consumer(broker, group=GROUP, listener=reminders, topics={TOPIC: "*"}), asyncio.timeout(PATIENCE_S):
        await reminders.done.wait()


async def main() -> None:
    """With the broker that was named, or one of our own."""
    if named := os.environ.get("RMQ_BROKER"):
        await remind(named)
        return
    async with InMemoryBroker() as own:
        await remind(own.address)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except RmqError as error:
        sys.exit(f"delayed_reminders: {error}")
    except TimeoutError:
        sys.exit(f"delayed_reminders: not all reminders came within {PATIENCE_S:g} s")
