"""Histories: a copy of a data directory gets ids and epochs of its own, and anything else keeps those it has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq.broker.store.consume_queue import MAX_EPOCHS, ConsumeQueue
from rmq.broker.store.directory import DataDirectory, StoreError
from rmq.broker.store.history import (
    COPY_STEP,
    EPOCH_SPREAD,
    EPOCHS_SINCE,
    NO_HISTORY,
    Parted,
    PositionRefused,
    next_log_epoch,
)
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.errors import LogTruncated, OtherHistory, Refused
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.ops.core import Join, Op, QueueRef, Range, Ranges
from rmq.wire.protocol.ops.messages import GetMessage
from rmq.wire.stores import MAX_LOG_EPOCH, FormerStore, StoreIds

from ..harness import Client

NOW = EPOCHS_SINCE + 27_000_000  # seconds
DAY = 86_400


@pytest.mark.parametrize(
    ("last", "clock", "spread", "step", "epoch"),
    [
        (0, NOW, 5, 0, 27_000_000),  # the first start
        (26_999_999, NOW, 5, 0, 27_000_000),
        (27_000_000, NOW, 5, 0, 27_000_006),  # a clock that stands still
        (28_000_000, NOW, 0, 0, 28_000_001),  # one that was set back
        (3, 0, 0, 0, 4),  # one that was never set
        (3, EPOCHS_SINCE + (1 << 32), 0, 0, 4),  # one that would use up all epochs
        (26_000_000, NOW, 5, COPY_STEP, 27_000_000 + COPY_STEP),
        (27_000_000, NOW, 5, COPY_STEP, 27_000_006 + COPY_STEP),
        (MAX_LOG_EPOCH - 1, NOW, 0, 0, MAX_LOG_EPOCH),
        (MAX_LOG_EPOCH - 1, NOW, 0, COPY_STEP, MAX_LOG_EPOCH),
        (MAX_LOG_EPOCH - 1, NOW, 5, 0, MAX_LOG_EPOCH),
    ],
)
def test_a_log_epoch_is_above_the_last_one_and_follows_the_clock(
    last: int, clock: int, spread: int, step: int, epoch: int
) -> None:
    assert next_log_epoch(last, clock * 1_000_000, spread, step) == epoch


def test_a_store_that_has_used_all_epochs_does_not_start() -> None:
    with pytest.raises(StoreError, match="was the last one of this store"):
        next_log_epoch(MAX_LOG_EPOCH, NOW * 1_000_000)


@pytest.mark.parametrize("starts", range(4))
@pytest.mark.parametrize("ahead_s", [0, 10 * DAY])
def test_a_copy_never_uses_an_epoch_of_the_original_also_if_a_clock_stands_still_or_was_ahead(
    starts: int, ahead_s: int
) -> None:
    backed_up = next_log_epoch(0, NOW * 1_000_000)
    live = backed_up
    for _ in range(starts):
        live = next_log_epoch(live, (NOW + ahead_s) * 1_000_000, EPOCH_SPREAD - 1)

    assert next_log_epoch(backed_up, NOW * 1_000_000, 0, COPY_STEP) > live


def test_a_position_belongs_to_the_store_that_wrote_it() -> None:
    stores = StoreIds(1).copied(2, 100, 5, 0).copied(3, 250, 9, 0)

    assert stores == StoreIds(3, [FormerStore(1, 100, 5), FormerStore(2, 250, 9)])
    assert [stores.at(position) for position in (0, 99, 100, 249, 250, 1 << 40)] == [1, 1, 2, 2, 3, 3]
    assert [stores.has(store_id) for store_id in (0, 1, 2, 3)] == [False, True, True, True]


A_COPY = StoreIds(7).copied(8, 1000, 6, 0)


@pytest.mark.parametrize(
    ("stores", "log_epoch", "offset", "parted"),
    [
        (StoreIds(7), 1, 3, None),  # all that the reader has was there when the next epoch began
        (StoreIds(7), 1, 5, None),
        (StoreIds(7), 1, 6, Parted(5, is_copy=False)),  # it had a message that was lost: another took its offset
        (StoreIds(7), 1, 100, Parted(5, is_copy=False)),
        (StoreIds(7), 2, 5, None),  # under 2 nothing was stored here
        (StoreIds(7), 2, 7, Parted(5, is_copy=False)),
        (StoreIds(7), 3, 9, None),
        (StoreIds(7), 3, 12, Parted(9, is_copy=False)),
        (StoreIds(7), 6, 12, None),  # the newest epoch that stored something
        (StoreIds(7), 6, 13, Parted(12, is_copy=False)),  # the start after it found less
        (StoreIds(7), 8, 13, None),  # this start: the readable end is for others to judge
        (StoreIds(7), 9, 2, Parted(0, is_copy=True, is_known=False)),  # this log was never as far
        (A_COPY, 1, 6, Parted(5, is_copy=False)),  # a crash before the copy
        (A_COPY, 3, 9, None),  # what the copy has of the original
        (A_COPY, 3, 10, Parted(9, is_copy=True)),
        (A_COPY, 5, 10, Parted(9, is_copy=True)),  # a start of the original that the copy does not know
        (A_COPY, 6, 13, Parted(12, is_copy=False)),  # a crash after it
        (StoreIds(7).copied(8, 1000, 8, 0), 6, 13, Parted(12, is_copy=True)),  # nothing was stored since the copy
    ],
)
def test_a_reader_and_a_queue_part_where_a_later_epoch_began_below_what_the_reader_has(
    stores: StoreIds, log_epoch: int, offset: int, parted: Parted | None
) -> None:
    queue = ConsumeQueue()
    queue.restore(0, 12, [1, 0, 3, 5, 6, 9])
    history = NO_HISTORY._replace(stores=stores, log_epoch=8)

    assert history.parted(queue, log_epoch, offset) == parted


def test_where_more_starts_than_a_queue_remembers_lie_between_reader_and_copy_nothing_is_taken_for_agreed() -> None:
    queue = ConsumeQueue()
    queue.restore(0, 400, [number for start in range(MAX_EPOCHS) for number in (100 + start, 10 * start + 50)])
    history = NO_HISTORY._replace(stores=A_COPY, log_epoch=200)

    assert history.parted(queue, 5, 20) == Parted(0, is_copy=True, is_known=False)
    assert history.parted(queue, 99, 50) is None
    assert history.parted(queue, 120, 300) == Parted(260, is_copy=False)


@pytest.mark.parametrize(
    ("here", "before", "epoch"),
    [
        (StoreIds(7), StoreIds(7), 9),
        (A_COPY, StoreIds(7), 5),  # the copy began under 6
        (StoreIds(7).copied(8, 1000, 12, 0), StoreIds(7), 9),
        (StoreIds(7), A_COPY, 1),  # back to the original: the reader may have messages of the copy
        (A_COPY, StoreIds(7).copied(9, 1000, 8, 0), 1),  # another copy of the same store
        (StoreIds(3), StoreIds(7), 0),
    ],
)
def test_stores_have_epochs_in_common_up_to_where_one_was_copied(here: StoreIds, before: StoreIds, epoch: int) -> None:
    assert here.common_epoch(before, 9) == epoch


ORDERS = MessageQueue("orders", 0)


@pytest.mark.parametrize(
    ("in_group", "accepted", "error"),
    [
        (False, False, OtherHistory),
        (False, True, LogTruncated),
        (True, False, LogTruncated),
        (True, True, LogTruncated),
    ],
)
def test_a_reader_in_a_copy_stops_until_it_is_accepted_and_a_group_goes_back(
    in_group: bool, accepted: bool, error: type[Refused]
) -> None:
    queue = ConsumeQueue()
    queue.restore(0, 12, [3, 0, 6, 9])
    history = NO_HISTORY._replace(stores=A_COPY, log_epoch=8, accepted=accepted)

    with pytest.raises(PositionRefused, match="orders/0 is what the reader has read up to offset 9, not 10") as raised:
        history.check(queue, ORDERS, 5, 10, in_group=in_group)

    assert (raised.value.code, raised.value.next_offset) == (error.code, 9)
    with pytest.raises(PositionRefused, match=r"nothing shows how far it has what .* orders/0 up to 4"):
        history.check(queue, ORDERS, 9, 4, in_group=in_group)
    history.check(queue, ORDERS, 3, 9, in_group=in_group)


@pytest.mark.parametrize(
    ("one", "other", "related"),
    [
        (StoreIds(1), StoreIds(1), True),
        (StoreIds(1), StoreIds(2), False),
        (StoreIds(1).copied(2, 9, 5, 0), StoreIds(1), True),
        (StoreIds(1).copied(2, 9, 5, 0), StoreIds(1).copied(3, 9, 5, 0), True),  # two copies
        (StoreIds(1).copied(2, 9, 5, 0), StoreIds(4).copied(3, 9, 5, 0), False),
    ],
)
def test_stores_are_related_by_an_id_that_both_have_or_had(one: StoreIds, other: StoreIds, related: bool) -> None:
    assert one.is_related(other) is related
    assert other.is_related(one) is related


Change = Callable[[Path], Path]


def _copied(data: Path) -> Path:
    return Path(shutil.copytree(data, data.with_name("copy")))


def _copied_in_its_place(data: Path) -> Path:
    copy = _copied(data)
    shutil.rmtree(data)
    shutil.move(copy, data)
    return data


def _copied_into_the_same_directory(data: Path) -> Path:
    copy = _copied(data)
    for entry in data.iterdir():
        _without(entry.name)(data)
    shutil.copytree(copy, data, dirs_exist_ok=True)
    return data


def _moved(data: Path) -> Path:
    return data.rename(data.with_name("moved"))


def _left(data: Path) -> Path:
    return data


def _without(name: str) -> Change:
    def change(data: Path) -> Path:
        path = data / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        return data

    return change


async def _filled(data: Path) -> tuple[int, int, int, str]:
    """Fill a data directory; returns its store id, log epoch and the epoch of a lease, and a message's id."""
    async with InMemoryBroker(data_dir=str(data)) as broker, Client(broker, "m") as client:
        await client.create("orders", 1)
        await client.send(b"before")
        await client.join()
        grant = await client.acquire()
        (message,) = await _stored(client)
        return client.hello.store_id, client.hello.log_epoch, grant.epoch, message.message_id


async def _stored(client: Client) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    end = (await client.range()).max_offset
    while len(found) < end:
        read = batches.read_all((await client.pull(len(found))).batches, stores=client.hello.stores)
        found += [message for batch in read for message in batch.messages()]
    return found


async def _body(client: Client, message_id: str) -> bytes:
    batch, indexes = await client.request(Op.GET_MESSAGE, GetMessage(message_id))
    return batches.read(batch, stores=client.hello.stores).pick(indexes)[0].body


@pytest.mark.parametrize(
    "change", [_left, _moved, _without("config"), _without("checkpoint"), _without("consumequeue")]
)
async def test_a_restart_or_a_move_is_no_copy(memory_path: Path, change: Change) -> None:
    store_id, log_epoch, _, _ = await _filled(memory_path / "data")
    data = change(memory_path / "data")

    async with InMemoryBroker(data_dir=str(data)) as broker, Client(broker) as client:
        assert (client.hello.store_id, client.hello.former) == (store_id, [])
        assert client.hello.log_epoch > log_epoch


@pytest.mark.parametrize("change", [_copied, _copied_in_its_place, _copied_into_the_same_directory])
async def test_a_copy_takes_a_new_id_ends_leases_and_keeps_the_ids_of_its_messages(
    memory_path: Path, change: Change
) -> None:
    store_id, log_epoch, lease_epoch, before = await _filled(memory_path / "data")
    data = change(memory_path / "data")

    for start in range(2):  # the second one is an ordinary restart
        async with InMemoryBroker(data_dir=str(data)) as broker, Client(broker, f"other {start}") as client:
            hello = client.hello
            assert hello.store_id != store_id and [former.store_id for former in hello.former] == [store_id]
            assert hello.log_epoch > log_epoch
            await client.join()
            grant = await client.acquire()
            assert grant.epoch > lease_epoch  # no lease that came with the copy is in the way
            await client.send(b"after %d" % start)
            messages = await _stored(client)
            assert messages[0].message_id == before
            assert messages[-1].message_id.startswith(f"{hello.store_id:016x}")
            for message in messages:
                assert await _body(client, message.message_id) == message.body
            await client.release(grant.epoch)


async def test_where_copies_are_not_to_be_recognised_epochs_alone_tell_histories_apart(memory_path: Path) -> None:
    store_id, log_epoch, _, _ = await _filled(memory_path / "data")

    async with (
        InMemoryBroker(data_dir=str(_copied(memory_path / "data")), recognise_copies=False) as broker,
        Client(broker) as client,
    ):
        assert client.hello.store_id == store_id and client.hello.log_epoch > log_epoch


async def test_two_starts_never_have_the_same_start_id(memory_path: Path) -> None:
    seen = set()
    for _ in range(3):
        async with InMemoryBroker(data_dir=str(memory_path / "data")) as broker, Client(broker) as client:
            seen.add(client.hello.start_id)

    assert len(seen) == 3 and 0 not in seen


def test_a_directory_made_again_under_the_same_inode_is_distinguished_by_its_birth(memory_path: Path) -> None:
    directory = DataDirectory(memory_path)
    place = directory.place()
    directory.close()

    assert place.inode == os.stat(memory_path / "commitlog").st_ino
    again = DataDirectory(memory_path)
    assert not again.is_copy_of(place)
    assert again.is_copy_of(place._replace(inode=place.inode + 1))
    assert not again.is_copy_of(place._replace(inode=0, born_ns=0))  # logs of older versions do not say
    if place.born_ns:
        assert again.is_copy_of(place._replace(born_ns=place.born_ns + 1))
    again.close()


async def test_what_an_operator_accepted_survives_a_crash_and_ends_with_the_next_copy(memory_path: Path) -> None:
    await _filled(memory_path / "data")
    data = _copied(memory_path / "data")

    async with InMemoryBroker(data_dir=str(data)) as broker, Client(broker) as client:
        assert await client.request(Op.ACCEPT_HISTORY, ()) == [client.hello.store_id, False]
        assert await client.request(Op.ACCEPT_HISTORY, ()) == [client.hello.store_id, True]
        crashed = Path(shutil.copytree(data, data.with_name("crashed")))  # what a kill would leave

    for directory, recognise_copies, accepted in ((data, True, True), (crashed, False, True), (crashed, True, True)):
        async with (
            InMemoryBroker(data_dir=str(directory), recognise_copies=recognise_copies) as broker,
            Client(broker) as client,
        ):
            assert (await client.request(Op.ACCEPT_HISTORY, ()))[1] is accepted
    again = shutil.copytree(data, data.with_name("again"))
    async with InMemoryBroker(data_dir=str(again)) as broker, Client(broker) as client:
        assert (await client.request(Op.ACCEPT_HISTORY, ()))[1] is False


async def test_a_group_that_the_copy_does_not_know_begins_where_the_histories_part(memory_path: Path) -> None:
    _, log_epoch, _, _ = await _filled(memory_path / "data")

    async with InMemoryBroker(data_dir=str(_copied(memory_path / "data"))) as broker, Client(broker, "m") as client:
        await client.send(b"other", b"more")
        for group, since, begins in (("young", 0, 3), ("went-along", log_epoch, 1)):
            join = Join(group, True, "clustering", "average", {"orders": "*"}, ["orders"], since)
            await client.request(Op.JOIN, join)
            assert await client.committed(group=group) == begins
        held = await client.request(Op.RANGES, Ranges(None, [QueueRef("orders", 0)], log_epoch))
        assert Range(*held[0]).agreed == 1


@pytest.mark.parametrize("recognise_copies", [True, False])
async def test_copies_of_one_backup_that_start_at_the_same_time_use_different_epochs(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, recognise_copies: bool
) -> None:
    _, log_epoch, _, _ = await _filled(memory_path / "data")
    chances = iter([7, 4000, 500])
    monkeypatch.setattr("rmq.broker.store.history.secrets.randbelow", lambda most: next(chances))
    epochs = set()
    for name in "abc":
        data = shutil.copytree(memory_path / "data", memory_path / name)
        async with (
            InMemoryBroker(
                data_dir=str(data), wall_us=lambda: NOW * 1_000_000, recognise_copies=recognise_copies
            ) as broker,
            Client(broker) as client,
        ):
            epochs.add(client.hello.log_epoch)

    assert len(epochs) == 3 and min(epochs) > log_epoch


async def test_epochs_that_the_clock_does_not_carry_differ_in_two_starts_after_the_same_one(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restore the clock is behind for weeks; a disk that is rolled back then must not use the same epochs."""
    await _filled(memory_path / "data")
    data = _copied(memory_path / "data")
    async with InMemoryBroker(data_dir=str(data)) as broker, Client(broker) as client:
        restored = client.hello.log_epoch
    snapshot = shutil.copytree(data, memory_path / "snapshot")

    chances = iter([7, 4000])
    monkeypatch.setattr("rmq.broker.store.history.secrets.randbelow", lambda most: next(chances))
    epochs = []
    for directory in (data, snapshot):
        async with (
            InMemoryBroker(data_dir=str(directory), recognise_copies=False) as broker,
            Client(broker) as client,
        ):
            epochs.append(client.hello.log_epoch)

    assert epochs == [restored + 8, restored + 4001]


async def test_an_id_of_which_messages_are_left_is_never_forgotten(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.broker.store.history.MAX_FORMER", 2)
    store_id, _, _, before = await _filled(memory_path / "0")
    for copy in range(1, 5):
        data = shutil.copytree(memory_path / str(copy - 1), memory_path / str(copy))
        async with InMemoryBroker(data_dir=str(data)) as broker, Client(broker) as client:
            former = [one.store_id for one in client.hello.former]
            assert len(former) == copy and former[0] == store_id
            assert (await _stored(client))[0].message_id == before
