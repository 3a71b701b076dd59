"""The client on the real broker, over loopback TCP, on both loops."""

from __future__ import annotations

import asyncio

import pytest

from rmq.client import Admin, Message, MessageQueue, Producer, by_int
from rmq.engine.native.connection import Connection
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.compression import NUMBERS
from rmq.wire.batch.layout import MAX_BODY, MAX_COUNT
from rmq.wire.errors import ConfigError, MessageTooLarge, OffsetOutOfRange, QueueNotFound, TopicExists, TopicNotFound
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from rigs.batches import every_codec


async def pulled(address: str, topic: str, queue_id: int) -> tuple[int, list[bytes]]:
    """The id of the store, and every batch of a queue as it is stored."""
    connection = Connection(address)
    await connection.open(timeout_s=5)
    assert connection.hello is not None
    data: list[bytes] = []
    end = 0
    while True:
        asked = ops.Pull(None, 0, 4 << 20, [ops.PullQueue(topic, queue_id, end)])
        (found,) = decode_list(ops.PullResult, await connection.request(Op.PULL, asked))
        if found.status:
            break
        at = 0
        while at < len(found.batches):
            header = layout.parse_header(found.batches, at)
            data.append(found.batches[at : at + header.size])
            at, end = at + header.size, header.end_offset
    await connection.close()
    return connection.hello.store_id, data


async def stored(address: str, topic: str, queue_id: int) -> list[StoredMessage]:
    """Everything a queue holds."""
    store_id, data = await pulled(address, topic, queue_id)
    return [message for one in data for message in batches.read(one, stores=StoreIds(store_id)).messages()]


async def all_stored(broker: InMemoryBroker, topic: str) -> list[StoredMessage]:
    async with Admin(broker.address) as admin:
        queues = (await admin.describe_topic(topic)).queues
    return [message for queue in queues for message in await stored(broker.address, topic, queue.queue_id)]


async def test_a_message_sent_again_with_its_key_reaches_the_same_queue() -> None:
    keys = [f"o-{i}" for i in range(40)]
    async with InMemoryBroker() as broker, Producer(broker.address) as producer:
        await asyncio.gather(*(producer.send(Message("orders", b"1", key=key)) for key in keys))
        first = await all_stored(broker, "orders")
        for message in first:
            again = await producer.send(Message(message.topic, b"2", key=message.key))
            assert again.queue_id == message.queue_id
        await producer.send_many(Message(message.topic, b"3", key=message.key) for message in first)

        queues: dict[str | None, set[int]] = {}
        for message in await all_stored(broker, "orders"):
            queues.setdefault(message.key, set()).add(message.queue_id)
        assert sorted(queues) == sorted(keys)
        assert all(len(of_key) == 1 for of_key in queues.values())
        assert len(set.union(*queues.values())) == 4


async def test_many_messages_with_keys_keep_their_order_in_each_queue() -> None:
    sent = [Message("orders", b"%d" % i, key=None if i % 5 == 4 else f"o-{i % 7}", tag="t") for i in range(500)]
    async with InMemoryBroker() as broker, Producer(broker.address) as producer:
        receipts = await producer.send_many(sent)

        found = await all_stored(broker, "orders")

    by_id = {message.message_id: message for message in found}
    assert [by_id[receipt.message_id].body for receipt in receipts] == [message.body for message in sent]
    for key in {message.key for message in sent} - {None}:
        assert [m.body for m in found if m.key == key] == [m.body for m in sent if m.key == key]


async def test_of_many_messages_with_keys_none_is_sent_if_one_is_too_large() -> None:
    async with InMemoryBroker() as broker, Producer(broker.address) as producer:
        await producer.send(Message("orders", b"before"))
        with pytest.raises(MessageTooLarge):
            await producer.send_many(
                [Message("orders", b"x", key="a"), Message("orders", bytes(MAX_BODY + 1), key="b")]
            )

        assert [message.body for message in await all_stored(broker, "orders")] == [b"before"]


async def test_many_messages_with_keys_can_be_cancelled() -> None:
    async with InMemoryBroker() as broker, Producer(broker.address) as producer:
        sending = asyncio.create_task(producer.send_many([Message("orders", b"x", key=f"o-{i}") for i in range(50)]))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

        await producer.flush()
        await producer.send(Message("orders", b"y", key="o-1"))
        assert [m.body for m in await all_stored(broker, "orders") if m.key == "o-1"][-1] == b"y"


async def test_messages_keep_their_keys_in_a_queue_that_is_chosen_otherwise() -> None:
    sent = [Message("orders", b"%d" % i, key=f"o-{i}") for i in range(9)]
    async with InMemoryBroker() as broker, Producer(broker.address) as producer:
        await producer.send_many(sent, queue_id=2)
        await producer.send(sent[0], queue_id=2)
        await producer.send_many([Message("numbers", b"x", key=str(i)) for i in range(9)], selector=by_int)

        found = await stored(broker.address, "orders", 2)
        numbers = await all_stored(broker, "numbers")

    assert [message.key for message in found] == [*(message.key for message in sent), "o-0"]
    assert {message.key: message.queue_id for message in numbers} == {str(i): i % 4 for i in range(9)}


async def test_a_key_is_given_once() -> None:
    async with InMemoryBroker() as broker, Producer(broker.address) as producer:
        message = Message("orders", b"x", key="a")
        await producer.send(message, key="a")
        with pytest.raises(ConfigError, match="the message has the key 'a' and the call gives key='b': give it once"):
            await producer.send(message, key="b")
        with pytest.raises(ConfigError, match="give it once"):
            await producer.send_many([Message("orders", b"x"), message], key="b")
        with pytest.raises(ConfigError, match="give it once"):
            producer.send_nowait(message, key="b")

        assert len(await all_stored(broker, "orders")) == 1


@pytest.mark.both_loops
async def test_what_was_sent_is_what_is_stored() -> None:
    async with InMemoryBroker() as broker, Producer(broker.address) as producer:
        sent = Message("orders", b"paid", tag="paid", index_keys=("o-17", "c-4"), properties={"a": "b"})
        receipt = await producer.send(sent, key="o-17")
        receipts = await producer.send_bodies("orders", [b"%d" % i for i in range(MAX_COUNT + 9)], key="o-17")

        found = await stored(broker.address, "orders", receipt.queue_id)

        first = found[0]
        assert (first.body, first.tag, first.index_keys, first.properties) == (
            b"paid",
            "paid",
            ("o-17", "c-4"),
            {"a": "b"},
        )
        assert first.key == found[-1].key == "o-17"
        assert [message.body for message in found[1:]] == [b"%d" % i for i in range(MAX_COUNT + 9)]
        assert [message.message_id for message in found] == [receipt.message_id, *(one.message_id for one in receipts)]
        assert receipts[-1].stored_at == found[-1].stored_at
        assert receipt.durable


@pytest.mark.both_loops
async def test_order_and_once_over_restarts_of_the_broker() -> None:
    async with InMemoryBroker() as broker, Producer(broker.address) as producer:
        await producer.send(Message("orders", b"0"), queue_id=0)

        async def send_all() -> None:
            for i in range(1, 400):
                producer.send_nowait(Message("orders", b"%d" % i), queue_id=0)
                if i % 10 == 0:
                    await asyncio.sleep(0)
            await producer.flush()

        sending = asyncio.create_task(send_all())
        for _ in range(3):
            await asyncio.sleep(0)
            await broker.restart()
        await sending

        found = await stored(broker.address, "orders", 0)
        assert [int(message.body) for message in found] == list(range(400))
        assert producer.failed_one_way == 0


@pytest.mark.both_loops
async def test_order_and_once_over_connections_that_break() -> None:
    async with InMemoryBroker() as broker, Producer(broker.address) as producer:
        await producer.send(Message("orders", b"0"), queue_id=0)
        sends = []
        for i in range(1, 300):
            sends.append(asyncio.create_task(producer.send(Message("orders", b"%d" % i), queue_id=0)))
            await asyncio.sleep(0)
            if i % 60 == 0:
                producer._connection.drop(ConnectionResetError("a test"))
        receipts = await asyncio.gather(*sends)

        assert [receipt.queue_offset for receipt in receipts] == list(range(1, 300))
        assert [int(message.body) for message in await stored(broker.address, "orders", 0)] == list(range(300))


async def test_a_large_call_leaves_the_loop_to_others() -> None:
    async with InMemoryBroker() as broker, Producer(broker.address) as producer:
        await producer.send_bodies("orders", [b"x"], queue_id=0)
        sending = asyncio.create_task(producer.send_bodies("orders", [bytes(1000)] * 100_000, queue_id=0))
        turns = 0
        while not sending.done():
            await asyncio.sleep(0)
            turns += 1

        assert len(await sending) == 100_000
        assert turns > 20


async def test_a_call_of_any_length_keeps_its_order_over_many_batches() -> None:
    async with InMemoryBroker() as broker, Producer(broker.address) as producer:
        bodies = [b"%d " % i + bytes(i % 300) for i in range(100_000)]

        receipts = await producer.send_many((Message("orders", body, tag="t") for body in bodies), queue_id=0)

        assert len(receipts) == 100_000
        assert all(receipts[i].queue_offset == i for i in (0, 1, 4095, 4096, 50_000, 99_999))
        assert [message.body for message in await stored(broker.address, "orders", 0)] == bodies


@every_codec
async def test_compressed_messages_are_stored_as_they_came_and_read_as_they_were(name: str) -> None:
    async with InMemoryBroker() as broker, Producer(broker.address, compression=name) as producer:
        bodies = [b'{"order": %d, "state": "paid"}' % i for i in range(20_000)]
        receipts = await producer.send_bodies("orders", bodies, queue_id=0)
        last = await producer.send(Message("orders", b"short", tag="t"), queue_id=0)

        headers = [layout.parse_header(data) for data in (await pulled(broker.address, "orders", 0))[1]]
        found = await stored(broker.address, "orders", 0)

        assert {header.codec for header in headers[:-1]} == {NUMBERS[name]}
        assert headers[-1].codec == 0, "too short to shrink"
        assert sum(header.size for header in headers) < sum(map(len, bodies)) / 2
        assert [message.body for message in found] == [*bodies, b"short"]
        assert [message.message_id for message in found] == [r.message_id for r in (*receipts, last)]


@every_codec
async def test_compressed_messages_survive_restarts_of_the_broker_in_order_and_once(name: str) -> None:
    async with InMemoryBroker() as broker, Producer(broker.address, compression=name) as producer:
        await producer.send(Message("orders", b"0" * 100), queue_id=0)
        sends = []
        for i in range(1, 100):
            sends.append(asyncio.create_task(producer.send(Message("orders", b"%d" % i * 100), queue_id=0)))
            await asyncio.sleep(0)
            if i % 40 == 0:
                await broker.restart()
        await asyncio.gather(*sends)

        found = await stored(broker.address, "orders", 0)
        assert [message.body for message in found] == [b"%d" % i * 100 for i in range(100)]


async def test_admin_calls_are_answered() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        made = await admin.create_topic("orders", queues=3)
        assert await admin.create_topic("orders", queues=3) == made
        with pytest.raises(TopicExists):
            await admin.create_topic("orders", queues=5)
        assert await admin.topic("orders") == made
        assert made in await admin.list_topics()
        assert [found.max_offset for found in await admin.ranges([MessageQueue("orders", 2)])] == [0]
        assert await admin.lock_status() == []


@pytest.mark.virtual_time
async def test_a_grown_topic_gets_unkeyed_messages_everywhere_and_keys_where_they_were() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin, Producer(broker.address) as producer:
        await admin.create_topic("orders", 2)
        before = {key: (await producer.send(Message("orders", b"x"), key=key)).queue_id for key in map(str, range(9))}
        grown = await admin.grow_topic("orders", 5)
        await asyncio.sleep(31)
        await producer.send(Message("orders", b"x"))
        await asyncio.sleep(1)

        used = {(await producer.send(Message("orders", b"x"))).queue_id for _ in range(10)}
        after = {key: (await producer.send(Message("orders", b"x"), key=key)).queue_id for key in map(str, range(9))}

    assert (len(grown.queues), grown.shards) == (5, 2)
    assert used == set(range(5))
    assert after == before


@pytest.mark.virtual_time
async def test_a_producer_outlives_its_topic_and_goes_on_in_order_in_the_new_one() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin, Producer(broker.address) as producer:
        await producer.send(Message("orders", b"old"), key="k")
        told = await admin.describe_topic("orders")
        await admin.delete_topic("orders", told.generation)
        await admin.create_topic("orders", 1)

        sends = [producer.send(Message("orders", b"%d" % i), key="k") for i in range(3)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [TopicNotFound] * 3, "they were placed by the old route"
        for i in range(3, 6):
            await producer.send(Message("orders", b"%d" % i), key="k")

        assert [message.body for message in await stored(broker.address, "orders", 0)] == [b"3", b"4", b"5"]
        again = await admin.describe_topic("orders")

    assert (told.messages, again.messages, len(again.queues)) == (1, 3, 1)
    assert again.generation == told.generation + 1


@pytest.mark.virtual_time
async def test_a_producer_makes_a_deleted_topic_anew_also_over_a_restart() -> None:
    async with InMemoryBroker() as broker, Producer(broker.address) as producer:
        await producer.send(Message("orders", b"old"))
        async with Admin(broker.address) as admin:
            await admin.delete_topic("orders")
        await broker.restart()

        with pytest.raises(TopicNotFound):
            await producer.send(Message("orders", b"refused"))
        await producer.send(Message("orders", b"new"))

        async with Admin(broker.address) as admin:
            told = await admin.describe_topic("orders")

    assert (told.generation, told.messages) == (2, 1)


async def test_offsets_of_a_group_are_reset_in_parts_and_each_queue_has_its_result() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin, Producer(broker.address) as producer:
        await admin.create_topic("orders", 1024)
        await admin.create_topic("payments", 2)
        await producer.send_bodies("payments", [b"a", b"b"], queue_id=1)
        first, last, missing = MessageQueue("payments", 0), MessageQueue("payments", 1), MessageQueue("payments", 2)
        wanted = {MessageQueue("orders", queue_id): 0 for queue_id in range(1024)} | {first: 1, last: 1, missing: 0}

        would = await admin.reset_offsets("g", {last: 2}, dry_run=True)
        results = await admin.reset_offsets("g", wanted)

        assert would == {last: (0, -1, 2, None)}
        assert list(results) == list(wanted)
        assert results[last] == (0, -1, 1, None)
        assert (results[first].status, results[missing].status) == (OffsetOutOfRange.code, QueueNotFound.code)
        assert (await admin.ranges([last], "g"))[0].committed == 1
