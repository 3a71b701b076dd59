"""
Delayed messages from a producer through the real broker to an ordered consumer, on a virtual clock.

The wall clock of broker and producers is the loop's, so that every due time is met or missed to the microsecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import pytest

from rmq.broker.config import BrokerConfig, parse_levels
from rmq.client import Admin, BadDelay, Message, Producer, Receipt
from rmq.consumer import Consumer, ConsumeStatus
from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import StoredMessage, from_us

pytestmark = pytest.mark.virtual_time

BASE_US = 1_770_000_000_000_000
LATE_US = 100_000  # after its time a message is in its queue
LEVELS_S = [level / 1e6 for level in parse_levels(BrokerConfig().message_delay_level)]


def wall_us() -> int:
    return BASE_US + round(asyncio.get_running_loop().time() * 1e6)


class Seen(NamedTuple):
    """A message that a listener was given, and when."""

    at_us: int
    message: StoredMessage

    @property
    def late_us(self) -> int:
        """How long after its birth it was stored where it could be read."""
        return _us(self.message.stored_at) - _us(self.message.born_at)


class Recorder:
    """A listener that notes everything."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    async def __call__(self, messages: Sequence[StoredMessage], context: Any) -> ConsumeStatus:
        self.seen += [Seen(wall_us(), message) for message in messages]
        return ConsumeStatus.SUCCESS

    @property
    def bodies(self) -> list[bytes]:
        return [seen.message.body for seen in self.seen]


def _us(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(min_free_bytes=0, wall_us=wall_us) as running:
        async with Admin(running.address) as admin:
            await admin.create_topic("orders", 1)
        yield running


def consumer(broker: InMemoryBroker, listener: Recorder) -> Consumer:
    return Consumer(
        broker.address, group="g", listener=listener, topics={"orders": "*"}, now=asyncio.get_running_loop().time
    )


async def send(broker: InMemoryBroker, *messages: Message) -> list[Receipt]:
    """Each message by a call of its own, all in one turn."""
    async with Producer(broker.address, wall_us=wall_us) as producer:
        return list(await asyncio.gather(*(producer.send(message, queue_id=0) for message in messages)))


async def until(time_us: int) -> None:
    await asyncio.sleep((time_us - wall_us()) / 1e6)


async def consume(broker: InMemoryBroker, listener: Recorder, end_us: int) -> None:
    """Have a member of the group consume until that time."""
    async with consumer(broker, listener):
        await until(end_us)


def check_times(receipts: list[Receipt], dues: list[int], listener: Recorder) -> None:
    """Every message came once, with the id its producer got, not before its time and hardly after it."""
    found = {seen.message.copy_of: seen for seen in listener.seen}
    assert len(listener.seen) == len(found) == len(receipts)
    for receipt, due in zip(receipts, dues, strict=True):
        seen = found[receipt.message_id]
        assert 0 <= _us(seen.message.stored_at) - due <= LATE_US, f"{seen.message.body!r} was stored at a wrong time"
        assert 0 <= seen.at_us - due <= LATE_US, f"{seen.message.body!r} was delivered at a wrong time"


async def test_all_eighteen_levels_come_at_their_time_over_restarts_of_the_broker(broker: InMemoryBroker) -> None:
    """
    The broker is away for most of the two hours: it is started shortly before the next message is due.

    So all but the first levels are delivered by a broker that found them in its log, the last after many restarts.
    """
    assert len(LEVELS_S) == 18
    listener = Recorder()
    began = wall_us()
    receipts = await send(broker, *(Message("orders", b"%d" % i, delay_level=i + 1) for i in range(18)))
    dues = [began + round(level_s * 1e6) for level_s in LEVELS_S]
    assert [(receipt.queue_offset, receipt.is_deferred) for receipt in receipts] == [(-1, True)] * 18

    await consume(broker, listener, dues[2] + 1_000_000)
    assert listener.bodies == [b"0", b"1", b"2"]
    for due in dues[3:]:
        await broker.stop()
        await until(due - 2_000_000)
        await broker.start()
        await consume(broker, listener, due + 1_000_000)

    check_times(receipts, dues, listener)
    assert listener.bodies == [b"%d" % i for i in range(18)]
    assert [seen.message.queue_offset for seen in listener.seen] == list(range(18))


async def test_exact_times_are_met_in_the_order_of_their_times_also_over_a_restart(broker: InMemoryBroker) -> None:
    began = wall_us()
    noon = from_us(began + 7_500_000)
    wanted: list[tuple[dict[str, Any], int]] = [
        ({"delay_s": 9.25}, began + 9_250_000),
        ({"deliver_at": noon}, began + 7_500_000),
        ({"deliver_at": noon.astimezone(timezone(timedelta(hours=-7)))}, began + 7_500_000),
        ({"delay_s": 0.001}, began + 1_000),
        ({"delay_s": 6}, began + 6_000_000),
        ({"deliver_at": noon - timedelta(microseconds=1)}, began + 7_499_999),
        ({"delay_level": 2}, began + 5_000_000),
    ]
    listener = Recorder()

    receipts = await send(broker, *(Message("orders", b"%d" % i, **delay) for i, (delay, _) in enumerate(wanted)))
    await consume(broker, listener, began + 5_500_000)
    await broker.restart()
    await consume(broker, listener, began + 60_000_000)

    check_times(receipts, [due for _, due in wanted], listener)
    assert listener.bodies == [b"3", b"6", b"4", b"5", b"1", b"2", b"0"], (
        "those due at once in the order of their calls"
    )


async def test_what_became_due_while_the_broker_was_away_comes_at_its_start_in_the_order_of_its_times(
    broker: InMemoryBroker,
) -> None:
    listener = Recorder()
    delays = [30, 5, 20, 5, 3600, 10]
    await send(broker, *(Message("orders", b"%d" % i, delay_s=delay_s) for i, delay_s in enumerate(delays)))
    await broker.stop()
    await asyncio.sleep(100)

    await broker.start()
    started = wall_us()
    await consume(broker, listener, started + 10_000_000)
    await broker.restart()  # what was delivered is not delivered again
    await consume(broker, listener, wall_us() + 10_000_000)

    assert listener.bodies == [b"1", b"3", b"5", b"2", b"0"]
    assert all(seen.at_us - started <= LATE_US for seen in listener.seen)


async def test_others_do_not_wait_for_delayed_messages_of_their_queue(broker: InMemoryBroker) -> None:
    listener = Recorder()
    began = wall_us()
    past = from_us(began - 1)
    receipts = await send(
        broker,
        Message("orders", b"later", delay_s=2),
        Message("orders", b"first"),
        Message("orders", b"past", deliver_at=past),
        Message("orders", b"soon", delay_s=1),
        Message("orders", b"second"),
    )

    await consume(broker, listener, began + 10_000_000)

    assert [receipt.queue_offset for receipt in receipts] == [-1, 0, 1, -1, 2]
    assert listener.bodies == [b"first", b"past", b"second", b"soon", b"later"]
    assert [seen.message.queue_offset for seen in listener.seen] == list(range(5))
    assert [seen.message.copy_of is not None for seen in listener.seen] == [False, False, False, True, True]


async def test_delayed_batches_of_many_keep_their_order_and_their_receipts_over_broken_connections(
    broker: InMemoryBroker,
) -> None:
    """Whatever is sent again is parked once, with its own time, and its receipts lead to what is delivered."""
    listener = Recorder()
    async with Producer(broker.address, wall_us=wall_us) as producer:
        await producer.send(Message("orders", b"now"), queue_id=0)
        sends = []
        for i in range(60):
            messages = [Message("orders", b"%d/%d" % (i, j), delay_level=1) for j in range(5)]
            sends.append(asyncio.create_task(producer.send_many(messages, queue_id=0)))
            await asyncio.sleep(0)
            if i % 15 == 7:
                producer._connection.drop(ConnectionResetError("a test"))
            if i == 40:
                await broker.restart()
        receipts = [receipt for many in await asyncio.gather(*sends) for receipt in many]

    await consume(broker, listener, wall_us() + 5_000_000)

    delivered = listener.seen[1:]
    assert [seen.message.body for seen in delivered] == [b"%d/%d" % (i, j) for i in range(60) for j in range(5)]
    assert [seen.message.copy_of for seen in delivered] == [receipt.message_id for receipt in receipts]
    assert all(seen.late_us >= 1_000_000 for seen in delivered)


async def test_a_delay_that_the_broker_does_not_have_is_refused_for_good_and_the_others_go_on(
    broker: InMemoryBroker,
) -> None:
    listener = Recorder()
    delays: list[dict[str, Any]] = [{}, {"delay_level": 19}, {}, {"delay_s": 1e9}, {"delay_level": 18}, {}]
    async with Producer(broker.address, wall_us=wall_us) as producer:
        sends = [producer.send(Message("orders", b"%d" % i, **delay), queue_id=0) for i, delay in enumerate(delays)]
        _, level, _, far, last, _ = await asyncio.gather(*sends, return_exceptions=True)

    await consume(broker, listener, wall_us() + 1_000_000)

    assert isinstance(level, BadDelay) and "there is no delay level 19: this broker has 1 to 18" in str(level)
    assert isinstance(far, BadDelay) and "longer than this broker allows" in str(far)
    assert isinstance(last, Receipt) and last.is_deferred
    assert listener.bodies == [b"0", b"2", b"5"]


async def test_compressed_delayed_messages_are_delivered_with_all_that_belongs_to_them_and_found_by_key_once(
    broker: InMemoryBroker,
) -> None:
    listener = Recorder()
    text = b"a text that shrinks " * 20
    sent = [
        Message("orders", text + b"%d" % i, tag="t", index_keys=("k",), properties={"p": "q"}, delay_s=3)
        for i in range(3)
    ]
    async with (
        Producer(broker.address, wall_us=wall_us, compression="zlib") as producer,
        Admin(broker.address) as admin,
    ):
        receipts = await producer.send_many(sent, key="s")
        before = await admin.query_messages("k")
        await consume(broker, listener, wall_us() + 5_000_000)
        after = await admin.query_messages("k")

    found = [seen.message for seen in listener.seen]
    assert [(one.body, one.tag, one.index_keys, one.properties, one.key) for one in found] == [
        (one.body, "t", ("k",), {"p": "q"}, "s") for one in sent
    ]
    assert before.messages == []
    assert [one.message_id for one in after.messages] == [one.message_id for one in found[::-1]]
    assert [one.copy_of for one in found] == [receipt.message_id for receipt in receipts]
    assert {one.attempt for one in found} == {1}


async def test_what_waits_is_listed_until_it_is_delivered(broker: InMemoryBroker) -> None:
    async with Producer(broker.address, wall_us=wall_us) as producer, Admin(broker.address) as admin:
        many = await producer.send_bodies("orders", [b"1", b"2", b"3"], queue_id=0, delay_s=20)
        one = await producer.send(Message("other", b"4", delay_level=3))

        everything = await admin.list_deferred()
        of_orders = await admin.list_deferred("orders")
        parked = await admin.message(many[1].message_id)
        await asyncio.sleep(15)
        later = await admin.list_deferred()
        await asyncio.sleep(10)
        nothing = await admin.list_deferred()

    assert (everything.total_batches, everything.total_messages, everything.more) == (2, 4, False)
    assert [row.message_id for row in everything.rows] == [one.message_id, many[0].message_id]
    assert [(row.topic, row.messages, row.delay_level) for row in everything.rows] == [
        ("other", 1, 3),
        ("orders", 3, 0),
    ]
    assert [row.message_id for row in of_orders.rows] == [many[0].message_id]
    assert (parked.body, parked.queue_offset, parked.copy_of) == (b"2", -1, None)
    assert [row.message_id for row in later.rows] == [many[0].message_id]
    assert nothing == ([], False, 0, 0)
