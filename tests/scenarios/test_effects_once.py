"""The exactly-once recipe of docs/listeners.md over crashes, take-overs and restored backups, on a virtual clock."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from fencing_sqlite import Ledger, StaleToken

from rmq.broker.offline.backup import Backup, restore
from rmq.broker.store import history
from rmq.client import Admin, Message, MessageNotFound, Producer
from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus, PullConsumer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import StoredMessage

from rigs.fleet import Connections
from rigs.stalling_broker import StallingBroker
from rigs.wall_clock import WallClock

pytestmark = pytest.mark.virtual_time

DOCS: Final = Path(__file__).parents[2] / "docs"
TOPIC, GROUP = "payments", "ledger"
NOW_US: Final = (history.EPOCHS_SINCE + 27_000_000) * 1_000_000
AHEAD_S: Final = 10 * 86_400
WAIT_S: Final = 300  # on the virtual clock: longer than any lease, grace or pause

Copy = Callable[[InMemoryBroker, Path], None]
Look = Callable[[str], Awaitable[None]]
ID_LINES: Final = re.search(r"```python\n(first = .*?)```", (DOCS / "listeners.md").read_text(), re.DOTALL)


async def nothing(address: str) -> None:
    """Ask the restored broker for nothing."""


def by_restore(live: InMemoryBroker, to: Path) -> None:
    """Back up a running broker, and restore the backup."""
    backup = to.with_name("backup")
    Backup(Path(live.config.data_dir), backup, live.broker._store.log.durable).run()
    restore(backup, to)


def by_cp(live: InMemoryBroker, to: Path) -> None:
    """Copy the folder of a broker, which does nothing meanwhile."""
    shutil.copytree(live.config.data_dir, to)


class Sink:
    """The ledger of the example with a listener that books; each payment is 1, to an account of its own."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(str(folder / "ledger.sqlite"), GROUP)
        self.sent: list[str] = []
        self.may_book = asyncio.Event()
        self.may_return = asyncio.Event()
        self.may_book.set()
        self.may_return.set()
        self.given: list[int] = []  # offsets
        self.refused: list[StaleToken] = []

    async def listener(self, messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        self.given += [message.queue_offset for message in messages]
        await self.may_book.wait()
        try:
            self.book(messages, context)
        except StaleToken as error:
            self.refused.append(error)
            raise
        await self.may_return.wait()
        return ConsumeStatus.SUCCESS

    def book(self, messages: list[StoredMessage], context: ConsumeContext) -> None:
        """Book what is not booked yet."""
        self.ledger.apply(context.queue, context.epoch, messages)

    def booked(self) -> dict[str, int]:
        """Return how often each payment was booked."""
        return self.ledger.balances()

    def member(self, address: str, **settings: Any) -> Consumer:
        """Return a member of the group that books."""
        now = asyncio.get_running_loop().time
        return Consumer(address, group=GROUP, listener=self.listener, topics={TOPIC: "*"}, batch=4, now=now, **settings)

    async def send(self, address: str, name: str, count: int, *, delay_level: int = 0) -> None:
        """Send so many payments; returns when all are acknowledged."""
        async with Producer(address) as producer:
            for number in range(count):
                body = f"{name}-{number} 1".encode()
                await producer.send(Message(TOPIC, body, delay_level=delay_level), queue_id=0)
                self.sent.append(f"{name}-{number}")

    async def missing(self) -> set[str]:
        """Wait until all that was sent is booked; returns what is not booked after that."""
        for _ in range(WAIT_S):
            if not (missing := set(self.sent) - set(self.booked())):
                break
            await asyncio.sleep(1)
        return missing

    @property
    def repeated(self) -> dict[str, int]:
        """Payments that were booked more than once."""
        return {name: times for name, times in self.booked().items() if times != 1}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder where syncing costs nothing, if the system has one."""
    with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as made:
        yield Path(made)


@pytest.fixture
async def sink(folder: Path) -> Sink:
    return Sink(folder)


async def lose_what_follows_a_backup(
    folder: Path, sink: Sink, *, copy: Copy = by_restore, starts: int = 1, clock: WallClock, stays: bool = True,
    recognise_copies: bool = True, deferred: int = 0, look: Look = nothing,
) -> set[str]:  # fmt: skip
    """
    Book payments, restore a copy that lacks the last of them, send others, and return those that are not booked.

    The live broker is started so often after the copy was made. The group's member stays connected all the time, or
    another one comes to the restored broker. Of the payments in the copy so many are not due yet.
    """
    async with AsyncExitStack() as stack:
        live = InMemoryBroker(data_dir=str(folder / "live"), wall_us=clock)
        await live.start()
        before = await stack.enter_async_context(sink.member(live.address))
        await sink.send(live.address, "committed", 3)
        assert not await sink.missing()
        await asyncio.sleep(10)
        sink.may_return.clear()
        await sink.send(live.address, "booked", 1)  # the copy does not know that this one is done
        assert not await sink.missing()
        await sink.send(live.address, "deferred", deferred, delay_level=4)
        copy(live, folder / "restored")
        sink.may_return.set()
        for start in range(starts + 1):
            await sink.send(live.address, f"lost-{start}", 2)
            assert not await sink.missing()
            if start < starts:
                await live.restart()
        await live.stop()
        if not stays:
            await before.stop()

        clock.ahead_s = 0
        settings: dict[str, Any] = {"data_dir": str(folder / "restored"), "listen": live.address}
        again = InMemoryBroker(**settings, wall_us=clock, recognise_copies=recognise_copies)
        stack.push_async_callback(again.stop)
        await again.start()
        if not stays:
            await stack.enter_async_context(sink.member(again.address))
        await sink.send(again.address, "late", 2 * (starts + 1) + 3)  # more than were lost
        missing = await sink.missing()
        await asyncio.sleep(60)  # what the copy had deferred is due
        await look(again.address)
        return missing


CLOCKS: Final[dict[str, dict[str, Any]]] = {
    "goes on": {},
    "stands still": {"is_stuck": True},
    "was 10 days ahead": {"ahead_s": AHEAD_S},
}


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "new"])
@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("copy", [by_restore, by_cp])
@pytest.mark.parametrize("starts", range(4))
async def test_after_a_restore_every_message_is_booked_once_and_none_again(
    folder: Path, sink: Sink, *, starts: int, copy: Copy, clock: str, stays: bool
) -> None:
    now = WallClock(NOW_US, **CLOCKS[clock])
    missing = await lose_what_follows_a_backup(folder, sink, copy=copy, starts=starts, clock=now, stays=stays)

    assert not missing
    assert not sink.repeated
    assert not sink.refused
    assert sink.given.count(3) == 2  # booked, but not committed in the copy


async def test_a_rolled_back_disk_is_told_by_its_epochs_while_the_clock_goes_on(folder: Path, sink: Sink) -> None:
    missing = await lose_what_follows_a_backup(
        folder, sink, copy=by_cp, clock=WallClock(NOW_US), recognise_copies=False
    )

    assert not missing
    assert not sink.repeated


async def test_a_mark_without_the_log_epoch_is_caught(
    folder: Path, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoredMessage, "log_epoch", 0)  # what remains is the offset

    missing = await lose_what_follows_a_backup(folder, sink, clock=WallClock(NOW_US))

    assert missing == {f"late-{number}" for number in range(4)}  # they have the offsets of those that were lost


async def test_log_epochs_that_only_count_starts_are_caught(
    folder: Path, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "next_log_epoch", lambda last, *_: last + 1)

    assert await lose_what_follows_a_backup(folder, sink, clock=WallClock(NOW_US))


class Ids(Sink):
    """A sink that keeps the ids of messages, by the lines of docs/listeners.md, and the id with each effect."""

    def __init__(self, folder: Path, *, orderly: bool) -> None:
        super().__init__(folder)
        self._orderly = orderly
        self._database = sqlite3.connect(folder / "ids.sqlite")
        self._database.execute("CREATE TABLE booked (consumer_group TEXT, id TEXT, PRIMARY KEY (consumer_group, id))")
        self.effects: list[tuple[str, str]] = []  # payment and id

    def book(self, messages: list[StoredMessage], context: object) -> None:
        assert ID_LINES is not None
        for message in messages:
            scope: dict[str, Any] = {"message": message, "database": self._database, "group": GROUP}
            exec(ID_LINES[1], scope)
            if scope["is_new"]:
                self.effects.append((message.body.decode().split()[0], scope["first"]))

    def booked(self) -> dict[str, int]:
        return Counter(name for name, _ in self.effects)

    def member(self, address: str, **settings: Any) -> Consumer:
        return super().member(address, orderly=self._orderly, **settings)


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "new"])
@pytest.mark.parametrize("orderly", [True, False], ids=["orderly", "concurrent"])
@pytest.mark.parametrize(
    ("starts", "copy", "clock"),
    [
        (0, by_cp, "goes on"),
        (0, by_restore, "was 10 days ahead"),
        (1, by_cp, "was 10 days ahead"),
        (3, by_restore, "goes on"),
    ],
)
async def test_ids_as_keys_book_once_also_copies_and_without_order(
    folder: Path, *, starts: int, copy: Copy, clock: str, orderly: bool, stays: bool
) -> None:
    sink, gone = Ids(folder, orderly=orderly), set()

    async def find_effects_of_messages_that_are_gone(address: str) -> None:
        async with Admin(address) as admin:
            for name, message_id in sink.effects:
                try:
                    await admin.message(message_id)
                except MessageNotFound:
                    gone.add(name)

    missing = await lose_what_follows_a_backup(
        folder, sink, copy=copy, starts=starts, clock=WallClock(NOW_US, **CLOCKS[clock]), stays=stays, deferred=2,
        look=find_effects_of_messages_that_are_gone,
    )  # fmt: skip

    assert not missing
    assert not sink.repeated
    assert gone == {name for name in sink.sent if name.startswith("lost")}


async def test_a_message_that_was_booked_before_a_crash_is_not_booked_again(folder: Path, sink: Sink) -> None:
    heir, wire = Sink(folder), Connections()
    async with InMemoryBroker() as broker:
        dead = sink.member(broker.address, connect=wire)
        dead.start()
        sink.may_return.clear()
        await sink.send(broker.address, "payment", 1)
        assert not await sink.missing()
        await wire.crash()
        async with heir.member(broker.address):
            await sink.send(broker.address, "later", 3)
            assert not await sink.missing()
        sink.may_return.set()
        await dead.stop()

    assert heir.given == [0, 1, 2, 3]
    assert not sink.repeated


async def test_an_owner_that_lost_its_queue_books_nothing(folder: Path, sink: Sink) -> None:
    heir, wire = Sink(folder), Connections()
    async with InMemoryBroker() as broker:
        stale = sink.member(broker.address, connect=wire)
        stale.start()
        sink.may_book.clear()
        await sink.send(broker.address, "payment", 2)
        await asyncio.sleep(1)
        await wire.crash()
        async with heir.member(broker.address):
            assert not await sink.missing()
            sink.may_book.set()
            await asyncio.sleep(1)
        await stale.stop()

    assert sink.given and sink.refused
    assert not sink.repeated


async def test_an_owner_at_the_broker_that_was_replaced_books_nothing_once_the_restored_one_has(
    folder: Path, sink: Sink
) -> None:
    heir, clock = Sink(folder), WallClock(NOW_US, is_stuck=True)
    async with InMemoryBroker(data_dir=str(folder / "live"), wall_us=clock) as live, sink.member(live.address):
        await sink.send(live.address, "payment", 2)
        assert not await sink.missing()
        by_restore(live, folder / "restored")
        await live.restart()
        async with (
            InMemoryBroker(data_dir=str(folder / "restored"), wall_us=clock) as again,
            heir.member(again.address),
        ):
            await heir.send(again.address, "late", 2)
            assert not await heir.missing()
            await Sink(folder).send(live.address, "unwanted", 1)
            await asyncio.sleep(1)

    assert sink.refused
    assert set(sink.booked()) == {*sink.sent, *heir.sent}
    assert not sink.repeated


async def test_messages_that_took_the_offsets_of_those_a_power_cut_lost_are_booked(folder: Path, sink: Sink) -> None:
    async with StallingBroker(data_dir=str(folder / "data"), flush="async") as broker, sink.member(broker.address):
        await sink.send(broker.address, "kept", 2)
        assert not await sink.missing()
        await asyncio.sleep(1)
        broker.stall()
        await sink.send(broker.address, "lost", 2)
        assert not await sink.missing()
        await broker.crash(folder / "after", kept=0.0)
        await sink.send(broker.address, "late", 3)
        assert not await sink.missing()

    assert not sink.repeated


async def test_listeners_polls_and_tails_show_the_start_that_stored_a_message() -> None:
    heard: list[int] = []

    async def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        heard.extend(message.log_epoch for message in messages)
        return ConsumeStatus.SUCCESS

    now, epochs = asyncio.get_running_loop().time, []
    async with InMemoryBroker() as broker:
        for start in range(3):
            async with Producer(broker.address) as producer:
                await producer.send_bodies(TOPIC, [b"1", b"2"], queue_id=0)
            epochs += [broker.broker._store.log_epoch] * 2
            if start < 2:
                await broker.restart()
        async with Consumer(broker.address, group="g", listener=listener, topics={TOPIC: "*"}, now=now):
            await asyncio.sleep(5)
        async with PullConsumer(broker.address, group="p", batch=6) as polling:
            polling.subscribe(TOPIC)
            polled = [message.log_epoch for _ in range(3) for message in await polling.poll()]
        async with Admin(broker.address) as admin:
            newest = await admin.tail(TOPIC).newest(6, now=datetime.now(UTC))

    assert epochs == sorted(epochs) and len(set(epochs)) == 3
    assert heard == polled == [message.log_epoch for message in newest.messages] == epochs
