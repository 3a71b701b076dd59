"""The newest messages of a topic, those that follow, and the cursor that reads both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.client import Admin, Connection, Message, Producer
from rmq.client.admin.tail import MOST_BYTES, Kept, ReadPosition, Tail, TopicCursor, order
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import (
    Damaged,
    LogTruncated,
    MessagesLost,
    OffsetOutOfRange,
    QueueNotFound,
    StoreFailed,
    TopicNotFound,
)
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.ops.core import EMPTY, Op, Pull, PullResult
from rmq.wire.stores import StoreIds

from rigs.stored import STORE_ID, stored_batch

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Clock:
    """The wall clock of a broker, moved by hand."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return int(self.now.timestamp() * 1e6)

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Fake:
    """As much of a message as its order and size take."""

    def __init__(self, second: int, queue_id: int, offset: int, size: int) -> None:
        self.stored_at = START + timedelta(seconds=second)
        self.queue_id = queue_id
        self.queue_offset = offset
        self.body = b"x" * size


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 50)), max_size=40), st.integers(1, 10))
def test_of_all_that_is_seen_the_newest_are_kept(rows: list[tuple[int, int, int]], most: int) -> None:
    messages: list[Any] = [Fake(second, queue_id, i, size) for i, (second, queue_id, size) in enumerate(rows)]
    kept = Kept(most, max_bytes=100)
    for message in messages:
        kept.add(message)
    shown = kept.messages()
    in_order = sorted(messages, key=order)

    assert shown == in_order[len(in_order) - len(shown) :]
    assert len(shown) <= most
    assert sum(len(message.body) for message in shown) <= 100
    assert len(shown) == min(most, len(rows)) or kept.is_too_large


def test_one_that_is_too_large_is_kept_all_the_same() -> None:
    kept = Kept(5, max_bytes=10)
    message: Any = Fake(0, 0, 0, 1000)
    kept.add(message)

    assert kept.messages() == [message]


def bodies(messages: list[StoredMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


async def fill(producer: Producer, topic: str, clock: Clock, count: int, *, queues: int, first: int = 0) -> None:
    """Messages in turn to queues, a minute apart; every third has a tag."""
    for i in range(first, first + count):
        clock.pass_s(60)
        message = Message(topic, b"%d" % i, tag="third" if i % 3 == 0 else None, index_keys=(f"k-{i % 4}",))
        await producer.send(message, queue_id=i % queues)


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(wall_us=clock) as running:
        yield running


@pytest.fixture
async def admin(broker: InMemoryBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.address) as running:
        yield running


async def test_the_newest_over_all_queues_in_the_order_they_were_stored(
    broker: InMemoryBroker, admin: Admin, clock: Clock
) -> None:
    await admin.create_topic("orders", 3)
    async with Producer(broker.address) as producer:
        await fill(producer, "orders", clock, 20, queues=3)

    newest = await admin.tail("orders").newest(5, now=clock.now)
    of_some = await admin.tail("orders", queues=[2, 0, 2]).newest(3, now=clock.now)
    all_of_it = await admin.tail("orders").newest(100, now=clock.now)
    since = await admin.tail("orders").newest(100, now=clock.now, since=clock.now - timedelta(seconds=150))

    assert bodies(newest.messages) == ["15", "16", "17", "18", "19"]
    assert bodies(of_some.messages) == ["15", "17", "18"]
    assert bodies(all_of_it.messages) == [str(i) for i in range(20)]
    assert bodies(since.messages) == ["17", "18", "19"]
    assert {found.left_out for found in (newest, of_some, all_of_it, since)} == {""}


class Counting:
    """A connection that counts what is pulled through it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.hello = connection.hello
        self.batches = 0

    async def request(self, op: Op, payload: Any, *, timeout_s: float) -> Any:
        reply = await self._connection.request(op, payload, timeout_s=timeout_s)
        self.batches += len(reply)  # of small queues: a batch each
        return reply


async def test_a_wide_topic_is_searched_by_time_and_only_a_little_of_it_read(
    broker: InMemoryBroker, admin: Admin, clock: Clock
) -> None:
    await admin.create_topic("wide", 1024)
    async with Producer(broker.address) as producer:
        for queue_id in range(1024):  # long ago, one each
            producer.send_nowait(Message("wide", b"old"), queue_id=queue_id)
        await producer.flush()
        await fill(producer, "wide", clock, 20, queues=700)
    connection = Connection(broker.address)
    await connection.open(timeout_s=5.0)
    counting: Any = Counting(connection)
    found = await Tail(admin, counting, "wide").newest(5, now=clock.now)
    await connection.close()

    assert bodies(found.messages) == ["15", "16", "17", "18", "19"]
    assert counting.batches < 300


async def test_all_queues_of_a_wide_topic_are_followed(broker: InMemoryBroker, admin: Admin) -> None:
    await admin.create_topic("wide", 1024)
    tail = admin.tail("wide")
    await tail.begin()
    async with aclosing(tail.follow()) as following, Producer(broker.address) as producer:
        for queue_id in (1023, 0, 512):
            await producer.send(Message("wide", b"%d" % queue_id), queue_id=queue_id)
        assert sorted(await take(following, 3)) == ["0", "1023", "512"]


async def test_without_a_time_it_looks_back_only_so_far_and_says_so(
    broker: InMemoryBroker, admin: Admin, clock: Clock
) -> None:
    await admin.create_topic("orders", 1)
    connection = Connection(broker.address)
    await connection.open(timeout_s=5.0)
    async with Producer(broker.address) as producer:
        await producer.send(Message("orders", b"early", tag="rare"), queue_id=0)
        clock.pass_s(86400)
        await producer.send_bodies("orders", [b"x"] * 900, queue_id=0)
    tail = Tail(admin, connection, "orders", expression="rare", look_back=500)
    short = await tail.newest(1, now=clock.now)
    whole = await tail.newest(1, now=clock.now, since=START)
    await connection.close()

    assert (short.messages, short.left_out[:45]) == ([], "only the newest 900 messages were looked at: ")
    assert bodies(whole.messages) == ["early"]


async def test_with_a_condition_it_looks_further_back_until_there_are_enough(
    broker: InMemoryBroker, admin: Admin, clock: Clock
) -> None:
    await admin.create_topic("orders", 2)
    async with Producer(broker.address) as producer:
        await producer.send_many([Message("orders", b"early", tag="rare")] * 2, queue_id=0)
        clock.pass_s(86400)
        for queue_id in (0, 1):
            await producer.send_bodies("orders", [b"x"] * 400, queue_id=queue_id)
        clock.pass_s(3600)
        await fill(producer, "orders", clock, 9, queues=2)

    rare = await admin.tail("orders", expression="rare || none").newest(5, now=clock.now)
    third = await admin.tail("orders", expression="third").newest(2, now=clock.now)
    keyed = await admin.tail("orders", wanted=lambda m: "k-1" in m.index_keys).newest(2, now=clock.now)

    assert (bodies(rare.messages), rare.left_out) == (["early", "early"], "")
    assert bodies(third.messages) == ["3", "6"]
    assert bodies(keyed.messages) == ["1", "5"]


async def test_more_than_was_asked_for_since_a_time_is_said(broker: InMemoryBroker, admin: Admin, clock: Clock) -> None:
    async with Producer(broker.address) as producer:
        await fill(producer, "orders", clock, 5, queues=2)
    found = await admin.tail("orders").newest(2, now=clock.now, since=START)

    assert bodies(found.messages) == ["3", "4"]
    assert found.left_out == "there may be more than these 2 since then: raise --lines"


async def test_what_is_not_there_is_named(admin: Admin, clock: Clock) -> None:
    with pytest.raises(TopicNotFound, match="nowhere"):
        await admin.tail("nowhere").newest(5, now=clock.now)
    await admin.create_topic("orders", 2)
    with pytest.raises(QueueNotFound, match="has the queues 0 to 1, not 2"):
        await admin.tail("orders", queues=[2]).newest(5, now=clock.now)
    assert (await admin.tail("orders").newest(5, now=clock.now)).messages == []


# ---- following


async def take(following: AsyncIterator[list[StoredMessage]], count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        found += bodies(await asyncio.wait_for(anext(following), 60))
    return found


@pytest.mark.virtual_time
async def test_it_follows_through_growth_and_a_restart_and_ends_with_the_topic() -> None:
    said: list[str] = []
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        await admin.create_topic("orders", 2)
        async with Producer(broker.address) as producer:
            await producer.send(Message("orders", b"before"), queue_id=0)
            tail = admin.tail("orders", notice=said.append)
            assert bodies((await tail.newest(0, now=datetime.now(UTC))).messages) == []
            async with aclosing(tail.follow()) as following:
                for queue_id in (1, 0):
                    await producer.send(Message("orders", b"in %d" % queue_id), queue_id=queue_id)
                assert sorted(await take(following, 2)) == ["in 0", "in 1"]

                await admin.grow_topic("orders", 4)
                await producer.send(Message("orders", b"grown"), queue_id=3)
                assert await take(following, 1) == ["grown"]

                coming = asyncio.create_task(take(following, 1))
                await asyncio.sleep(1)
                await broker.restart()
                await producer.send(Message("orders", b"after"), queue_id=1)
                assert await coming == ["after"]
                assert said[-1] == "the broker is back"

                async with Admin(broker.address) as other:
                    await other.delete_topic("orders")
                with pytest.raises(TopicNotFound, match="was deleted"):
                    await take(following, 1)


@pytest.mark.virtual_time
async def test_only_what_is_wanted_is_followed() -> None:
    async with (
        InMemoryBroker() as broker,
        Admin(broker.address) as admin,
        Producer(broker.address) as producer,
    ):
        await admin.create_topic("orders", 2)
        tail = admin.tail("orders", queues=[1], expression="new", wanted=lambda message: message.body != b"no")
        await tail.begin()
        for queue_id, tag, body in ((0, "new", b"no"), (1, "old", b"no"), (1, "new", b"no"), (1, "new", b"yes")):
            await producer.send(Message("orders", body, tag=tag), queue_id=queue_id)
        async with aclosing(tail.follow()) as following:
            assert await take(following, 1) == ["yes"]


def stored(queue_id: int, base_offset: int, *bodies: bytes, **more: Any) -> bytes:
    return stored_batch("orders", queue_id, base_offset, *bodies, **more)


class ScriptedBroker:
    """Answers pulls from a script."""

    def __init__(self, *answers: Sequence[PullResult]) -> None:
        self.answers = list(answers)
        self.asked: list[Pull] = []
        self.hello = SimpleNamespace(stores=StoreIds(STORE_ID), log_epoch=7)

    async def request(self, op: Op, payload: Pull, *, timeout_s: float) -> Any:
        assert op == Op.PULL
        self.asked.append(payload)
        return [list(answer) for answer in self.answers.pop(0)]


def reader(
    broker: ScriptedBroker, positions: dict[int, int], said: list[str] | None = None, **more: Any
) -> TopicCursor:
    heard: list[str] = [] if said is None else said
    return TopicCursor(cast(Connection, broker), "orders", positions, notice=heard.append, **more)


def found(index: int, *parts: bytes, next_offset: int = 0) -> PullResult:
    return PullResult(index, 0, next_offset, 0, 100, b"".join(parts))


async def test_messages_come_in_the_order_they_were_stored_and_places_move() -> None:
    broker = ScriptedBroker([found(0, stored(0, 5, b"c", b"d", at=2000)), found(1, stored(1, 0, b"a", b"b"))], [])
    reading = reader(broker, {0: 6, 1: 0})

    messages = await reading.read()
    await reading.read(2.5)

    assert [message.body for message in messages] == [b"a", b"b", b"d"]
    assert messages == sorted(messages, key=order)
    assert reading.positions == {0: ReadPosition(7, 3), 1: ReadPosition(2, 3)}
    assert [(queue.queue_id, queue.queue_offset, queue.log_epoch) for queue in broker.asked[1].queues] == [
        (0, 7, 3),
        (1, 2, 3),
    ]
    assert (broker.asked[1].group, broker.asked[1].wait_ms) == (None, 2500)


async def test_a_queue_that_was_read_comes_last_the_next_time() -> None:
    reading = reader(ScriptedBroker([found(0, stored(0, 0, b"a"))]), {0: 0, 1: 0, 2: 0})
    await reading.read()

    assert list(reading.positions) == [1, 2, 0]


async def test_only_wanted_tags_come_and_others_are_passed() -> None:
    batch = stored(0, 0, b"a", tag="paid") + stored(0, 1, b"b", tag="new")
    empty = PullResult(0, EMPTY, 9, 0, 9, b"")
    broker = ScriptedBroker([found(0, batch)], [empty])
    reading = reader(broker, {0: 0}, expression="new || old")

    assert [message.body for message in await reading.read()] == [b"b"]
    assert await reading.read() == []
    assert reading.positions == {0: ReadPosition(9, 7)}
    assert broker.asked[0].expression == "new || old"


@pytest.mark.parametrize("error", [MessagesLost, Damaged, LogTruncated])
async def test_what_cannot_be_read_is_passed_and_told(error: Any) -> None:
    said: list[str] = []
    reading = reader(ScriptedBroker([PullResult(0, error.code, 8, 8, 20, b"", "3 to 8 are gone")]), {0: 3}, said)

    assert await reading.read() == []
    assert reading.positions == {0: ReadPosition(8, 7)}
    assert said == ["3 to 8 are gone"]


async def test_behind_the_end_it_goes_on_at_the_end() -> None:
    said: list[str] = []
    reading = reader(
        ScriptedBroker([PullResult(0, OffsetOutOfRange.code, 30, 0, 20, b"", "out of range")]), {0: 30}, said
    )
    await reading.read()

    assert (reading.positions, said) == ({0: ReadPosition(20, 7)}, ["out of range: continuing at 20"])


async def test_a_topic_that_ended_is_an_end() -> None:
    reading = reader(ScriptedBroker([PullResult(0, TopicNotFound.code, 0, 0, 0, b"", "gone")]), {0: 0})

    with pytest.raises(TopicNotFound, match="the topic 'orders' was deleted"):
        await reading.read()


async def test_another_topic_of_the_same_name_is_not_mixed_in() -> None:
    reading = reader(ScriptedBroker([found(0, stored(0, 0, b"a", generation=2))]), {0: 0}, generation=1)

    with pytest.raises(TopicNotFound, match="created again"):
        await reading.read()


async def test_a_disk_that_fails_is_an_error_of_its_class() -> None:
    reading = reader(ScriptedBroker([PullResult(0, StoreFailed.code, 0, 0, 0, b"", "the disk")]), {0: 0})

    with pytest.raises(StoreFailed, match="the disk"):
        await reading.read()


async def test_what_unpacks_to_too_much_is_asked_for_again() -> None:
    large = b"x" * (4 << 20)
    parts = [stored(0, i, large) for i in range(6)]
    reading = reader(ScriptedBroker([found(0, *parts), found(1, stored(1, 0, b"small"))]), {0: 0, 1: 0})

    messages = await reading.read()

    assert sum(len(message.body) for message in messages) <= MOST_BYTES
    assert reading.positions == {1: ReadPosition(0), 0: ReadPosition(4, 3)}


async def test_a_queue_is_added_once() -> None:
    reading = reader(ScriptedBroker(), {0: 7})
    reading.add(0)
    reading.add(1)

    assert reading.positions == {0: ReadPosition(7), 1: ReadPosition(0)}
