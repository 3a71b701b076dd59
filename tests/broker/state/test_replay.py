"""
What a restart and a crash bring back, seen by clients.

Which parked batches a start finds, and which of them were delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.state.deferred import ENTRY, DeferredBatch, DelayTable, DeliveryMark
from rmq.broker.state.replay import DeferredLog
from rmq.broker.store.changes import Attempted, Committed, DelaysReached, DelaysWaiting, TopicMade
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.errors import Fenced, LockHeld, NotAMember
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Push

from ..builders import Opened
from ..harness import Client, bodies, crash_copy, holder, until
from rigs.batches import MINIMAL, STAMP, quick, stamped

TICK_S = 0.1
OTHER = MessageQueue("orders", 1)


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def gone(broker: InMemoryBroker, how: str, path: Path) -> AsyncIterator[InMemoryBroker]:
    """The broker after it ended and came back: stopped cleanly, or as ``kill -9`` leaves it."""
    if how == "restart":
        await broker.restart()
        yield broker
        return
    copy = crash_copy(broker, path / "copy")
    await broker.stop()
    async with copy:
        yield copy


both = pytest.mark.parametrize("how", ["restart", "crash"])


@pytest.mark.virtual_time
@both
async def test_topics_messages_offsets_and_attempts_come_back(
    broker: InMemoryBroker, memory_path: Path, how: str
) -> None:
    client, epoch = await holder(broker)
    made = await client.create("payments", 3)
    await client.send(b"a", b"b", b"c")
    await client.commit(epoch, 1)
    await client.attempt(epoch, 1, 4)
    store_id = client.hello.store_id
    await client.connection.close()

    async with gone(broker, how, memory_path) as after, Client(after) as reader:
        assert await reader.route("payments") == made
        assert bodies(await reader.pull(0)) == [b"a", b"b", b"c"]
        assert (await reader.range())[:5] == (0, 0, 3, 1, None)
        (row,) = await reader.locks()
        assert row.state == "grace, retrying offset 1 (attempt 5)"
        assert reader.hello.store_id == store_id


@pytest.mark.virtual_time
@both
async def test_leases_come_back_to_their_session_and_every_later_epoch_is_higher(
    broker: InMemoryBroker, memory_path: Path, how: str
) -> None:
    client, epoch = await holder(broker)
    session = client.connection.session
    await client.send(b"a")
    await client.commit(epoch, 1)
    log_epoch = client.hello.log_epoch
    await client.connection.close()

    async with gone(broker, how, memory_path) as after:
        back, other = Client(after, "a"), Client(after, "b")
        back.connection.session = session
        async with back, other:
            assert [tuple(lease) for lease in back.hello.leases] == [("g", "orders", 0, epoch, 1, -1, 0, [])]
            assert back.hello.log_epoch > log_epoch
            await back.join()
            await other.join()
            assert (await other.acquire()).status == LockHeld.code
            assert (await back.renew(epoch)).status == 0
            assert (await back.commit(epoch, 1)).status == 0
            grant = await back.acquire()
            assert grant.epoch > epoch
            assert grant.epoch >> 32 == back.hello.log_epoch
            assert (await back.commit(epoch, 1)).status == Fenced.code


@pytest.mark.virtual_time
@both
async def test_a_released_lease_does_not_come_back(broker: InMemoryBroker, memory_path: Path, how: str) -> None:
    client, epoch = await holder(broker)
    await client.release(epoch)
    await client.connection.close()

    async with gone(broker, how, memory_path) as after, Client(after, "b") as other:
        await other.join()
        assert await other.locks() == []
        assert (await other.acquire()).epoch > epoch


@pytest.mark.virtual_time
async def test_epochs_rise_over_a_crash_right_after_a_grant(broker: InMemoryBroker, memory_path: Path) -> None:
    client, first = await holder(broker)
    copies = [crash_copy(broker, memory_path / "one")]
    grant = await client.acquire()
    copies.append(crash_copy(broker, memory_path / "two"))
    await client.connection.close()

    for copy, before in zip(copies, (first, grant.epoch), strict=True):
        async with copy, Client(copy, "b") as other:
            await other.join()
            await until(now() + 5.0 + 2 * TICK_S)
            assert (await other.acquire()).epoch > before


@pytest.mark.virtual_time
async def test_restored_leases_are_freed_after_the_grace_unless_their_owner_is_back(broker: InMemoryBroker) -> None:
    one, first = await holder(broker, "a", keep_alive=True)
    async with Client(broker, "x") as lost:
        await lost.join()
        assert (await lost.acquire(OTHER)).status == 0

    await broker.restart()
    ready = now()
    await one.connection.wait_connected()
    assert [lease.epoch for lease in one.hello.leases] == [first]
    async with one, Client(broker, "b", keep_alive=True) as two:
        await one.join()
        await two.join()
        await until(ready + 4.9)
        assert (await two.acquire(OTHER)).status == LockHeld.code
        await until(ready + 5.0 + 2 * TICK_S)

        assert two.of(Push.LEASE_FREE) == [["g", "orders", 1]]
        assert (await two.acquire(OTHER)).status == 0
        assert (await one.renew(first)).status == 0
        assert (await two.acquire()).status == LockHeld.code


@pytest.mark.virtual_time
async def test_a_shorter_grace_does_not_hold_for_owners_who_know_the_longer_one(broker: InMemoryBroker) -> None:
    client, _ = await holder(broker)
    await client.connection.close()

    broker.config = replace(broker.config, grace_s=1.0, ping_s=0.5)
    for _ in range(2):  # a second restart at once does not make them know better
        await broker.restart()
    ready = now()

    async with Client(broker, "b") as other:
        await other.join()
        await until(ready + 5.0)
        assert (await other.acquire()).status == LockHeld.code
        await until(ready + 5.0 + 2 * TICK_S)
        assert (await other.acquire()).status == 0


@pytest.mark.virtual_time
async def test_a_shorter_grace_holds_when_the_longer_one_is_over(broker: InMemoryBroker) -> None:
    broker.config = replace(broker.config, grace_s=1.0, ping_s=0.5)
    await broker.restart()
    await until(now() + 5.0 + 1.0 + TICK_S)
    client, _ = await holder(broker)
    await client.connection.close()

    await broker.restart()

    async with Client(broker, "b") as other:
        await other.join()
        await until(now() + 1.0 + 2 * TICK_S)
        assert (await other.acquire()).status == 0


@pytest.mark.virtual_time
async def test_a_longer_grace_holds_at_once(broker: InMemoryBroker) -> None:
    client, _ = await holder(broker)
    await client.connection.close()

    broker.config = replace(broker.config, grace_s=8.0)
    await broker.restart()
    ready = now()

    async with Client(broker, "b") as other:
        await other.join()
        await until(ready + 8.0)
        assert (await other.acquire()).status == LockHeld.code
        await until(ready + 8.0 + 2 * TICK_S)
        assert (await other.acquire()).status == 0


@pytest.mark.virtual_time
async def test_owners_of_restored_leases_are_members_before_they_join_again(broker: InMemoryBroker) -> None:
    one, _ = await holder(broker, "a", keep_alive=True)
    async with one, Client(broker, "b", keep_alive=True) as two:
        await two.join()
        assert (await two.acquire(OTHER)).status == 0

        await broker.restart()
        await two.connection.wait_connected()
        await one.connection.wait_connected()
        two.pushes.clear()

        assert (await two.join()).members == [one.member, two.member]
        assert (await one.join()).members == [one.member, two.member]
        await until(now() + 5.0 + 2 * TICK_S)
        assert two.pushes == []


@pytest.mark.virtual_time
async def test_an_owner_that_does_not_come_back_is_a_member_for_its_grace(broker: InMemoryBroker) -> None:
    lost, _ = await holder(broker, "a")
    await lost.connection.close()

    await broker.restart()
    ready = now()

    async with Client(broker, "b") as other:
        assert (await other.join()).members == [lost.member, other.member]
        await until(ready + 5.0)
        assert other.pushes == []
        await until(ready + 5.0 + 2 * TICK_S)
        assert [told[:2] for told in other.of(Push.MEMBERS_CHANGED)] == [["g", [other.member]]]


@pytest.mark.virtual_time
async def test_an_owner_that_is_back_but_has_not_joined_gets_no_further_queue(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker, keep_alive=True)
    async with one:
        await broker.restart()
        await one.connection.wait_connected()

        with pytest.raises(NotAMember):
            await one.acquire(OTHER)
        assert (await one.renew(epoch)).status == 0


@pytest.mark.virtual_time
async def test_progress_that_rode_on_a_pull_is_in_the_log_within_100_ms(
    broker: InMemoryBroker, memory_path: Path
) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")
        await client.pull(2, group="g", epoch=epoch, commit=2)
        early = crash_copy(broker, memory_path / "early")
        await until(now() + 0.1 + 0.001)
        late = crash_copy(broker, memory_path / "late")

    async with early, Client(early) as reader:
        assert await reader.committed() == -1
    async with late, Client(late) as reader:
        assert await reader.committed() == 2


@pytest.mark.virtual_time
async def test_progress_that_rode_on_a_pull_survives_a_clean_stop_at_once(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    await client.send(b"a", b"b", b"c")
    await client.pull(2, group="g", epoch=epoch, commit=2)
    await client.connection.close()

    await broker.restart()

    async with Client(broker) as reader:
        assert await reader.committed() == 2


@pytest.mark.virtual_time
async def test_progress_that_a_new_owner_received_is_never_lost(broker: InMemoryBroker, memory_path: Path) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two:
        await two.join()
        await one.send(b"a", b"b", b"c")
        await one.pull(2, group="g", epoch=epoch, commit=2)
        await one.release(epoch)
        assert (await two.acquire()).committed_offset == 2
        copy = crash_copy(broker, memory_path / "copy")

    async with copy, Client(copy) as reader:
        assert await reader.committed() == 2


@pytest.mark.virtual_time
async def test_whatever_was_acknowledged_is_in_a_copy_made_right_then(
    broker: InMemoryBroker, memory_path: Path
) -> None:
    async with Client(broker) as client:
        await client.create()
        copies = []
        for i in range(5):
            await client.send(b"%d" % i)
            copies.append(crash_copy(broker, memory_path / str(i)))

    for i, copy in enumerate(copies):
        async with copy, Client(copy) as reader:
            assert bodies(await reader.pull(0)) == [b"%d" % j for j in range(i + 1)]


@pytest.mark.virtual_time
async def test_an_offset_after_the_end_of_a_shortened_queue_is_lowered_and_said_so(
    memory_path: Path, logs: list[dict[str, object]]
) -> None:
    opened = Opened(memory_path)
    opened.store.stage_changes([TopicMade("orders", 1, 4, 4, 0), Committed("g", "orders", 0, 5)])
    opened.append(b"a", b"b")
    opened.close()

    for _ in range(2):
        async with InMemoryBroker(data_dir=str(memory_path)) as broker, Client(broker) as client:
            assert await client.committed() == 2

    (entry,) = [entry for entry in logs if entry["event"] == "offset.lowered"]
    assert (entry["queue"], entry["was"], entry["now"]) == ("orders/0", 5, 2)


@pytest.mark.virtual_time
async def test_failed_deliveries_of_a_message_that_the_log_lost_are_forgotten_for_good(
    memory_path: Path, logs: list[dict[str, object]]
) -> None:
    opened = Opened(memory_path)
    lost, kept = Attempted("g", "orders", 0, 2, 4), Attempted("h", "orders", 0, 1, 3)
    opened.store.stage_changes([TopicMade("orders", 1, 4, 4, 0), lost, kept])
    opened.append(b"a", b"b")
    opened.close()

    for _ in range(2):
        async with InMemoryBroker(data_dir=str(memory_path)) as broker, Client(broker) as client:
            await client.send(b"another")  # at the offset of the lost one
            await client.join("g")
            await client.join("h")
            assert (await client.acquire(group="g"))[3:5] == (-1, 0)
            assert (await client.acquire(group="h"))[3:5] == (1, 3)
            await client.leave(group="g")
            await client.leave(group="h")

    (entry,) = [entry for entry in logs if entry["event"] == "progress.forgotten"]
    assert (entry["group"], entry["queue"], entry["since"]) == ("g", "orders/0", 2)


DATA = batches.encode("orders", 0, MINIMAL, delay_level=1)


def header(position: int, due_at: int) -> layout.Header:
    by = STAMP._replace(physical_offset=position, base_offset=due_at, kind=layout.KIND_PARKED)
    return layout.parse_header(stamped(DATA, by))


def left(log: DeferredLog) -> list[tuple[int, int]]:
    table = DelayTable()
    log.fill(table)
    return [entry[:2] for entry in table.page(DeliveryMark(), 10_000)]


def origin(position: int) -> int:
    return batches.handle(position, 0)


def test_what_was_parked_and_not_delivered_waits() -> None:
    log = DeferredLog()
    for position, due_at in [(8, 50), (16, 20), (24, 30)]:
        log.deferred(header(position, due_at))

    assert log.delivered(origin(16))

    assert left(log) == [(30, 24), (50, 8)]


def test_what_comes_before_a_delivered_batch_was_passed() -> None:
    log = DeferredLog()
    for position, due_at in [(8, 50), (16, 20), (24, 30)]:
        log.deferred(header(position, due_at))

    assert log.delivered(origin(24))

    assert left(log) == [(50, 8)]


def test_a_copy_of_something_else_is_no_delivery() -> None:
    log = DeferredLog()
    log.deferred(header(16, 20))

    assert [log.delivered(origin(position)) for position in (8, 24, 1 << 40)] == [False] * 3
    assert left(log) == [(20, 16)]


def test_a_checkpoint_tells_what_waits_and_how_far_delivery_was() -> None:
    log = DeferredLog()
    log.apply(DelaysReached(20, 16))
    log.apply(DelaysWaiting(ENTRY.pack(30, 24, 1, 1) + ENTRY.pack(50, 8, 1, 1)))
    log.apply(DelaysWaiting(ENTRY.pack(60, 4, 1, 1)))
    log.deferred(header(32, 55))

    assert not log.delivered(origin(16))
    assert log.delivered(origin(24))
    assert log.delivered(origin(8))

    assert left(log) == [(55, 32), (60, 4)]


def test_what_a_snapshot_has_reached_does_not_wait() -> None:
    """Segments that begin with a snapshot tell the watermark only."""
    log = DeferredLog()
    log.deferred(header(8, 20))
    log.apply(DelaysReached(20, 8))
    log.apply(DelaysReached(10, 16))
    log.deferred(header(24, 20))

    table = DelayTable()
    log.fill(table)

    assert table.reached == DeliveryMark(20, 8)
    assert table.page(DeliveryMark(), 9) == [DeferredBatch(20, 24, len(DATA), 1)]


@pytest.mark.parametrize("tidy", [1, 10, 1000])
def test_what_was_delivered_takes_no_memory(tidy: int) -> None:
    log = DeferredLog(tidy)

    for i in range(1, 500):
        log.deferred(header(8 * i, i))
        assert log.delivered(origin(8 * i))
        assert len(log._positions) <= tidy + 3

    assert left(log) == []


@quick
@given(st.data())
def test_any_log_says_what_a_broker_that_never_stopped_would(data: st.DataObject) -> None:
    log, table, end = DeferredLog(tidy=3), DelayTable(), 8
    for _ in range(data.draw(st.integers(0, 30))):
        if data.draw(st.integers(0, 9)) == 0:  # it stops, and starts with a clock that was set back
            table.set_back(data.draw(st.integers(0, 9)))
            if data.draw(st.booleans()):
                log.apply(DelaysReached(*table.reached))
        if data.draw(st.booleans()) or not len(table):
            entry = DeferredBatch(table.earliest(data.draw(st.integers(1, 9))), end, len(DATA), 1)
            table.add(entry)
            log.deferred(header(end, entry.due_at))
        else:
            (first,) = table.page(DeliveryMark(), 1)
            table.reach(DeliveryMark(*first[:2]))
            assert log.delivered(origin(first.position))
        end += 8

    assert left(log) == [entry[:2] for entry in table.page(DeliveryMark(), 100)]
