"""
Pulls that wait for the disk, with threads, turns and time by hand.

The line of pulls and the sweep, with arrivals, turns and time by hand.

Pulls of members that want some tags: what is sent, what wakes, and changes while they wait.

Pulls of members that want some tags, at the real broker: joining, joining again, leaving, restarts.

Random scripts of arrivals, pulls, threads, turns and time: nobody misses what it wants, or is told to pass it.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq.broker.store.rebuild import read_head
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.errors import (
    BadRequest,
    Damaged,
    Fenced,
    Internal,
    LogTruncated,
    MessagesLost,
    OffsetOutOfRange,
    QueueNotFound,
    StoreFailed,
    TooManyInFlight,
    TopicNotFound,
)
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, Op, OutgoingBatch, Pull, PullQueue, PullResult
from rmq.wire.stores import StoreIds

from ..builders import ORDERS, Opened, make_batch, segment_files
from ..fakes import BIG, ECHO, Peer, request
from ..harness import Client, bodies, holder, until
from ..pull_rig import OTHER, Member, Rig
from rigs.disk.faulty import flip

TICK_S = 0.1
OTHER_PLAIN = MessageQueue("orders", 1)


def parked(broker: InMemoryBroker) -> int:
    return len(broker.broker._parked_pulls)


async def settled(broker: InMemoryBroker, count: int) -> None:
    """Until so many pulls are parked; the clock does not move."""
    for _ in range(1000):
        if parked(broker) == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{parked(broker)} pulls are parked, not {count}")


@pytest.mark.virtual_time
async def test_a_pull_gives_whole_batches_the_first_of_which_may_begin_before(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a", b"b", b"c")
        await client.send(b"d")

        result = await client.pull(1)

        assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (0, 4, 0, 4)
        assert bodies(result) == [b"a", b"b", b"c", b"d"]
        assert bodies(result, 1) == [b"b", b"c", b"d"]


@pytest.mark.virtual_time
async def test_a_pull_gives_one_batch_however_few_bytes_it_wants(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a" * 1000)
        await client.send(b"b")

        result = await client.pull(0, max_bytes=1)

        assert (bodies(result), result.next_offset) == ([b"a" * 1000], 1)
        assert bodies(await client.pull(0, max_bytes=-5)) == [b"a" * 1000]


@pytest.mark.virtual_time
async def test_a_pull_of_several_queues_lists_only_those_that_have_something(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"x", to=MessageQueue("orders", 2))

        results = await client.pull_many(*(PullQueue("orders", i, 0) for i in range(4)))

        assert [(result.index, result.status, bodies(result)) for result in results] == [(2, 0, [b"x"])]


@pytest.mark.virtual_time
@pytest.mark.parametrize("offset", [-1, -(1 << 63), 3, (1 << 64) - 1])
async def test_an_offset_outside_of_the_queue_is_reported_with_its_bounds(broker: InMemoryBroker, offset: int) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a", b"b")

        result = await client.pull(offset, wait_ms=15_000)

        assert (result.status, result.min_offset, result.max_offset) == (OffsetOutOfRange.code, 0, 2)
        assert result.text == f"offset {offset} is out of range: orders/0 holds 0 to 2"


@pytest.mark.virtual_time
async def test_a_queue_with_an_error_does_not_hide_the_others(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a")

        results = await client.pull_many(PullQueue("orders", 1, 9), PullQueue("orders", 0, 0))

        assert [(result.index, result.status) for result in results] == [(0, OffsetOutOfRange.code), (1, 0)]


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("pull", "error", "text"),
    [
        (Pull(None, 0, 1, [PullQueue("nothing", 0, 0)]), TopicNotFound, "there is no topic 'nothing'"),
        (Pull(None, 0, 1, [PullQueue("orders", 9, 0)]), QueueNotFound, "has the queues 0 to 3, not 9"),
        (Pull(None, 0, 1, []), BadRequest, "a pull names no queue"),
        (
            Pull(None, 0, 1, [PullQueue("orders", 0, 0)] * 1025),
            BadRequest,
            "at most 1024 entries, not 1025",
        ),
    ],
)
async def test_a_pull_of_what_is_not_there_is_refused(
    broker: InMemoryBroker, pull: Pull, error: type[Exception], text: str
) -> None:
    async with Client(broker) as client:
        await client.create()

        with pytest.raises(error, match=text):
            await client.request(Op.PULL, pull)
        assert await client.request(Op.PING, []) == []


# ---- parking
@pytest.mark.virtual_time
async def test_without_a_wait_an_empty_queue_is_answered_at_once(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        before = asyncio.get_running_loop().time()

        assert await client.pull(0) == (0, EMPTY, 0, 0, 0, b"", None)
        assert asyncio.get_running_loop().time() == before


@pytest.mark.virtual_time
async def test_a_pull_that_finds_nothing_waits_15_s_and_lists_all_its_queues_as_empty(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        before = asyncio.get_running_loop().time()

        results = await client.pull_many(*(PullQueue("orders", i, 0) for i in range(3)), wait_ms=15_000)

        assert [(result.index, result.status) for result in results] == [(0, EMPTY), (1, EMPTY), (2, EMPTY)]
        assert 15.0 <= asyncio.get_running_loop().time() - before <= 15.0 + TICK_S + 1e-6
        assert parked(broker) == 0


@pytest.mark.virtual_time
async def test_no_pull_is_held_longer_than_the_broker_allows() -> None:
    async with InMemoryBroker(max_park_s=2.0) as broker, Client(broker) as client:
        await client.create()
        before = asyncio.get_running_loop().time()

        assert (await client.pull(0, wait_ms=1 << 40)).status == EMPTY
        assert asyncio.get_running_loop().time() - before <= 2.0 + TICK_S + 1e-6


@pytest.mark.virtual_time
async def test_an_arrival_wakes_a_parked_pull_at_once(broker: InMemoryBroker) -> None:
    async with Client(broker) as client, Client(broker, "sender") as sender:
        await client.create()
        pull = asyncio.create_task(client.pull(0, wait_ms=15_000))
        await settled(broker, 1)
        await until(7.03)

        await sender.send(b"a")
        result = await pull

        assert (bodies(result), result.max_offset) == ([b"a"], 1)
        assert asyncio.get_running_loop().time() == 7.03
        assert broker.broker._pulls.rescued == 0


@pytest.mark.virtual_time
async def test_an_arrival_in_another_queue_wakes_no_pull(broker: InMemoryBroker) -> None:
    async with Client(broker) as client, Client(broker, "sender") as sender:
        await client.create()
        pull = asyncio.create_task(client.pull(0, wait_ms=15_000))
        await settled(broker, 1)

        await sender.send(b"a", to=OTHER_PLAIN)

        assert (await pull).status == EMPTY
        assert asyncio.get_running_loop().time() >= 15.0


@pytest.mark.virtual_time
async def test_an_arrival_wakes_every_pull_that_waits_for_it(broker: InMemoryBroker) -> None:
    async with Client(broker) as one, Client(broker, "two") as two:
        await one.create()
        queues = (PullQueue("orders", 1, 0), PullQueue("orders", 0, 0))
        pulls = [
            asyncio.create_task(one.pull_many(*queues, wait_ms=15_000)),
            asyncio.create_task(one.pull_many(*queues, wait_ms=15_000)),
            asyncio.create_task(two.pull_many(*queues, wait_ms=15_000)),
        ]
        await settled(broker, 3)

        await two.send(b"a")

        for pull in pulls:
            assert [(result.index, bodies(result)) for result in await pull] == [(1, [b"a"])]


@pytest.mark.virtual_time
async def test_a_pull_and_an_arrival_of_the_same_turn_meet_in_either_order(broker: InMemoryBroker) -> None:
    async with Client(broker) as one, Client(broker, "two") as two:
        await one.create()
        for offset in range(0, 40, 2):
            if offset % 4:
                pull = asyncio.create_task(one.pull(offset, wait_ms=15_000))
                send = asyncio.create_task(two.send(b"a", b"b"))
            else:
                send = asyncio.create_task(two.send(b"a", b"b"))
                pull = asyncio.create_task(one.pull(offset, wait_ms=15_000))
            await send
            assert bodies(await pull) == [b"a", b"b"]

        assert asyncio.get_running_loop().time() == 0.0
        assert broker.broker._pulls.rescued == 0


@pytest.mark.virtual_time
async def test_the_sweep_finds_nothing_to_do_while_arrivals_are_reported(broker: InMemoryBroker) -> None:
    async with Client(broker) as client, Client(broker, "sender") as sender:
        await client.create()
        for offset in range(20):
            pull = asyncio.create_task(client.pull(offset, wait_ms=15_000))
            await asyncio.sleep(1.3)
            await sender.send(b"x")
            await pull

        assert broker.broker._pulls.rescued == 0


@pytest.mark.virtual_time
async def test_pulls_of_a_lost_connection_are_forgotten(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        pull = asyncio.create_task(client.pull(0, wait_ms=15_000))
        await settled(broker, 1)

        await client.blip()
        assert parked(broker) == 0
        with pytest.raises(ConnectionError):
            await pull


# ---- fencing


async def refused(client: Client, epoch: int | None, *, group: str = "g", offset: int = 0) -> PullResult:
    result = await client.pull(offset, group=group, epoch=epoch)
    assert result.status == Fenced.code
    assert result.text
    return result


@pytest.mark.virtual_time
async def test_only_the_holder_of_a_queue_may_pull_it_for_its_group(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "two") as two:
        await two.join()
        await two.send(b"a")

        assert bodies(await one.pull(0, group="g", epoch=epoch)) == [b"a"]
        await refused(one, None)
        await refused(one, epoch - 1)
        await refused(one, epoch + 1)
        await refused(two, epoch)
        await refused(two, None)
        await refused(one, epoch, group="other")
        assert bodies(await two.pull(0)) == [b"a"]  # a free read is not fenced


@pytest.mark.virtual_time
async def test_a_concurrent_group_needs_a_lease_too(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.join(ordered=False)
        await client.send(b"a")
        await refused(client, None)
        await refused(client, 5)

        grant = await client.acquire()
        assert bodies(await client.pull(0, group="g", epoch=grant.epoch)) == [b"a"]


@pytest.mark.virtual_time
async def test_a_group_without_members_needs_a_lease(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()

        await refused(client, None, group="unknown")


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["acquire", "release", "leave", "expire"])
async def test_a_parked_pull_of_an_old_epoch_is_answered_when_its_lease_moves(broker: InMemoryBroker, how: str) -> None:
    client, epoch = await holder(broker)
    async with client:
        free = asyncio.create_task(client.pull(0, wait_ms=29_000))
        await settled(broker, 1)
        if how == "expire":
            await until(50.0)
        pull = asyncio.create_task(client.pull(0, group="g", epoch=epoch, wait_ms=29_000))
        await settled(broker, 1 if how == "expire" else 2)
        before = asyncio.get_running_loop().time()

        if how == "acquire":
            await client.acquire()
        elif how == "release":
            await client.release(epoch)
        elif how == "leave":
            await client.leave((*ORDERS, epoch, -1))  # type: ignore[arg-type]
        result = await pull

        assert result.status == Fenced.code
        after = asyncio.get_running_loop().time()
        assert after == before if how != "expire" else 60.0 < after < 60.0 + 2 * TICK_S
        if how != "expire":
            assert parked(broker) == 1  # the free read waits on
        assert (await free).status == EMPTY


@pytest.mark.virtual_time
async def test_a_parked_pull_of_the_live_epoch_is_not_disturbed_by_other_leases(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        pull = asyncio.create_task(client.pull(0, group="g", epoch=epoch, wait_ms=15_000))
        await settled(broker, 1)

        grant = await client.acquire(OTHER_PLAIN)
        await client.release(grant.epoch, queue=OTHER_PLAIN)
        await client.join("other")
        await client.acquire(group="other")

        assert (await pull).status == EMPTY
        assert asyncio.get_running_loop().time() >= 15.0


# ---- progress that rides along
@pytest.mark.virtual_time
async def test_progress_on_a_pull_is_seen_at_once(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")
        await client.pull(2, group="g", epoch=epoch, commit=2)

        assert await client.committed() == 2


@pytest.mark.virtual_time
async def test_progress_on_a_fenced_or_impossible_pull_is_ignored(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")

        await client.pull(0, group="g", epoch=epoch - 1, commit=2)
        await client.pull(0, group="g", epoch=epoch, commit=4)
        await client.pull(0, group="g", epoch=epoch, commit=-7)
        await client.pull(0, commit=2)
        assert await client.committed() == -1

        await client.pull(2, group="g", epoch=epoch, commit=2)
        await client.pull(2, group="g", epoch=epoch, commit=1)
        assert await client.committed() == 2


class Fence(Member):
    """Refuses what is under another epoch than the newest; it wants everything."""

    epoch = 7

    def __init__(self) -> None:
        super().__init__()
        self.expression = None

    def check_pull(self, session: bytes, group: str, queue: MessageQueue, epoch: int | None) -> None:
        if epoch != self.epoch:
            raise Fenced(f"epoch {epoch} is not {self.epoch}")


class RigCold(Rig):
    """Nothing of the store is in memory."""

    def __init__(self, path: Path) -> None:
        self.fence = Fence()
        super().__init__(path, member=self.fence, recent_bytes=0, segment_bytes=700, entries_per_file=3)
        self.store = self.opened.store
        for i in range(9):
            self.opened.append(b"%d" % i * 50)
        self.opened.append(b"other", to=OTHER)
        self.files.cold = True

    def pull(self, request_id: int, *queues: PullQueue, group: str | None = None, wait_ms: int = 0) -> None:
        self.peer.send(request(request_id, Op.PULL, Pull(group, wait_ms, 1 << 20, list(queues))))

    def results(self, peer: Peer | None = None) -> list[tuple[Any, ...]]:
        """(request, status, next offset, bodies) of each part of all answers."""
        found = []
        for _, request_id, status, parts in (peer or self.peer).answers():
            if status:
                found.append((request_id, status))
                continue
            for _, code, following, *_, data, _ in parts:
                bodies = [m.body for batch in batches.read_all(data, stores=StoreIds(1)) for m in batch.messages()]
                found.append((request_id, code, following, bodies))
        return found


@pytest.fixture
def rig_cold(memory_path: Path) -> Iterator[RigCold]:
    rig_cold = RigCold(memory_path)
    yield rig_cold
    rig_cold.store.abandon()


def orders(offset: int, *, epoch: int | None = None, log_epoch: int = 0) -> PullQueue:
    return PullQueue(*ORDERS, offset, epoch, NO_OFFSET, log_epoch)


def shorten(rig_cold: RigCold) -> int:
    """Retention removes all that it may; the first offset that is left."""
    segment = rig_cold.store.log.segments[-2]
    head = read_head(rig_cold.files, str(segment.path), segment.start)
    assert head is not None
    gone, _ = rig_cold.store.forget_before(segment.start, head.changes)
    for old in gone:
        old.path.unlink()
    return rig_cold.store.queue(ORDERS).min_offset


def test_what_is_not_in_memory_is_answered_when_a_thread_has_read_it(rig_cold: RigCold) -> None:
    rig_cold.pull(1, orders(0))
    assert (rig_cold.results(), len(rig_cold.pool)) == ([], 1)

    rig_cold.pool.run()

    assert rig_cold.results() == [(1, 0, 9, [b"%d" % i * 50 for i in range(9)])]
    assert rig_cold.pulls.cold_reads == 1


def test_a_pull_of_several_cold_queues_is_answered_whole(rig_cold: RigCold) -> None:
    rig_cold.pull(1, orders(5), PullQueue(*OTHER, 0))
    while rig_cold.pool.run():
        assert rig_cold.peer.turns.turn() is None

    assert rig_cold.results() == [(1, 0, 9, [b"%d" % i * 50 for i in range(5, 9)]), (1, 0, 1, [b"other"])]


def test_others_are_served_while_one_waits_for_the_disk(rig_cold: RigCold) -> None:
    rig_cold.pull(1, orders(0))
    rig_cold.pull(2, orders(9))
    rig_cold.files.cold = False
    rig_cold.pull(3, orders(8))

    assert rig_cold.results() == [(2, EMPTY, 9, []), (3, 0, 9, [b"8" * 50])]


def test_a_connection_reads_one_after_the_other(rig_cold: RigCold) -> None:
    for i in range(4):
        rig_cold.pull(i, orders(8))
    other = Peer(rig_cold.service, rig_cold.turns)
    other.send(request(9, Op.PULL, Pull(None, 0, 1 << 20, [orders(8)])))
    assert len(rig_cold.pool) == 2  # one for each connection

    answered = []
    while rig_cold.pool.run(1):
        answered += [result[0] for result in rig_cold.results()]
    assert answered == [0, 1, 2, 3]
    assert [result[0] for result in rig_cold.results(other)] == [9]


def test_a_lease_that_was_lost_meanwhile_gets_nothing(rig_cold: RigCold) -> None:
    rig_cold.pull(1, orders(0, epoch=7), group="g")
    rig_cold.fence.epoch = 8

    rig_cold.pool.run()

    assert rig_cold.results() == [(1, Fenced.code, 0, [])]


def test_a_topic_that_was_made_again_meanwhile_is_read_again(rig_cold: RigCold) -> None:
    rig_cold.pull(1, orders(0))
    rig_cold.store.drop_topic("orders", 1)
    rig_cold.opened.generation = 2
    rig_cold.opened.append(b"new")

    rig_cold.pool.run()
    rig_cold.turns.turn()
    rig_cold.pool.run()

    assert rig_cold.results() == [(1, 0, 1, [b"new"])]


def test_a_topic_that_is_gone_meanwhile_has_no_such_offset(rig_cold: RigCold) -> None:
    rig_cold.pull(1, orders(3))
    rig_cold.store.drop_topic("orders", 1)

    rig_cold.pool.run()

    assert rig_cold.results() == [(1, OffsetOutOfRange.code, 3, [])]


@pytest.mark.parametrize("when", ["before the thread reads", "before the loop is told", "before the pull"])
def test_what_retention_took_is_reported_as_lost_with_where_to_go_on(rig_cold: RigCold, when: str) -> None:
    if when == "before the pull":
        first = shorten(rig_cold)
        rig_cold.pull(1, orders(0))
    else:
        rig_cold.pull(1, orders(0))
        ((job, done),) = rig_cold.pool.jobs
        rig_cold.pool.jobs.clear()
        result: Any = job() if when == "before the loop is told" else None
        first = shorten(rig_cold)
        if result is None:
            with pytest.raises(FileNotFoundError) as failure:
                job()
            result = failure.value
        done(result)

    assert first > 0
    assert rig_cold.results() == [(1, MessagesLost.code, first, [])]


def test_what_the_disk_cannot_read_is_damaged_with_where_to_go_on(rig_cold: RigCold) -> None:
    rig_cold.files.fail("read", "commitlog", errno.EIO)
    rig_cold.pull(1, orders(0))
    rig_cold.pool.run()
    assert rig_cold.results() == [(1, Damaged.code, 1, [])]

    rig_cold.files.heal()
    rig_cold.pull(2, orders(1))
    rig_cold.pool.run()
    assert rig_cold.results()[0][:3] == (2, 0, 9)


def test_a_flipped_byte_is_damaged_and_the_following_batches_are_read(rig_cold: RigCold) -> None:
    first = segment_files(rig_cold.path)[0]
    flip(first, first.read_bytes().index(b"1" * 50))

    answers = []
    for i, offset in enumerate((0, 1, 2)):
        rig_cold.pull(i, orders(offset))
        rig_cold.pool.run()
        answers += rig_cold.results()

    assert answers == [
        (0, 0, 1, [b"0" * 50]), (1, Damaged.code, 2, []), (2, 0, 9, [b"%d" % i * 50 for i in range(2, 9)]),
    ]  # fmt: skip


def test_a_disk_that_fails_otherwise_is_no_damage(rig_cold: RigCold) -> None:
    rig_cold.files.fail("open_to_read", "commitlog", errno.EMFILE)
    rig_cold.pull(1, orders(0))
    rig_cold.pool.run()

    assert rig_cold.results() == [(1, StoreFailed.code, 0, [])]


def test_a_connection_that_closed_meanwhile_is_forgotten(rig_cold: RigCold) -> None:
    rig_cold.pull(1, orders(0))
    rig_cold.pull(2, orders(0))
    rig_cold.peer.connection.abort()
    rig_cold.pulls.closed(rig_cold.peer.connection)

    rig_cold.pool.run()
    rig_cold.turns.turn()

    assert (rig_cold.peer.taken(), len(rig_cold.pool), rig_cold.pulls._reads) == ([], 0, {})


def test_more_cold_pulls_than_may_wait_are_refused(rig_cold: RigCold) -> None:
    rig_cold.pool.full = True
    rig_cold.pull(1, orders(0))
    assert rig_cold.results() == [(1, TooManyInFlight.code)]
    rig_cold.pool.full = False

    rig_cold.pull(2, orders(8))
    rig_cold.pool.run()
    assert [result[0] for result in rig_cold.results()] == [2]


def test_what_a_blocked_reader_does_not_take_is_read_again_when_it_does(rig_cold: RigCold) -> None:
    rig_cold.pull(1, orders(0))
    rig_cold.peer.connection.pause_writing()
    rig_cold.pool.run()
    rig_cold.turns.turn()
    assert (rig_cold.results(), len(rig_cold.pool)) == ([], 0)

    rig_cold.peer.connection.resume_writing()
    rig_cold.turns.turn()
    assert rig_cold.pool.run() == 1

    assert rig_cold.results()[0][:3] == (1, 0, 9)


@pytest.mark.parametrize(
    ("offset", "log_epoch", "status", "following"),
    [(0, 0, 0, 9), (9, 1, EMPTY, 9), (10, 1, OffsetOutOfRange.code, 10), (3, 1, 0, 9)],
)
def test_a_reader_that_agrees_with_the_log_is_served(
    rig_cold: RigCold, offset: int, log_epoch: int, status: int, following: int
) -> None:
    rig_cold.files.cold = False
    rig_cold.pull(1, orders(offset, log_epoch=log_epoch))

    answer = rig_cold.results()
    assert [result[1:3] for result in answer] == [(status, following)]


def test_a_reader_that_has_more_than_the_log_learns_where_they_agree(rig_cold: RigCold) -> None:
    rig_cold.files.cold = False
    rig_cold.store.abandon()
    rig_cold.store.history = rig_cold.store.history._replace(log_epoch=2)  # a start that found nine messages

    for offset in (10, 100):
        rig_cold.pull(offset, orders(offset, log_epoch=1))
        assert rig_cold.results() == [(offset, LogTruncated.code, 9, [])]
    rig_cold.store.queue(ORDERS).epochs = [1, 0, 2, 6]  # 6, 7 and 8 were stored after it
    rig_cold.pull(1, orders(8, log_epoch=1))
    assert rig_cold.results() == [(1, LogTruncated.code, 6, [])]
    rig_cold.pull(2, orders(6, log_epoch=1))
    assert rig_cold.results()[0][:3] == (2, 0, 9)
    rig_cold.opened = Opened(rig_cold.path)
    rig_cold.store = rig_cold.opened.store


def test_many_large_answers_of_one_turn_stop_when_the_peer_takes_no_more(rig_cold: RigCold) -> None:
    """They cost no time to make, so the pause between two read callbacks does not bound them."""
    rig_cold.files.cold = False
    rig_cold.peer.transport.takes = False
    pull = Pull(None, 0, 1 << 20, [orders(0)])
    rig_cold.peer.send(b"".join(request(i, Op.PULL, pull) for i in range(20)))
    one = 9 * 250
    assert 1000 < len(rig_cold.peer.transport.unsent) < 2 * one

    rig_cold.peer.transport.takes = True
    answered = []
    for _ in range(100):
        rig_cold.peer.transport.take(1 << 20)
        answered += [result[0] for result in rig_cold.results()]

    assert answered == list(range(20))


class RigLine(Rig):
    """All messages are wanted, of one queue."""

    def arrive(self, *, told: bool = True) -> None:
        """A message becomes readable; ``told`` says whether the handler hears of it."""
        self.opened.append(b"x" * 100)
        if told:
            self.pulls.arrived([ORDERS])

    def make_anew(self) -> None:
        """The topic is deleted, and made again before anything else can happen."""
        gone = self.topics.delete("orders")
        self.opened.store.drop_topic("orders", gone.generation)
        self.pulls.topic_ended("orders", gone.queues)
        self.topics.create("orders", 4, created_at=0)

    def statuses(self, peer: Peer | None = None) -> list[tuple[int, int]]:
        return [(answer[1], answer[3][0][1]) for answer in (peer or self.peer).answers()]


@pytest.fixture
def rig_line(memory_path: Path) -> Iterator[RigLine]:
    rig_line = RigLine(memory_path)
    yield rig_line
    rig_line.opened.close()


def pull(request_id: int, offset: int = 0, wait_ms: int = 15_000) -> bytes:
    return request(request_id, Op.PULL, Pull(None, wait_ms, 1 << 20, [PullQueue(*ORDERS, offset)]))


def test_an_arrival_before_the_pull_is_found_and_one_after_it_wakes_it(rig_line: RigLine) -> None:
    rig_line.arrive()
    rig_line.peer.send(pull(1))
    assert rig_line.statuses() == [(1, 0)]

    rig_line.peer.send(pull(2, offset=1))
    assert (rig_line.statuses(), len(rig_line.parked_pulls)) == ([], 1)
    rig_line.arrive()
    assert rig_line.statuses() == [(2, 0)]


def test_a_pull_of_several_queues_shares_its_bytes(rig_line: RigLine) -> None:
    for queue_id in range(3):
        rig_line.opened.append(b"x" * 1000, to=MessageQueue("orders", queue_id))
    queues = [PullQueue("orders", queue_id, 0) for queue_id in range(3)]

    rig_line.peer.send(request(1, Op.PULL, Pull(None, 0, 2000, queues)))

    ((_, _, _, parts),) = rig_line.peer.answers()
    assert [part[0] for part in parts] == [0, 1]


def test_answers_are_smaller_while_little_memory_is_free_and_hold_at_least_one_batch(rig_line: RigLine) -> None:
    for _ in range(3):
        rig_line.opened.append(b"x" * 60_000)
    rig_line.peer.send(pull(1))
    rig_line.service.answers.used = 1 << 40  # so that the share of a connection is the smallest, 64 KiB

    rig_line.peer.send(pull(2))
    rig_line.opened.append(b"x" * 100_000)
    rig_line.peer.send(pull(3, offset=3))

    assert [answer[3][0][2] for answer in rig_line.peer.answers()] == [3, 1, 4]


def test_an_arrival_that_is_withheld_is_found_and_counted_by_the_sweep(
    rig_line: RigLine, logs: list[dict[str, Any]]
) -> None:
    rig_line.peer.send(pull(1))
    rig_line.pulls.sweep()
    assert (rig_line.pulls.rescued, rig_line.statuses()) == (0, [])

    rig_line.arrive(told=False)
    assert rig_line.statuses() == []
    rig_line.pulls.sweep()

    assert rig_line.statuses() == [(1, 0)]
    assert rig_line.pulls.rescued == 1
    assert [entry["total"] for entry in logs if entry["event"] == "pull.rescued"] == [1]
    rig_line.pulls.sweep()
    assert rig_line.pulls.rescued == 1


def test_the_sweep_looks_for_2_ms_a_turn_and_comes_to_an_end(rig_line: RigLine) -> None:
    for i in range(10):
        rig_line.peer.send(pull(i))
    rig_line.arrive(told=False)
    looked = []

    def costly() -> float:
        rig_line.service.fine += 0.0006
        return rig_line.service.fine

    rig_line.clock = costly
    rig_line.pulls.sweep()
    while len(rig_line.parked_pulls):
        looked.append(10 - len(rig_line.parked_pulls))
        rig_line.pulls._sweep_on()

    assert looked == [3, 6, 9]
    rig_line.clock = rig_line.service.clock
    assert len(rig_line.peer.answers()) == 10
    assert rig_line.pulls.rescued == 10


def test_what_arrives_is_answered_before_pulls_whose_time_is_up(rig_line: RigLine) -> None:
    for i in range(3):
        rig_line.peer.send(request(i, Op.PULL, Pull(None, 15_000, 1 << 20, [PullQueue("orders", 1, 0)])))
    rig_line.peer.send(pull(9, wait_ms=20_000))

    rig_line.service.time = 16.0
    rig_line.pulls.expire()
    rig_line.arrive()

    assert rig_line.statuses() == [(9, 0), (0, EMPTY), (1, EMPTY), (2, EMPTY)]


def test_pulls_whose_time_is_up_are_answered_although_the_line_does_not_end(rig_line: RigLine) -> None:
    woken = [Peer(rig_line.service, rig_line.turns) for _ in range(6)]
    for i in range(3):
        rig_line.peer.send(request(i, Op.PULL, Pull(None, 15_000, 1 << 20, [PullQueue("orders", 1, 0)])))
    for peer in woken:
        peer.send(pull(9, wait_ms=20_000))

    def costly() -> None:
        rig_line.service.fine += 0.003

    rig_line.store.before_read = costly
    rig_line.service.time = 16.0
    rig_line.pulls.expire()
    rig_line.arrive()
    rig_line.turns.turn()

    assert rig_line.peer.connection not in rig_line.pulls._waiting
    assert [peer.connection in rig_line.pulls._waiting for peer in woken] == [False] + [True] * 5


def wide(request_id: int, *, wait_ms: int = 15_000) -> bytes:
    queues = [PullQueue("orders", i % 4, 0) for i in range(1024)]
    return request(request_id, Op.PULL, Pull(None, wait_ms, 1 << 20, queues))


def test_the_unanswered_pulls_of_a_connection_name_at_most_16384_queues(rig_line: RigLine) -> None:
    other = Peer(rig_line.service, rig_line.turns)
    for i in range(16):
        rig_line.peer.send(wide(i))
    assert rig_line.peer.answers() == []

    rig_line.peer.send(pull(16) + wide(17, wait_ms=0))
    refused = rig_line.peer.answers()
    other.send(wide(1))

    assert [answer[1:3] for answer in refused] == [[16, TooManyInFlight.code], [17, TooManyInFlight.code]]
    assert "more than 16384 queues" in refused[0][3][0]
    assert (other.answers(), len(rig_line.parked_pulls)) == ([], 17)
    rig_line.arrive()
    assert {answer[2] for answer in rig_line.peer.answers()} == {0}
    assert rig_line.pulls._waiting == {}


@pytest.mark.parametrize("end", ["answered", "expired", "defect", "closed"])
def test_a_pull_that_ended_counts_no_longer(rig_line: RigLine, end: str) -> None:
    rig_line.service.closed = rig_line.pulls.closed  # type: ignore[method-assign]
    rig_line.peer.send(wide(1))
    assert rig_line.pulls._waiting == {rig_line.peer.connection: 1024}

    if end == "closed":
        rig_line.peer.transport.abort()
    elif end == "expired":
        rig_line.service.time = 16.0
        rig_line.pulls.expire()
    else:
        rig_line.store.before_read = (lambda: 1 // 0) if end == "defect" else rig_line.store.before_read  # type: ignore[assignment, return-value]
        rig_line.arrive()
    rig_line.peer.answers()

    assert rig_line.pulls._waiting == {}


def test_parked_pulls_do_not_count_as_requests_in_flight(rig_line: RigLine) -> None:
    rig_line.service.max_in_flight = 2
    for i in range(5):
        rig_line.peer.send(pull(i))
    rig_line.peer.send(request(9, ECHO, ["still served"]))

    assert [answer[1:3] for answer in rig_line.peer.answers()] == [[9, 0]]
    rig_line.arrive()
    assert rig_line.statuses() == [(i, 0) for i in range(5)]
    assert rig_line.peer.connection.in_flight == 0


@pytest.mark.parametrize("defect", [False, True])
def test_a_pull_that_is_refused_in_line_leaves_nothing_in_flight(rig_line: RigLine, defect: bool) -> None:
    rig_line.peer.send(pull(1))
    rig_line.store.before_read = (lambda: 1 // 0) if defect else rig_line.store.before_read  # type: ignore[assignment, return-value]
    rig_line.arrive()
    rig_line.peer.answers()
    rig_line.peer.send(request(2, Op.PULL, []))  # not even admitted
    rig_line.peer.answers()

    assert rig_line.peer.connection.in_flight == 0


def test_a_pull_that_an_arrival_and_its_time_both_end_is_answered_once(rig_line: RigLine) -> None:
    rig_line.peer.send(pull(1, wait_ms=1000))
    rig_line.service.time = 1.0

    rig_line.arrive()
    rig_line.pulls.expire()

    assert rig_line.statuses() == [(1, 0)]
    assert (len(rig_line.parked_pulls), rig_line.peer.connection.in_flight) == (0, 0)


@pytest.mark.parametrize(("now", "answered"), [(0.999, []), (1.0, [(1, EMPTY)])])
def test_a_parked_pull_ends_at_its_time(rig_line: RigLine, now: float, answered: list[tuple[int, int]]) -> None:
    rig_line.peer.send(pull(1, wait_ms=1000))
    rig_line.service.time = now

    rig_line.pulls.expire()

    assert rig_line.statuses() == answered


def test_pulls_of_a_blocked_connection_wait_in_line_and_acks_go_out(rig_line: RigLine) -> None:
    rig_line.arrive()
    rig_line.peer.transport.takes = False
    rig_line.peer.send(request(1, BIG, [2000]))
    rig_line.peer.answers()
    assert rig_line.peer.connection.blocked

    rig_line.peer.send(pull(2) + request(3, ECHO, ["ack"]))
    rig_line.peer.answers()
    rig_line.peer.transport.takes = True
    rig_line.peer.transport.take(1 << 20)

    assert [answer[1] for answer in rig_line.peer.answers()] == [1, 3, 2]


def test_a_parked_pull_that_is_woken_while_its_connection_is_blocked_waits(rig_line: RigLine) -> None:
    rig_line.peer.send(pull(1))
    rig_line.peer.transport.takes = False
    rig_line.peer.send(request(2, BIG, [5000]))
    rig_line.peer.answers()

    rig_line.arrive()
    rig_line.peer.answers()
    rig_line.peer.transport.takes = True
    rig_line.peer.transport.take(1 << 20)

    assert [answer[1] for answer in rig_line.peer.answers()] == [2, 1]


def test_a_parked_pull_of_a_recreated_topic_is_refused(rig_line: RigLine) -> None:
    rig_line.peer.send(pull(1))
    rig_line.peer.answers()

    rig_line.make_anew()
    rig_line.arrive()

    assert rig_line.statuses() == [(1, TopicNotFound.code)]
    assert len(rig_line.parked_pulls) == 0
    rig_line.peer.send(pull(2))
    assert rig_line.statuses() == [(2, 0)]


def test_a_pull_of_a_slow_reader_is_not_answered_from_another_topic_of_the_name(rig_line: RigLine) -> None:
    rig_line.arrive()
    rig_line.peer.transport.takes = False
    rig_line.peer.send(request(1, BIG, [2000]))
    rig_line.peer.answers()
    rig_line.peer.send(pull(2, offset=1))

    rig_line.make_anew()
    rig_line.arrive()
    rig_line.arrive()
    rig_line.peer.answers()
    rig_line.peer.transport.takes = True
    rig_line.peer.transport.take(1 << 20)

    (big, answer) = rig_line.peer.answers()
    assert (big[1], answer[1]) == (1, 2)
    assert answer[3] == [[0, TopicNotFound.code, 1, 0, 0, b"", "the topic 'orders' was deleted"]]


def test_the_line_is_worked_off_for_2_ms_a_turn(rig_line: RigLine) -> None:
    peers = [Peer(rig_line.service, rig_line.turns) for _ in range(6)]
    for i, peer in enumerate(peers):
        peer.send(pull(i))

    def costly() -> None:
        rig_line.service.fine += 0.0015

    rig_line.store.before_read = costly
    rig_line.arrive()
    served = []
    for _ in range(3):
        rig_line.turns.turn()
        served.append(sum(peer.connection not in rig_line.pulls._waiting for peer in peers))

    assert served == [2, 4, 6]


def test_a_defect_in_one_woken_pull_does_not_hold_the_others_back(rig_line: RigLine) -> None:
    other = Peer(rig_line.service, rig_line.turns)
    rig_line.peer.send(pull(1))
    other.send(pull(2))

    def broken_once() -> None:
        rig_line.store.before_read = lambda: None
        raise ZeroDivisionError("a defect")

    rig_line.store.before_read = broken_once
    rig_line.arrive()

    assert [answer[1:3] for answer in rig_line.peer.answers()] == [[1, Internal.code]]
    assert rig_line.statuses(other) == [(2, 0)]


def test_a_woken_pull_of_a_connection_that_is_gone_is_dropped(rig_line: RigLine) -> None:
    rig_line.peer.send(pull(1))
    rig_line.arrive()
    rig_line.peer.transport.abort()
    rig_line.pulls.closed(rig_line.peer.connection)

    assert rig_line.peer.answers() == []


def test_a_pull_stops_after_2_ms_and_says_where_to_go_on(rig_line: RigLine) -> None:
    for _ in range(10):
        rig_line.arrive()
    began = []

    def reads_slowly() -> float:
        began.append(rig_line.service.fine)
        rig_line.service.fine += 0.0009
        return began[-1]

    rig_line.clock = reads_slowly
    rig_line.peer.send(pull(1))
    ((_, _, _, ((_, status, next_offset, *_),)),) = rig_line.peer.answers()

    assert (status, 0 < next_offset < 10) == (0, True)


@pytest.fixture
def rig_tags(memory_path: Path) -> Iterator[Rig]:
    rig_tags = Rig(memory_path)
    yield rig_tags
    rig_tags.opened.close()


# ---- what is sent


def test_a_member_gets_the_batches_with_a_tag_that_it_wants_and_passes_the_others(rig_tags: Rig) -> None:
    for some in ("b", "a", "b", "a", "b"):
        rig_tags.arrive(some)

    rig_tags.pull(1, 0)

    assert rig_tags.results() == [(1, 0, 0, 5, [b"a", b"a"])]


@pytest.mark.parametrize(("group", "expression"), [(None, "a"), ("g", None), ("g", "*")])
def test_a_reader_without_a_group_or_an_expression_gets_everything(
    rig_tags: Rig, group: str | None, expression: str | None
) -> None:
    rig_tags.member.expression = expression
    for some in ("b", None, "a"):
        rig_tags.arrive(some)

    rig_tags.pull(1, 0, group=group)

    assert rig_tags.results() == [(1, 0, 0, 3, [b"b", b"-", b"a"])]


def test_a_batch_that_has_a_wanted_tag_is_sent_as_it_is(rig_tags: Rig) -> None:
    rig_tags.arrive("b", "a", None)

    rig_tags.pull(1, 0)

    assert rig_tags.results() == [(1, 0, 0, 3, [b"b", b"a", b"-"])]


# ---- a free read for some tags


def test_a_reader_without_a_group_names_its_tags_with_the_pull(rig_tags: Rig) -> None:
    for some in ("b", "a", "b", None, "a", "b"):
        rig_tags.arrive(some)

    rig_tags.pull(1, 0, group=None, expression="a")
    rig_tags.pull(2, 0, group=None, expression="b || c")
    rig_tags.pull(3, 0, group=None, expression="*")

    assert rig_tags.results() == [
        (1, 0, 0, 6, [b"a", b"a"]),
        (2, 0, 0, 6, [b"b", b"b", b"b"]),
        (3, 0, 0, 6, [b"b", b"a", b"b", b"-", b"a", b"b"]),
    ]


def test_a_free_read_that_does_not_wait_learns_how_far_nothing_was_wanted(rig_tags: Rig) -> None:
    rig_tags.arrive("b")
    rig_tags.arrive("c")

    rig_tags.pull(1, 0, wait_ms=0, group=None, expression="a")

    assert rig_tags.results() == [(1, 0, EMPTY, 2, [])]


def test_a_parked_free_read_is_woken_by_what_it_wants_alone(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0, group=None, expression="a")
    rig_tags.arrive("b")
    assert (rig_tags.results(), len(rig_tags.parked_pulls)) == ([], 1)

    rig_tags.arrive("a")

    assert rig_tags.results() == [(1, 0, 0, 2, [b"a"])]


@pytest.mark.parametrize(
    ("group", "expression"), [("g", "a"), (None, "a |b"), (None, "a || *"), (None, "||"), (None, "x" * 1025)]
)
def test_an_expression_that_is_none_or_that_a_member_sends_is_refused(
    rig_tags: Rig, group: str | None, expression: str
) -> None:
    rig_tags.pull(1, 0, group=group, expression=expression)

    assert rig_tags.results() == [(1, BadRequest.code)]
    assert (len(rig_tags.parked_pulls), rig_tags.peer.connection.in_flight) == (0, 0)


# ---- the park


def test_what_is_not_wanted_leaves_a_pull_parked_and_what_is_wanted_wakes_it(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0)
    rig_tags.arrive("b")
    rig_tags.arrive("b", "c")
    assert (rig_tags.results(), len(rig_tags.parked_pulls)) == ([], 1)

    rig_tags.arrive("a")

    assert rig_tags.results() == [(1, 0, 0, 4, [b"a"])]
    assert (len(rig_tags.parked_pulls), rig_tags.peer.connection.in_flight) == (0, 0)


@pytest.mark.parametrize(("now", "answered"), [(0.999, []), (1.0, [(1, 0, EMPTY, 2, [])])])
def test_at_the_end_of_its_wait_it_learns_how_far_nothing_was_wanted(
    rig_tags: Rig, now: float, answered: list[tuple[Any, ...]]
) -> None:
    rig_tags.pull(1, 0, wait_ms=1000)
    rig_tags.arrive("b")
    rig_tags.arrive("c")

    rig_tags.expire(now)

    assert rig_tags.results() == answered


def test_what_arrived_is_looked_at_once(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0)
    for _ in range(5):
        rig_tags.arrive("b")
        rig_tags.peer.answers()

    assert rig_tags.store.reads == 5
    rig_tags.expire(15.0)
    assert rig_tags.results() == [(1, 0, EMPTY, 5, [])]
    assert rig_tags.store.reads == 5


def test_an_arrival_between_the_look_and_the_end_of_the_wait_is_given(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0, wait_ms=1000)
    rig_tags.arrive("b")
    rig_tags.arrive("a")
    rig_tags.expire(1.0)  # before the line was worked off

    assert rig_tags.results() == [(1, 0, 0, 2, [b"a"])]
    assert (len(rig_tags.parked_pulls), rig_tags.peer.connection.in_flight) == (0, 0)


def test_only_the_queues_that_grew_are_looked_at(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0, 0, 0, 0)
    rig_tags.arrive("b", to=OTHER)
    rig_tags.arrive("b")
    rig_tags.arrive("b", to=OTHER)
    assert rig_tags.results() == []
    assert rig_tags.store.reads <= 3

    rig_tags.arrive("a", to=OTHER)

    assert sorted(rig_tags.results()) == [(1, 0, EMPTY, 1, []), (1, 1, 0, 3, [b"a"])]


def test_a_pull_may_name_a_queue_twice(rig_tags: Rig) -> None:
    queues = [PullQueue(*ORDERS, 0), PullQueue(*ORDERS, 0)]
    rig_tags.peer.send(request(1, Op.PULL, Pull("g", 1000, 1 << 20, queues)))
    rig_tags.arrive("b")
    rig_tags.expire(1.0)

    assert rig_tags.results() == [(1, 0, EMPTY, 1, []), (1, 1, EMPTY, 1, [])]


def test_the_sweep_does_not_count_what_is_not_wanted_and_still_finds_what_was_overlooked(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0)
    rig_tags.arrive("b")
    rig_tags.pulls.sweep()  # it is in line
    rig_tags.peer.answers()
    rig_tags.pulls.sweep()  # it was looked at
    assert (rig_tags.pulls.rescued, rig_tags.results()) == (0, [])

    rig_tags.arrive("a", told=False)
    rig_tags.pulls.sweep()

    assert rig_tags.results() == [(1, 0, 0, 2, [b"a"])]
    assert rig_tags.pulls.rescued == 1


def test_a_defect_in_a_look_ends_that_pull_and_no_other(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0)
    rig_tags.arrive("b")

    def broken_once() -> None:
        rig_tags.store.before_read = lambda: None
        raise ZeroDivisionError("a defect")

    rig_tags.store.before_read = broken_once
    assert rig_tags.results() == [(1, Internal.code)]

    assert (len(rig_tags.parked_pulls), rig_tags.peer.connection.in_flight) == (0, 0)
    rig_tags.arrive("a")
    rig_tags.expire(20.0)
    assert rig_tags.results() == []


def test_a_parked_pull_whose_connection_is_gone_is_not_looked_at(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0)
    rig_tags.arrive("a")
    rig_tags.peer.transport.abort()
    rig_tags.pulls.closed(rig_tags.peer.connection)

    assert rig_tags.peer.answers() == []
    assert rig_tags.store.reads == 0


def test_a_woken_pull_of_a_slow_reader_keeps_its_place(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0)
    rig_tags.arrive("b")
    assert rig_tags.results() == []
    rig_tags.peer.transport.takes = False
    rig_tags.peer.send(request(2, BIG, [5000]))
    rig_tags.peer.answers()

    rig_tags.arrive("a")
    rig_tags.peer.answers()
    rig_tags.peer.transport.takes = True
    rig_tags.peer.transport.take(1 << 20)

    assert [answer[1:3] for answer in rig_tags.peer.answers()] == [[2, 0], [1, 0]]


# ---- changes while it waits


@pytest.mark.parametrize(("now_wants", "bodies"), [("b", [b"b"]), ("a||c", [b"c"]), ("*", [b"b", b"c"])])
def test_a_parked_pull_of_a_member_that_wants_other_tags_looks_again_from_where_it_asked(
    rig_tags: Rig, now_wants: str, bodies: list[bytes]
) -> None:
    rig_tags.pull(1, 0)
    rig_tags.arrive("b")
    rig_tags.arrive("c")
    assert rig_tags.results() == []

    rig_tags.member.expression = now_wants
    rig_tags.pulls.resubscribed(rig_tags.peer.connection, "g")

    assert rig_tags.results() == [(1, 0, 0, 2, bodies)]


def test_a_parked_pull_for_everything_waits_for_less_after_a_change(rig_tags: Rig) -> None:
    rig_tags.member.expression = "*"
    rig_tags.pull(1, 0)
    rig_tags.member.expression = "a"
    rig_tags.pulls.resubscribed(rig_tags.peer.connection, "g")
    rig_tags.peer.answers()

    rig_tags.arrive("b")
    assert rig_tags.results() == []
    rig_tags.arrive("a")
    assert rig_tags.results() == [(1, 0, 0, 2, [b"a"])]


def test_a_change_of_another_group_or_connection_moves_nothing(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0)
    rig_tags.arrive("b")
    rig_tags.peer.answers()
    reads = rig_tags.store.reads

    rig_tags.pulls.resubscribed(rig_tags.peer.connection, "other")
    rig_tags.pulls.resubscribed(Peer(rig_tags.service, rig_tags.turns).connection, "g")

    assert (rig_tags.results(), rig_tags.store.reads, len(rig_tags.parked_pulls)) == ([], reads, 1)


def test_a_change_between_an_arrival_and_the_look_at_it_counts_for_the_look(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0)
    rig_tags.arrive("b")
    rig_tags.member.expression = "b"

    assert rig_tags.results() == [(1, 0, 0, 1, [b"b"])]


def test_a_lost_lease_is_reported_whatever_arrived(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0)
    rig_tags.arrive("b")
    rig_tags.peer.answers()

    rig_tags.member.is_fenced = True
    rig_tags.pulls.lease_changed("g", ORDERS)

    assert rig_tags.results() == [(1, 0, Fenced.code, 0, [])]


def test_a_look_at_a_lost_lease_tells_so(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0)
    rig_tags.arrive("b")
    rig_tags.member.is_fenced = True

    assert rig_tags.results() == [(1, 0, Fenced.code, 0, [])]


def test_a_pull_for_some_tags_of_a_deleted_topic_is_refused(rig_tags: Rig) -> None:
    rig_tags.pull(1, 0)
    rig_tags.arrive("b")
    rig_tags.peer.answers()

    gone = rig_tags.topics.delete("orders")
    rig_tags.opened.store.drop_topic("orders", gone.generation)
    rig_tags.pulls.topic_ended("orders", gone.queues)

    assert rig_tags.results() == [(1, 0, TopicNotFound.code, 0, [])]


EPS = 0.001


async def member(broker: InMemoryBroker, expression: str, *, ordered: bool = True) -> tuple[Client, int]:
    """A member of the group that holds orders/0."""
    client = await Client(broker, "m").__aenter__()
    await client.create()
    await client.join(expression=expression, ordered=ordered)
    return client, (await client.acquire()).epoch


async def send(client: Client, *tags: str | None) -> None:
    """One batch, whose bodies are the tags."""
    batch = make_batch(*((tag or "-").encode() for tag in tags), tags=tags)
    await client.send_batches(OutgoingBatch(ORDERS.queue_id, batch))


@pytest.mark.virtual_time
@pytest.mark.parametrize("ordered", [True, False])
async def test_a_member_is_sent_what_its_expression_wants(broker: InMemoryBroker, ordered: bool) -> None:
    client, epoch = await member(broker, "a || c", ordered=ordered)
    for tag in ("a", "b", "c", None):
        await send(client, tag)

    result = await client.pull(0, group="g", epoch=epoch)
    assert (bodies(result), result.next_offset, result.max_offset) == ([b"a", b"c"], 4, 4)
    everything = await client.pull(0)
    assert bodies(everything) == [b"a", b"b", b"c", b"-"]
    await client.connection.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize("early_s", [EPS, 0.0])
async def test_a_parked_pull_of_which_nothing_was_wanted_ends_with_its_wait_and_not_before(
    broker: InMemoryBroker, early_s: float
) -> None:
    client, epoch = await member(broker, "a")
    now = asyncio.get_running_loop().time
    began = now()
    pull = asyncio.create_task(client.pull(0, group="g", epoch=epoch, wait_ms=10_000))
    for _ in range(3):
        await asyncio.sleep(2.0)
        await send(client, "b")

    await until(began + 10.0 - early_s)
    assert not pull.done() or not early_s
    result = await pull

    assert 10.0 <= now() - began <= 10.0 + TICK_S + EPS
    assert (result.status, result.next_offset, result.max_offset) == (EMPTY, 3, 3)
    assert broker.broker._pulls.rescued == 0
    await client.connection.close()


@pytest.mark.virtual_time
async def test_a_parked_pull_gets_what_it_wants_when_that_arrives(broker: InMemoryBroker) -> None:
    client, epoch = await member(broker, "a")
    pull = asyncio.create_task(client.pull(0, group="g", epoch=epoch, wait_ms=10_000))
    await asyncio.sleep(1.0)
    await send(client, "b")
    await asyncio.sleep(6.0)  # the sweep looks too
    assert not pull.done()
    at = asyncio.get_running_loop().time()

    await send(client, "b", "a")
    result = await pull

    assert (bodies(result), result.next_offset) == ([b"b", b"a"], 3)
    assert asyncio.get_running_loop().time() == at
    assert broker.broker._pulls.rescued == 0
    await client.connection.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize(("second", "wanted"), [("b", [b"b"]), ("*", [b"b", b"c"]), ("c", [b"c"])])
async def test_joining_again_with_another_expression_counts_for_a_pull_that_is_parked(
    broker: InMemoryBroker, second: str, wanted: list[bytes]
) -> None:
    client, epoch = await member(broker, "a")
    pull = asyncio.create_task(client.pull(0, group="g", epoch=epoch, wait_ms=10_000))
    await send(client, "b")
    await send(client, "c")
    await asyncio.sleep(1.0)
    assert not pull.done()

    await client.join(expression="a")  # a heartbeat
    await asyncio.sleep(1.0)
    assert not pull.done()
    await client.join(expression=second)
    result = await pull

    assert (bodies(result), result.next_offset) == (wanted, 2)
    await client.connection.close()


@pytest.mark.virtual_time
async def test_joining_with_what_is_no_expression_is_refused(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        with pytest.raises(BadRequest, match=r"the expression 'a \| b' is not"):
            await client.join(expression="a | b")


@pytest.mark.virtual_time
async def test_a_member_that_has_not_said_what_it_wants_since_a_restart_gets_everything(broker: InMemoryBroker) -> None:
    client, epoch = await member(broker, "a")
    await send(client, "b")
    await broker.restart()
    await client.connection.wait_connected()

    result = await client.pull(0, group="g", epoch=epoch)
    assert bodies(result) == [b"b"]
    await client.join(expression="a")
    result = await client.pull(0, group="g", epoch=epoch)
    assert (result.status, result.next_offset) == (EMPTY, 1)
    await client.connection.close()


@pytest.mark.virtual_time
async def test_a_parked_pull_that_passed_something_is_fenced_at_once(broker: InMemoryBroker) -> None:
    client, epoch = await member(broker, "a")
    assert epoch is not None
    pull = asyncio.create_task(client.pull(0, group="g", epoch=epoch, wait_ms=10_000))
    await send(client, "b")
    await asyncio.sleep(1.0)

    await client.release(epoch)

    assert ((await pull).status, (await pull).next_offset) == (Fenced.code, 0)
    await client.connection.close()


@pytest.mark.virtual_time
async def test_progress_rides_on_what_was_passed(broker: InMemoryBroker) -> None:
    client, epoch = await member(broker, "a")
    await send(client, "b", "b")
    behind = (await client.pull(0, group="g", epoch=epoch)).next_offset
    assert behind == 2

    await client.pull(behind, group="g", epoch=epoch, commit=behind)

    assert await client.committed() == 2
    await client.connection.close()


MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
TAGS = st.sampled_from([None, "b", "b", "b", "a", "Aa", "BB"])
EXPRESSIONS = st.lists(st.sampled_from(["a", "Aa", "BB", "x"]), min_size=1, max_size=2).map("||".join)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.lists(TAGS, min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["pull", "look", "turn", "read", "wait", "sweep", "join"]), st.integers(0, 1500)),
    ),
    max_size=60,
)


class Reader:
    """A member, or a free reader, that pulls one queue again and again, and checks each answer against all sent."""

    def __init__(self, rig: Rig, expression: str, *, is_member: bool) -> None:
        self.rig = rig
        self.names = set(expression.split("||"))
        self.group, self.expression = ("g", None) if is_member else (None, expression)
        self.sent: list[str | None] = []
        self.got: list[int] = []
        self.offset = 0
        self.waits = False

    def pull(self, wait_ms: int) -> None:
        if not self.waits:
            self.waits = True
            self.rig.pull(1, self.offset, wait_ms=wait_ms, max_bytes=600, group=self.group, expression=self.expression)

    def do(self, what: str, argument: list[str | None] | int) -> None:
        if isinstance(argument, list):
            self.sent += argument
            self.rig.arrive(*argument)
        else:
            {
                "pull": lambda: self.pull(argument),
                "look": self.look,
                "turn": self.rig.turns.turn,
                "read": self.rig.pool.run,
                "wait": lambda: self.rig.expire(self.rig.service.time + argument / 1000),
                "sweep": self.rig.pulls.sweep,
                "join": lambda: self.rig.pulls.resubscribed(self.rig.peer.connection, "g"),
            }[what]()

    def end(self) -> None:
        """Whatever waits, for whatever, is answered, and another pull too."""
        self.rig.expire(self.rig.service.time + 30.0)
        while self.rig.pool.run() or self.rig.turns.soon:
            self.rig.turns.turn()
        self.look()
        self.pull(0)

    def look(self) -> None:
        for _, _, status, parts in self.rig.peer.answers():
            assert (status, len(parts)) == (0, 1)
            self.waits = False
            ((_, code, following, _, end, data, _),) = parts
            assert code in (0, EMPTY)
            assert self.offset <= following <= end <= len(self.sent)
            found = batches.read_all(data, stores=StoreIds(1))
            assert bool(found) == (code == 0)
            for batch in found:
                messages = [m for m in batch.messages() if m.tag in self.names]  # as a member checks again
                assert messages
                self.got += [m.queue_offset for m in messages if m.queue_offset >= self.offset]
            self.offset = following
            assert self.got == self.wanted(following)

    def wanted(self, end: int) -> list[int]:
        return [i for i in range(end) if self.sent[i] in self.names]


@given(EXPRESSIONS, STEPS, st.sampled_from([0, 2500, 32 << 20]), st.booleans(), st.booleans())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_answers_one_after_the_other_are_the_wanted_messages_in_order(
    expression: str, steps: list[tuple[str, list[str | None] | int]], recent_bytes: int, cold: bool,
    is_member: bool,
) -> None:  # fmt: skip
    with TemporaryDirectory(dir=MEMORY) as folder:
        rig = Rig(Path(folder), recent_bytes=recent_bytes, segment_bytes=2000, entries_per_file=5)
        rig.files.cold = cold
        rig.member.expression = expression if is_member else "none"
        reader = Reader(rig, expression, is_member=is_member)
        for what, argument in steps:
            reader.do(what, argument)
        for _ in range(2 * len(reader.sent) + 2):  # each pull gives a batch at least, or says that there is none
            reader.end()
        assert rig.pulls.rescued == 0
        assert (reader.got, reader.offset) == (reader.wanted(len(reader.sent)), len(reader.sent))
        rig.opened.close()
