"""
An older backup in place of a broker's data: what is acknowledged after it is processed, or one error stops the queue.

Consumers of every kind read a topic while a backup is taken, read on, and meet a broker that starts on the backup and
gives the offsets they have read to other messages. Time is virtual; broker and consumers talk over loopback.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from rmq.broker.offline.backup import Backup, restore
from rmq.broker.store import history
from rmq.broker.store.directory import DataDirectory
from rmq.broker.store.history import EPOCHS_SINCE
from rmq.client import Admin, Message, Producer
from rmq.client.explain.wording import Reason
from rmq.consumer import Consumer, ConsumeStatus, PullConsumer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import LogTruncated, OtherHistory

from rigs.wall_clock import WallClock

pytestmark = pytest.mark.virtual_time

QUEUES: Final = 2
NOW_US: Final = (EPOCHS_SINCE + 27_000_000) * 1_000_000
TEN_DAYS_S: Final = 10 * 86_400.0
KINDS: Final = ("ordered", "concurrent", "broadcasting", "polling", "assigned")
WAYS: Final = ("restore", "cp", "cp in place")  # to put a backup back
CLOCKS: Final = ("stuck", "right", "ahead")
ALL_CELLS: Final = [(starts, by, clock) for starts in range(4) for by in WAYS for clock in CLOCKS]
CELLS: Final = [  # with every two values of different axes in one of them
    (starts, by, clock) for starts, by, clock in ALL_CELLS if (starts + WAYS.index(by) + CLOCKS.index(clock)) % 3 == 2
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`make chaos` runs all cells."""
    if "starts" in metafunc.fixturenames:
        cells = ALL_CELLS if metafunc.config.getoption("--chaos-seeds") else CELLS
        metafunc.parametrize(("starts", "by", "clock"), cells)


def clock_of(kind: str) -> WallClock:
    """Return a clock that stands still, is right, or is ten days ahead until the restore."""
    return WallClock(NOW_US, ahead_s=TEN_DAYS_S if kind == "ahead" else 0.0, is_stuck=kind == "stuck")


class Reader:
    """A consumer of one kind and what it got."""

    def __init__(self, address: str, group: str, kind: str, offsets: Path, **settings: Any) -> None:
        self.kind = kind
        self.got: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        settings = {"group": group, "now": asyncio.get_running_loop().time, **settings}
        self.of: Consumer | PullConsumer
        if kind == "assigned":
            self.of = PullConsumer(address, **settings)
            self.of.assign(("orders", queue_id) for queue_id in range(QUEUES))
        elif kind == "polling":
            self.of = PullConsumer(address, topics={"orders": "*"}, **settings)
        else:
            settings["topics"] = {"orders": "*"}
            if kind == "broadcasting":
                settings |= {"model": "broadcasting", "offsets_dir": str(offsets / group)}
            self.of = Consumer(address, listener=self._listen, orderly=kind != "concurrent", **settings)

    async def _listen(self, messages: Any, _: Any) -> ConsumeStatus:
        self.got += [message.body for message in messages]
        return ConsumeStatus.SUCCESS

    async def _poll(self, of: PullConsumer) -> None:
        async for batch in of:
            self.got += [message.body for message in batch]

    def start(self) -> None:
        self.of.start()
        if isinstance(self.of, PullConsumer):
            self._task = asyncio.create_task(self._poll(self.of))

    async def stop(self) -> None:
        await self.of.stop()
        if self._task is not None:
            await self._task


class Site:
    """A broker whose data is replaced by an older backup while consumers follow it."""

    def __init__(self, path: Path, clock: str) -> None:
        self.path = path
        self.clock = clock_of(clock)
        self.recognise_copies = True
        self.sent: dict[str, list[bytes]] = {"before": [], "live": [], "after": []}
        self.broker = self._broker("data")

    def _broker(self, name: str, listen: str = "127.0.0.1:0") -> InMemoryBroker:
        return InMemoryBroker(
            data_dir=str(self.path / name), wall_us=self.clock, listen=listen, min_free_bytes=0,
            recognise_copies=self.recognise_copies,
        )  # fmt: skip

    async def serve(self, name: str) -> None:
        """Start a broker on another folder in the place of the one that runs."""
        await self.broker.stop()
        self.broker = self._broker(name, self.broker.address)
        await self.broker.start()

    @property
    def log_epoch(self) -> int:
        return self.broker.broker._store.log_epoch

    async def send(self, era: str, count: int) -> None:
        where = Path(self.broker.config.data_dir).name
        bodies = [f"{era} {len(self.sent[era]) + i} in {where}".encode() for i in range(count)]
        async with Producer(self.broker.address) as producer:
            for i, body in enumerate(bodies):
                await producer.send(Message("orders", body), queue_id=i % QUEUES)
        self.sent[era] += bodies

    async def back_up(self, by: str) -> None:
        """Take the backup: of the running broker, or as a plain copy of the stopped one, which stays stopped."""
        if by == "restore":
            Backup(self.path / "data", self.path / "backup", self.broker.broker._store.log.durable).run()
        else:
            await self.broker.stop()
            shutil.copytree(self.path / "data", self.path / "backup")

    async def live_on(self) -> None:
        """Store messages that the backup does not have, and let those who are there read them."""
        await self.send("live", 20)
        await asyncio.sleep(15)

    async def put_back(self, by: str, to: str = "restored") -> None:
        """Replace the data by the backup, and store other messages before any consumer is back."""
        await self.broker.stop()
        self.clock.ahead_s = 0.0
        if by == "restore":
            restore(self.path / "backup", self.path / to)
        elif by == "cp":
            shutil.copytree(self.path / "backup", self.path / to)
        else:  # into the emptied folder: a volume that is mounted cannot be replaced
            to = "data"
            for entry in (self.path / to).iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            shutil.copytree(self.path / "backup", self.path / to, dirs_exist_ok=True)
        await self.serve(to)
        await self.send("after", 3 * len(self.sent["live"]) // 2 + 6)

    async def accept(self) -> None:
        async with Admin(self.broker.address) as admin:
            await admin.accept_history()


@asynccontextmanager
async def site(path: Path, clock: str = "stuck") -> AsyncIterator[Site]:
    made = Site(path, clock)
    await made.broker.start()
    try:
        async with Admin(made.broker.address) as admin:
            await admin.create_topic("orders", QUEUES)
        yield made
    finally:
        await made.broker.stop()


async def _lost(at: Site, *, starts: int, by: str) -> dict[str, list[bytes]]:
    """
    Run all kinds of consumers through a restore; returns what each of them missed of what came after it.

    The live broker is started so often after the backup. A plain copy is one of a stopped broker: if that is never
    started again, no message is lost and no group is younger than the copy.
    """
    make = lambda kind, of, **more: Reader(  # noqa: E731
        at.broker.address, f"{kind}-{of}", kind, at.path / "offsets", **more
    )
    stayed = [make(kind, "stayed") for kind in KINDS]
    returning = [make(kind, "returning") for kind in KINDS]
    for reader in stayed + returning:
        reader.start()
    await at.send("before", 10)
    await asyncio.sleep(8)
    await at.back_up(by)
    lives_on = by == "restore" or starts > 0
    young = [make(kind, "young", start_from="last") for kind in KINDS if lives_on]  # the backup does not know them
    for reader in young:
        reader.start()
    if by == "restore":
        await asyncio.sleep(8)
        await at.live_on()
    for _ in range(starts):
        await at.broker.restart()
        await asyncio.sleep(8)
        await at.live_on()
    assert bool(at.sent["live"]) == lives_on
    for reader in returning:
        await reader.stop()

    await at.put_back(by)
    new = [make(kind, "new") for kind in KINDS]
    returned = [make(kind, "returning") for kind in KINDS]
    for reader in new + returned:
        reader.start()
    await asyncio.sleep(60)
    stopped = {id(reader) for reader in stayed + returned + young if _is_stopped(reader)}
    assert all(reader.kind == "broadcasting" for reader in stayed + returned + young if id(reader) in stopped)
    if stopped:
        await at.accept()
        await asyncio.sleep(60)
    everyone = {"stayed": stayed, "returned": returned, "young": young, "new": new}
    lost = {
        f"{reader.kind} {name}": [body for body in at.sent["after"] if body not in reader.got]
        for name, readers in everyone.items()
        for reader in readers
    }
    for reader in stayed + returned + young + new:
        await reader.stop()
    return {name: bodies for name, bodies in lost.items() if bodies}


def _is_stopped(reader: Reader) -> bool:
    queues = reader.of.running_info()["queues"]
    return any("OTHER_HISTORY" in str(queue) for queue in queues)


async def test_what_is_acknowledged_after_a_restore_is_processed_by_everyone_also_if_it_first_stops_them(
    tmp_path: Path, starts: int, by: str, clock: str
) -> None:
    async with site(tmp_path, clock) as at:
        assert await _lost(at, starts=starts, by=by) == {}


@pytest.mark.parametrize("way", ["restore", "cp"])
async def test_epochs_that_are_only_counted_and_copies_that_are_not_recognised_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(history, "next_log_epoch", lambda last, *_: last + 1)
    monkeypatch.setattr(DataDirectory, "is_copy_of", lambda self, recorded: False)

    async with site(tmp_path) as at:
        lost = await _lost(at, starts=1, by=way)  # the live broker and the restored one count alike

    assert "broadcasting returned" in lost


@pytest.mark.parametrize("began_in", ["the original", "the first copy"])
async def test_a_broadcasting_member_misses_nothing_of_a_backup_that_is_restored_twice(
    tmp_path: Path, began_in: str
) -> None:
    async with site(tmp_path) as at:
        reader = Reader(at.broker.address, "prices", "broadcasting", tmp_path, start_from="last")
        await at.send("before", 10)
        await at.back_up("restore")
        if began_in == "the original":
            reader.start()
            await asyncio.sleep(2)
            await at.send("live", 20)
            await asyncio.sleep(8)
            await at.put_back("restore")
            await at.accept()
        else:
            await at.put_back("restore")
            reader.start()
            await asyncio.sleep(2)
            await at.send("live", 20)
        await asyncio.sleep(60)

        at.sent["after"].clear()
        await at.put_back("restore", to="restored-again")
        await asyncio.sleep(60)
        assert _is_stopped(reader)
        assert not set(at.sent["after"]) & set(reader.got)
        await at.accept()
        await asyncio.sleep(60)
        await reader.stop()

    assert set(at.sent["after"]) <= set(reader.got)


@contextmanager
def epochs_without_chance(step: int = 0) -> Iterator[None]:
    """Take the random part out of log epochs, so that a clock that stands still repeats them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history.secrets, "randbelow", lambda most: 0)
        if step:
            patch.setattr(history, "COPY_STEP", step)
        yield


async def test_a_broadcasting_member_that_began_at_an_end_which_a_rolled_back_disk_does_not_have_misses_nothing(
    tmp_path: Path,
) -> None:
    with epochs_without_chance():
        async with site(tmp_path, "right") as at:
            at.recognise_copies = False
            await at.send("before", 10)
            await at.back_up("cp")
            await at.broker.restart()
            await at.live_on()
            reader = Reader(at.broker.address, "prices", "broadcasting", tmp_path, start_from="last")
            reader.start()
            await asyncio.sleep(8)
            await reader.stop()
            assert not reader.got
            await at.put_back("cp")
            returned = Reader(at.broker.address, "prices", "broadcasting", tmp_path, start_from="last")
            returned.start()
            await asyncio.sleep(60)
            await returned.stop()

    assert set(at.sent["after"]) <= set(returned.got)


async def test_a_copy_that_cannot_be_recognised_and_has_the_epoch_of_the_original_is_told_by_its_start(
    tmp_path: Path,
) -> None:
    with epochs_without_chance():
        async with site(tmp_path) as at, Admin(at.broker.address) as admin:
            readers = [Reader(at.broker.address, f"{kind}-stayed", kind, tmp_path) for kind in KINDS]
            for reader in readers:
                reader.start()
            await at.send("before", 10)
            await asyncio.sleep(8)
            await at.back_up("cp")
            await at.broker.restart()
            await asyncio.sleep(8)
            await at.live_on()
            live_epoch = at.log_epoch
            tail = admin.tail("orders")
            await tail.begin()
            follower = asyncio.create_task(anext(tail.follow()))
            await asyncio.sleep(1)

            at.recognise_copies = False
            await at.put_back("cp")
            assert at.log_epoch == live_epoch
            with pytest.raises(LogTruncated, match="the broker is back with another store"):
                await follower
            await asyncio.sleep(60)
            assert [reader.kind for reader in readers if _is_stopped(reader)] == ["broadcasting"]
            await at.accept()
            await asyncio.sleep(60)
            for reader in readers:
                await reader.stop()

    assert {reader.kind for reader in readers if not set(at.sent["after"]) <= set(reader.got)} == set()


@pytest.mark.parametrize("between", ["data", "other"])
async def test_starts_of_a_copy_before_and_after_what_a_reader_has_read_elsewhere_do_not_hide_what_it_lacks(
    tmp_path: Path, between: str
) -> None:
    """The copy has messages from before the reader's, of an epoch lower than its own, and an epoch that is higher."""
    with epochs_without_chance(step=1):
        async with site(tmp_path, "right") as at, Admin(at.broker.address) as admin:
            await at.send("before", 10)
            await at.back_up("restore")
            restore(at.path / "backup", at.path / "other")
            await at.put_back("restore")
            await at.send("after", 20)
            first_epoch = at.log_epoch

            await asyncio.sleep(100)
            await at.serve(between)
            reader = Reader(at.broker.address, "prices", "broadcasting", tmp_path, start_from="last")
            reader.start()
            await asyncio.sleep(8)
            await at.live_on()
            assert set(at.sent["live"]) <= set(reader.got)
            tail = admin.tail("orders")
            await tail.begin()
            follower = asyncio.create_task(anext(tail.follow()))
            await asyncio.sleep(100)
            read_epoch = at.log_epoch
            await at.serve("restored")
            assert first_epoch < read_epoch < at.log_epoch

            with pytest.raises(OtherHistory if between == "data" else LogTruncated):
                await follower
            await asyncio.sleep(60)
            assert _is_stopped(reader)
            await at.accept()
            await asyncio.sleep(60)
            await reader.stop()

    assert set(at.sent["after"]) <= set(reader.got)


async def test_a_tail_stops_at_the_offset_where_the_histories_part_and_goes_on_when_that_is_accepted(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as at:
        await at.send("before", 10)
        await at.back_up("restore")
        await at.send("live", 20)
        async with Admin(at.broker.address) as admin:
            tail = admin.tail("orders", notice=lambda text: None)
            await tail.begin()
            follower = asyncio.create_task(anext(tail.follow()))
            await asyncio.sleep(1)
            await at.put_back("restore")
            with pytest.raises(OtherHistory, match=r"orders/. is what the reader has read up to offset 5, not 15"):
                await follower
            await at.accept()
            assert await anext(tail.follow())


async def test_explain_says_that_the_store_is_a_copy_and_up_to_where(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        reader = Reader(at.broker.address, "billing", "ordered", tmp_path)
        everyone = Reader(at.broker.address, "prices", "broadcasting", tmp_path)
        reader.start()
        everyone.start()
        await at.send("before", 10)
        await asyncio.sleep(8)
        await at.back_up("restore")
        await at.send("live", 20)
        await asyncio.sleep(8)
        await at.put_back("restore")
        await asyncio.sleep(20)
        async with Admin(at.broker.address) as admin:
            billing, prices = await admin.explain("billing"), await admin.explain("prices")
        await reader.stop()
        await everyone.stop()

    (note,) = [note for note in billing.notes if note.code == "STORE_COPIED"]
    assert "orders/0 up to offset 5, orders/1 up to offset 5" in note.sentence
    assert not billing.requires_action
    assert {story.reason for story in prices.queues} == {Reason.OTHER_HISTORY}
    assert "accept-history" in prices.queues[0].advice
