"""Delayed messages: when they come, in which order, and once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmq.broker.state.deferred import Parked
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import ProducerMark
from rmq.wire.errors import BadBatch, BadDelay
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET, OutgoingBatch
from rmq.wire.stores import StoreIds

from ..builders import ORDERS
from ..delay_rig import NOON, SECOND, Wall, Watcher, delayed, park, stored
from ..harness import Client

pytestmark = pytest.mark.virtual_time

LATE_US = 100_000
LEVELS_S = [1, 5, 10, 30, 60, 120, 180, 240]


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
async def broker(wall: Wall) -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(wall_us=wall) as broker:
        yield broker


@pytest.fixture
async def client(broker: InMemoryBroker) -> AsyncIterator[Client]:
    async with Client(broker) as client:
        await client.create()
        yield client


def sleep(seconds: float) -> asyncio.Future[None]:
    return asyncio.ensure_future(asyncio.sleep(seconds))


# ---- when


async def test_each_level_comes_when_it_is_due(client: Client, wall: Wall) -> None:
    """Never early, at most 100 ms late. All eighteen are in the scenario, over restarts."""
    watcher = Watcher(client)
    sent: dict[bytes, int] = {}
    for level in range(1, 9):
        body = b"level %d" % level
        sent[body] = wall() - NOON + LEVELS_S[level - 1] * SECOND
        assert (await park(client, body, level=level)).base_offset == NO_OFFSET

    await sleep(250)

    assert watcher.bodies == list(sent)
    assert [0 <= at - sent[body] < LATE_US for body, at in watcher.arrived] == [True] * 8
    await watcher.stop()


async def test_with_100000_waiting_nothing_is_early_or_100_ms_late(broker: InMemoryBroker, client: Client) -> None:
    """They are due in all seconds of a day, mixed; what is sent now comes between them."""
    table = broker.broker._store.delays
    for i in range(100_000):
        table.add(Parked(NOON + (3600 + i * 7919 % 86_400) * SECOND, 1 << 40 | 8 * i, 200, 1))
    watcher = Watcher(client)
    due: dict[bytes, int] = {}
    for i in range(200):
        body = b"%d" % i
        due[body] = (1 + i * 37 % 50) * SECOND + i * 1013
        await park(client, body, at=NOON + due[body])

    await sleep(60)

    assert watcher.bodies == sorted(due, key=lambda body: due[body])
    assert all(0 <= at - due[body] < LATE_US for body, at in watcher.arrived)
    assert len(table) == 100_000
    await watcher.stop()


@pytest.mark.parametrize("early_us", [1, 1000, 500_000])
async def test_a_message_is_not_there_a_moment_before_its_time(client: Client, wall: Wall, early_us: int) -> None:
    await park(client, b"later", at=wall() + 2 * SECOND)

    await sleep(2 - early_us / SECOND)
    assert await stored(client) == []
    await sleep(early_us / SECOND + 0.01)
    assert await stored(client) == [b"later"]


async def test_a_time_that_has_passed_is_delivered_at_once_and_has_an_offset(client: Client, wall: Wall) -> None:
    result = await park(client, b"late", at=wall() - 1)

    assert (result.status, result.base_offset) == (0, 0)
    assert await stored(client) == [b"late"]


async def test_a_delay_that_this_broker_does_not_have_is_refused_and_spends_the_number(
    client: Client, wall: Wall
) -> None:
    by = ProducerMark(7, 1, 0)
    unknown = await park(client, b"a", level=19, by=by)
    assert (unknown.status, unknown.text) == (BadDelay.code, "there is no delay level 19: this broker has 1 to 18")
    assert (await park(client, b"a", level=19, by=by)).status == BadDelay.code

    far = await park(client, b"b", at=wall() + 2_592_001 * SECOND, by=by._replace(sequence=2))
    assert far.status == BadDelay.code
    assert (await park(client, b"c", level=1, by=by._replace(sequence=3))).status == 0
    both = batches.encode("orders", 0, batches.Rows([b"d"], NOON), delay_level=1)
    both[120:128] = (1).to_bytes(8, "big")
    layout.seal(both, layout.parse_header(delayed(b"d", level=1)).content_size)
    (result,) = await client.send_batches(OutgoingBatch(0, bytes(both)))
    assert result.status == BadBatch.code


# ---- in which order


async def test_order_within_a_level_is_the_order_of_sending(client: Client) -> None:
    for i in range(50):
        await park(client, b"%d" % i, level=1)

    await sleep(1.5)

    assert await stored(client) == [b"%d" % i for i in range(50)]


async def test_levels_and_exact_times_share_one_order(client: Client, wall: Wall) -> None:
    now = wall()
    for body, delay in [
        (b"5 s", {"level": 2}), (b"7 s", {"at": now + 7 * SECOND}), (b"1 s", {"level": 1}),
        (b"3 s", {"at": now + 3 * SECOND}), (b"3 s, sent later", {"at": now + 3 * SECOND}), (b"10 s", {"level": 3}),
    ]:  # fmt: skip
        await park(client, body, **delay)
    await client.send(b"now")

    await sleep(11)

    assert await stored(client) == [b"now", b"1 s", b"3 s", b"3 s, sent later", b"5 s", b"7 s", b"10 s"]


async def test_many_that_are_due_at_once_keep_their_order(broker: InMemoryBroker, client: Client, wall: Wall) -> None:
    """More than one portion, of several queues."""
    at = wall() + 5 * SECOND
    expected: dict[int, list[bytes]] = {queue: [] for queue in range(4)}
    for i in range(10):
        outgoing = [(j % 4, b"%d.%d" % (i, j)) for j in range(250)]
        for queue_id, body in outgoing:
            expected[queue_id].append(body)
        await client.send_batches(
            *(
                OutgoingBatch(queue_id, delayed(body, at=at, to=MessageQueue("orders", queue_id)))
                for queue_id, body in outgoing
            )
        )

    await sleep(6)

    for queue_id, bodies in expected.items():
        assert await stored(client, MessageQueue("orders", queue_id)) == bodies
    stats = broker.broker._serving.delivery.stats()
    assert (stats["waiting_batches"], stats["delivered_batches"], stats["delivered_messages"]) == (0, 2500, 2500)


# ---- what


@pytest.mark.parametrize("earlier_us", [1, 0])
async def test_a_batch_that_is_parked_in_the_turn_in_which_a_later_one_becomes_due_is_not_passed_over(
    broker: InMemoryBroker, client: Client, wall: Wall, earlier_us: int
) -> None:
    """It is staged, and not yet written: what waits does not have it, when others that are due are looked for."""
    await park(client, b"later", at=NOON + 5 * SECOND)
    await asyncio.sleep(4.9 - asyncio.get_running_loop().time())
    store, due_at = broker.broker._store, NOON + 5 * SECOND - earlier_us
    data = delayed(b"sooner", at=due_at)

    store.stage(ORDERS, 1, data, batches.check(data, stamped=False), 0, due_at)
    broker.broker._committer.schedule()
    wall.shift_s = 0.2
    broker.broker._serving.delivery.look()
    await asyncio.sleep(1)

    expected = [b"sooner", b"later"] if earlier_us else [b"later", b"sooner"]
    assert await stored(client) == expected
    assert broker.broker._serving.delivery.stats()["delivered_batches"] == 2


async def test_the_delivered_batch_is_the_producers_and_names_the_parked_one(client: Client) -> None:
    sent = delayed(b"a", b"b", level=1, by=ProducerMark(9, 1, 0), tags=["paid", None], keys=[["k"], []])
    (parked,) = await client.send_batches(OutgoingBatch(0, sent))

    await sleep(1.1)

    (batch,) = batches.read_all((await client.pull(0)).batches, stores=StoreIds(1))
    header = batch.header
    assert header.kind == layout.KIND_DATA
    assert header.origin == batches.handle(parked.physical_offset, 0)
    assert (header.base_offset, header.count, header.producer_id, header.delay_level) == (0, 2, 9, 1)
    assert (await client.pull(0)).batches[layout.BROKER_PART :] == sent[layout.BROKER_PART :]
    assert header.stored_at >= parked.stored_at + SECOND


async def test_a_duplicate_of_a_parked_batch_is_answered_again_also_after_a_restart(
    broker: InMemoryBroker, client: Client
) -> None:
    by = ProducerMark(7, 1, 0)
    first = await park(client, b"once", level=1, by=by)

    again = await park(client, b"once", level=1, by=by)
    assert again == first._replace(duplicate=True)
    await sleep(1.5)
    assert await park(client, b"once", level=1, by=by) == again  # delivered: another batch, another number
    await broker.restart()
    await client.connection.wait_connected()
    assert await park(client, b"once", level=1, by=by) == again
    await sleep(1.5)

    assert await stored(client) == [b"once"]
    assert (await park(client, b"next", by=by._replace(sequence=2))).base_offset == 1


async def test_a_parked_message_is_in_no_queue_and_under_no_key_until_it_is_due(client: Client) -> None:
    await park(client, b"a", level=1, keys=[["o-17"]])

    assert (await client.range(ORDERS, group=None)).max_offset == 0
    await sleep(1.5)
    assert (await client.range(ORDERS, group=None)).max_offset == 1


async def test_a_parked_pull_is_woken_by_what_becomes_due(client: Client) -> None:
    asking = asyncio.ensure_future(client.pull(0, wait_ms=20_000))
    await park(client, b"a", level=2)
    began = asyncio.get_running_loop().time()

    result = await asking

    assert result.next_offset == 1
    assert 4.9 < asyncio.get_running_loop().time() - began < 5.1
