from __future__ import annotations

import asyncio

import pytest

from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadRequest, Fenced, OffsetOutOfRange, QueueNotFound, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import EMPTY, Op, Pull, PullQueue, PullResult

from ..builders import ORDERS
from ..harness import Client, bodies, holder, until

pytestmark = pytest.mark.virtual_time

TICK_S = 0.1
OTHER = MessageQueue("orders", 1)


def parked(broker: InMemoryBroker) -> int:
    return len(broker.broker._holds)


async def settled(broker: InMemoryBroker, count: int) -> None:
    """Until so many pulls are parked; the clock does not move."""
    for _ in range(1000):
        if parked(broker) == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{parked(broker)} pulls are parked, not {count}")


async def test_a_pull_gives_whole_batches_the_first_of_which_may_begin_before(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a", b"b", b"c")
        await client.send(b"d")

        result = await client.pull(1)

        assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (0, 4, 0, 4)
        assert bodies(result) == [b"a", b"b", b"c", b"d"]
        assert bodies(result, 1) == [b"b", b"c", b"d"]


async def test_a_pull_gives_one_batch_however_few_bytes_it_wants(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a" * 1000)
        await client.send(b"b")

        result = await client.pull(0, max_bytes=1)

        assert (bodies(result), result.next_offset) == ([b"a" * 1000], 1)
        assert bodies(await client.pull(0, max_bytes=-5)) == [b"a" * 1000]


async def test_a_pull_of_several_queues_lists_only_those_that_have_something(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"x", to=MessageQueue("orders", 2))

        results = await client.pull_many(*(PullQueue("orders", i, 0) for i in range(4)))

        assert [(result.index, result.status, bodies(result)) for result in results] == [(2, 0, [b"x"])]


@pytest.mark.parametrize("offset", [-1, -(1 << 63), 3, (1 << 64) - 1])
async def test_an_offset_outside_of_the_queue_is_told_with_its_bounds(broker: InMemoryBroker, offset: int) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a", b"b")

        result = await client.pull(offset, wait_ms=15_000)

        assert (result.status, result.min_offset, result.max_offset) == (OffsetOutOfRange.code, 0, 2)
        assert result.text == f"offset {offset} is out of range: orders/0 holds 0 to 2"


async def test_a_queue_with_an_error_does_not_hide_the_others(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a")

        results = await client.pull_many(PullQueue("orders", 1, 9), PullQueue("orders", 0, 0))

        assert [(result.index, result.status) for result in results] == [(0, OffsetOutOfRange.code), (1, 0)]


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


async def test_without_a_wait_an_empty_queue_is_answered_at_once(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        before = asyncio.get_running_loop().time()

        assert await client.pull(0) == (0, EMPTY, 0, 0, 0, b"", None)
        assert asyncio.get_running_loop().time() == before


async def test_a_pull_that_finds_nothing_waits_15_s_and_lists_all_its_queues_as_empty(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        before = asyncio.get_running_loop().time()

        results = await client.pull_many(*(PullQueue("orders", i, 0) for i in range(3)), wait_ms=15_000)

        assert [(result.index, result.status) for result in results] == [(0, EMPTY), (1, EMPTY), (2, EMPTY)]
        assert 15.0 <= asyncio.get_running_loop().time() - before <= 15.0 + TICK_S + 1e-6
        assert parked(broker) == 0


async def test_no_pull_is_held_longer_than_the_broker_allows() -> None:
    async with InMemoryBroker(max_hold_s=2.0) as broker, Client(broker) as client:
        await client.create()
        before = asyncio.get_running_loop().time()

        assert (await client.pull(0, wait_ms=1 << 40)).status == EMPTY
        assert asyncio.get_running_loop().time() - before <= 2.0 + TICK_S + 1e-6


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


async def test_an_arrival_in_another_queue_wakes_nobody(broker: InMemoryBroker) -> None:
    async with Client(broker) as client, Client(broker, "sender") as sender:
        await client.create()
        pull = asyncio.create_task(client.pull(0, wait_ms=15_000))
        await settled(broker, 1)

        await sender.send(b"a", to=OTHER)

        assert (await pull).status == EMPTY
        assert asyncio.get_running_loop().time() >= 15.0


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


async def test_the_sweep_finds_nothing_to_do_while_arrivals_are_told(broker: InMemoryBroker) -> None:
    async with Client(broker) as client, Client(broker, "sender") as sender:
        await client.create()
        for offset in range(20):
            pull = asyncio.create_task(client.pull(offset, wait_ms=15_000))
            await asyncio.sleep(1.3)
            await sender.send(b"x")
            await pull

        assert broker.broker._pulls.rescued == 0


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


async def test_a_concurrent_group_needs_a_lease_too(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await client.join(ordered=False)
        await client.send(b"a")
        await refused(client, None)
        await refused(client, 5)

        grant = await client.acquire()
        assert bodies(await client.pull(0, group="g", epoch=grant.epoch)) == [b"a"]


async def test_a_group_that_nobody_has_joined_needs_a_lease(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()

        await refused(client, None, group="unknown")


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


async def test_a_parked_pull_of_the_live_epoch_is_not_disturbed_by_other_leases(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        pull = asyncio.create_task(client.pull(0, group="g", epoch=epoch, wait_ms=15_000))
        await settled(broker, 1)

        grant = await client.acquire(OTHER)
        await client.release(grant.epoch, queue=OTHER)
        await client.join("other")
        await client.acquire(group="other")

        assert (await pull).status == EMPTY
        assert asyncio.get_running_loop().time() >= 15.0


# ---- progress that rides along


async def test_progress_on_a_pull_is_seen_at_once(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")
        await client.pull(2, group="g", epoch=epoch, commit=2)

        assert await client.committed() == 2


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
