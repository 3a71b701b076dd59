"""
Effects exactly once: a listener that writes to SQLite, and a stale owner that is refused.

    python examples/fencing_sqlite.py

The sink keeps two marks for each queue and changes them in the transaction of the effect:

- the highest ``context.epoch`` it has seen. It grows with every owner of a queue: a caller with a lower one has lost
  the queue, whether it knows that or not, and nothing of it is written;
- ``(log_epoch, queue_offset)`` of the last message that was booked. What is not above it was delivered again. After an
  older backup is restored, offsets are given to other messages, and these have a higher log epoch.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing

from rmq import Consumer, ConsumeStatus, Message, Producer
from rmq.consumer import ConsumeContext, MessageQueue, StoredMessage
from rmq.testing import InMemoryBroker

TOPIC = "payments"
GROUP = "ledger"
SCHEMA = """
CREATE TABLE IF NOT EXISTS mark (
    consumer_group TEXT, topic TEXT, queue_id INTEGER,
    lease_epoch INTEGER NOT NULL, log_epoch INTEGER NOT NULL, queue_offset INTEGER NOT NULL,
    PRIMARY KEY (consumer_group, topic, queue_id)
);
CREATE TABLE IF NOT EXISTS balance (account TEXT PRIMARY KEY, amount INTEGER NOT NULL);
"""


class StaleToken(Exception):
    """The queue has another owner by now: nothing was written."""


class Ledger:
    """Keeps the balances of accounts, booked by one consumer group. Each method is one transaction."""

    def __init__(self, path: str, group: str) -> None:
        self._group = group
        # Listeners run in threads: each call opens the file for itself, and SQLite lets one write at a time.
        self._path = path
        with closing(self._open()) as database:
            database.executescript(SCHEMA)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30, isolation_level=None)

    def apply(self, queue: MessageQueue, epoch: int, messages: list[StoredMessage]) -> int:
        """
        Book the messages of a queue that are not booked yet, and return how many those were.

        Raises:
            StaleToken: an owner with a higher epoch has written before.
        """
        with closing(self._open()) as database:
            database.execute("BEGIN IMMEDIATE")  # the right to write comes before what it is decided by is read
            try:
                booked = self._apply(database, queue, epoch, messages)
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
            return booked

    def _apply(
        self, database: sqlite3.Connection, queue: MessageQueue, epoch: int, messages: list[StoredMessage]
    ) -> int:
        row = database.execute(
            "SELECT lease_epoch, log_epoch, queue_offset FROM mark"
            " WHERE consumer_group = ? AND topic = ? AND queue_id = ?",
            (self._group, queue.topic, queue.queue_id),
        ).fetchone()
        highest, mark = (row[0], row[1:]) if row else (epoch, (0, -1))
        if epoch < highest:
            raise StaleToken(f"{queue} was written under epoch {highest}: {epoch} is too old")
        new = [message for message in messages if (message.log_epoch, message.queue_offset) > mark]
        for message in new:
            account, amount = message.body.decode().split()
            database.execute(
                "INSERT INTO balance VALUES (?1, ?2) ON CONFLICT (account) DO UPDATE SET amount = amount + ?2",
                (account, int(amount)),
            )
        if new:
            mark = (new[-1].log_epoch, new[-1].queue_offset)
        place = (self._group, queue.topic, queue.queue_id)
        database.execute("INSERT OR REPLACE INTO mark VALUES (?, ?, ?, ?, ?, ?)", (*place, epoch, *mark))
        return len(new)

    def balances(self) -> dict[str, int]:
        """The sum of each account."""
        with closing(self._open()) as database:
            return dict(database.execute("SELECT account, amount FROM balance ORDER BY account").fetchall())


class Booking:
    """The listener: a plain function, so it runs in a thread and may block."""

    def __init__(self, ledger: Ledger, wanted: int) -> None:
        self._ledger = ledger
        self._left = wanted
        self._loop = asyncio.get_running_loop()
        self.done = asyncio.Event()
        self.last: tuple[list[StoredMessage], MessageQueue, int] | None = None

    def __call__(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        """Book; StaleToken is let out: the consumer logs it, and records no result of a queue that was lost."""
        booked = self._ledger.apply(context.queue, context.epoch, messages)
        self.last = messages, context.queue, context.epoch
        self._loop.call_soon_threadsafe(self._count, booked)  # several threads may be here at once
        return ConsumeStatus.SUCCESS

    def _count(self, booked: int) -> None:
        self._left -= booked
        if self._left == 0:
            self.done.set()


async def book(broker: str, path: str) -> dict[str, int]:
    """Ten payments of two accounts, booked by one owner and then tried again by a stale one."""
    ledger = Ledger(path, GROUP)
    async with Producer(broker) as producer:
        for number in range(10):
            account = f"account-{number % 2}"
            await producer.send(Message(TOPIC, f"{account} {number}".encode(), key=account))
    booking = Booking(ledger, wanted=10)
    async with (
        Consumer(broker, group=GROUP, listener=booking, topics={TOPIC: "*"}, batch=4),
        asyncio.timeout(30),
    ):
        await booking.done.wait()
    before = ledger.balances()
    print(f"booked: {before}")

    assert booking.last is not None
    messages, queue, epoch = booking.last
    print(f"delivered again to a later owner: {ledger.apply(queue, epoch + 1, messages)} booked")
    try:
        ledger.apply(queue, epoch, messages)
    except StaleToken as error:
        print(f"tried by the owner before: refused, {error}")
    else:
        raise SystemExit("fencing_sqlite: a stale token was taken")
    if ledger.balances() != before:
        raise SystemExit("fencing_sqlite: something was booked twice")
    return before


async def main() -> None:
    """With a broker and a database of our own."""
    with tempfile.TemporaryDirectory(prefix="rmq-ledger-") as folder:
        async with InMemoryBroker() as own:
            await book(own.address, f"{folder}/ledger.sqlite")


if __name__ == "__main__":
    asyncio.run(main())
