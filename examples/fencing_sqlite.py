"""
The fencing token at work: a listener whose effects go to SQLite, and a stale owner whose effects are refused.

    python examples/fencing_sqlite.py

``context.epoch`` grows with every owner of a queue. The sink keeps the highest it has seen of each queue, in the same
transaction as the effect: whoever comes with a lower one has lost the queue, whether it knows that or not, and nothing
of it is written. The offset beside it makes the effect idempotent: what is delivered again changes nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing

from rmq.broker.testing import InMemoryBroker
from rmq.client import Message, Producer
from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus, MessageQueue, StoredMessage

TOPIC = "payments"
SCHEMA = """
CREATE TABLE IF NOT EXISTS owner (
    topic TEXT, queue_id INTEGER, epoch INTEGER NOT NULL, next_offset INTEGER NOT NULL, PRIMARY KEY (topic, queue_id)
);
CREATE TABLE IF NOT EXISTS balance (account TEXT PRIMARY KEY, amount INTEGER NOT NULL);
"""


class StaleToken(Exception):
    """The queue has another owner by now: nothing was written."""


class Ledger:
    """Balances of accounts. Each method is one transaction."""

    def __init__(self, path: str) -> None:
        # Listeners run in threads: each call opens the file for itself, and SQLite lets one write at a time.
        self._path = path
        with closing(self._open()) as database:
            database.executescript(SCHEMA)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30, isolation_level=None)

    def apply(self, queue: MessageQueue, epoch: int, messages: list[StoredMessage]) -> int:
        """
        Book the messages of a queue that are not booked yet; says how many those were.

        Raises:
            StaleToken: somebody with a higher epoch has written before.
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
            "SELECT epoch, next_offset FROM owner WHERE topic = ? AND queue_id = ?", queue
        ).fetchone()
        highest, next_offset = row or (epoch, 0)
        if epoch < highest:
            raise StaleToken(f"{queue} was written under epoch {highest}: {epoch} is too old")
        new = [message for message in messages if message.queue_offset >= next_offset]
        for message in new:
            account, amount = message.body.decode().split()
            database.execute(
                "INSERT INTO balance VALUES (?1, ?2) ON CONFLICT (account) DO UPDATE SET amount = amount + ?2",
                (account, int(amount)),
            )
        if new:
            next_offset = new[-1].queue_offset + 1
        database.execute("INSERT OR REPLACE INTO owner VALUES (?, ?, ?, ?)", (*queue, epoch, next_offset))
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
        """Book; a stale token is no success, and what is returned then counts for nothing anyway."""
        try:
            booked = self._ledger.apply(context.queue, context.epoch, messages)
        except StaleToken:
            return ConsumeStatus.SUSPEND
        self.last = messages, context.queue, context.epoch
        self._loop.call_soon_threadsafe(self._count, booked)  # several threads may be here at once
        return ConsumeStatus.SUCCESS

    def _count(self, booked: int) -> None:
        self._left -= booked
        if self._left == 0:
            self.done.set()


async def book(broker: str, path: str) -> dict[str, int]:
    """Ten payments of two accounts, booked by one owner and then tried again by a stale one."""
    ledger = Ledger(path)
    async with Producer(broker) as producer:
        for number in range(10):
            account = f"account-{number % 2}"
            await producer.send(Message(TOPIC, f"{account} {number}".encode()), sharding_key=account)
    booking = Booking(ledger, wanted=10)
    async with (
        Consumer(broker, group="ledger", listener=booking, topics={TOPIC: "*"}, batch=4),
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
