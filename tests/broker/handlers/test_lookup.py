"""
Stored messages by key, by id and by time, over the wire.

What becomes of a question about stored messages that a thread or its asker cannot go on with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from rmq.broker.handlers.lookup import MAX_AT_ONCE, MessageHandler
from rmq.broker.net.connection import DEFERRED, Connection
from rmq.broker.state.topics import TopicTable
from rmq.broker.store.message_store import MessageStore
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch.batch import Rows
from rmq.wire.batch.layout import Buffer
from rmq.wire.errors import (
    OK,
    BadRequest,
    ConnectionLost,
    Damaged,
    Internal,
    MessageNotFound,
    QueueNotFound,
    TooManyInFlight,
    TopicNotFound,
    WireError,
)
from rmq.wire.model import MessageQueue, StoredMessage, from_us
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops.core import EMPTY, Op, OutgoingBatch, QueueRef
from rmq.wire.protocol.ops.messages import (
    FoundBatch,
    GetMessage,
    Head,
    HeadAt,
    Heads,
    OffsetAt,
    OffsetsAt,
    QueryMessages,
    QueryReply,
)
from rmq.wire.stores import StoreIds

from ..builders import BORN_AT, ORDERS, PAYMENTS, Opened
from ..harness import Client, crash_copy


async def send(client: Client, *keys: str, to: MessageQueue = ORDERS) -> list[str]:
    """One batch, a message for each text of keys; returns their ids."""
    rows = Rows([key.encode() for key in keys], BORN_AT, index_keys=[tuple(key.split()) for key in keys])
    (result,) = await client.send_batches(
        OutgoingBatch(to.queue_id, bytes(batches.encode(to.topic, to.queue_id, rows)))
    )
    assert result.status == 0
    of = [batches.handle(result.physical_offset, i) for i in range(len(keys))]
    return [batches.message_id(client.hello.store_id, handle) for handle in of]


async def query(client: Client, key: str, **more: Any) -> QueryReply:
    topic = more.pop("topic", None)
    return decode(QueryReply, await client.request(Op.QUERY_MESSAGES, QueryMessages(topic, key, **more)))


def messages(client: Client, found: list[FoundBatch]) -> list[StoredMessage]:
    store_id = client.hello.store_id
    return [message for batch, at in found for message in batches.read(batch, stores=StoreIds(store_id)).pick(at)]


def ids(client: Client, reply: QueryReply) -> list[str]:
    return [message.message_id for message in messages(client, reply.found)]


async def get(client: Client, message_id: str) -> StoredMessage:
    found = decode(FoundBatch, await client.request(Op.GET_MESSAGE, GetMessage(message_id)))
    return messages(client, [found])[0]


@pytest.mark.virtual_time
async def test_the_messages_of_a_key_are_found_newest_first(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        first = await send(client, "a", "b a", "c")
        await send(client, "b", "aa")
        second = await send(client, "x a y")

        reply = await query(client, "a")

        assert ids(client, reply) == [second[0], first[1], first[0]]
        assert (reply.before, reply.lag_bytes) == (0, 0)
        assert [message.body for message in messages(client, (await query(client, "aa")).found)] == [b"aa"]
        assert ids(client, await query(client, "nobody")) == []


@pytest.mark.virtual_time
async def test_a_query_may_name_a_topic_and_a_time(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create("orders")
        await client.create("payments")
        (order,) = await send(client, "a")
        (payment,) = await send(client, "a", to=PAYMENTS)
        at = [m.stored_at.timestamp() for m in messages(client, (await query(client, "a")).found)]
        assert at == sorted(at, reverse=True)
        (header,) = [
            batches.read(f.batch, stores=StoreIds(1)).header for f in (await query(client, "a", topic="orders")).found
        ]

        assert ids(client, await query(client, "a", topic="orders")) == [order]
        assert ids(client, await query(client, "a", topic="payments")) == [payment]
        assert ids(client, await query(client, "a", until_us=header.stored_at)) == []
        assert order in ids(client, await query(client, "a", since_us=header.stored_at))
        with pytest.raises(TopicNotFound):
            await query(client, "a", topic="other")


@pytest.mark.virtual_time
async def test_an_answer_ends_at_its_limit_and_says_where_to_go_on(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        sent = [name for _ in range(3) for name in await send(client, "a", "a", "b", "a")]
        wanted = [name for i, name in enumerate(sent) if i % 4 != 2][::-1]
        for limit in (1, 2, 3, 4, 9):
            found: list[str] = []
            before = 0
            while True:
                reply = await query(client, "a", limit=limit, before=before)
                found += ids(client, reply)
                before = reply.before
                if not before:
                    break
                assert len(messages(client, reply.found)) == limit

            assert found == wanted


@pytest.mark.virtual_time
async def test_an_answer_has_at_most_8_mib(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        for i in range(3):
            rows = Rows([bytes([i]) * (3 << 20)], BORN_AT, index_keys=[("a",)])
            await client.send_batches(OutgoingBatch(0, bytes(batches.encode("orders", 0, rows))))

        reply = await query(client, "a")

        assert [message.body[0] for message in messages(client, reply.found)] == [2, 1]
        rest = await query(client, "a", before=reply.before)
        assert [message.body[0] for message in messages(client, rest.found)] == [0]


@pytest.mark.virtual_time
async def test_a_message_is_found_by_its_id_also_after_a_restart(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        named = await send(client, "a", "b")
        await client.connection.close()
    await broker.restart()

    async with Client(broker) as client:
        assert (await get(client, named[1])).body == b"b"
        assert (await get(client, named[1].upper())).index_keys == ("b",)
        assert ids(client, await query(client, "b")) == [named[1]]


@pytest.mark.virtual_time
async def test_an_id_that_names_nothing_is_not_found(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        (named,) = await send(client, "a")
        store_id, position, _ = batches.split_message_id(named)

        for handle in (batches.handle(position, 1), batches.handle(position + 8, 0), batches.handle(1 << 40, 0), 0):
            with pytest.raises(MessageNotFound, match="there is no message"):
                await get(client, batches.message_id(store_id, handle))
        with pytest.raises(MessageNotFound, match=f"belongs to the store 0000000000000007, .* {store_id:016x}"):
            await get(client, batches.message_id(7, batches.handle(position, 0)))
        with pytest.raises(BadRequest, match="a message id has 32 hex digits"):
            await get(client, "x")


@pytest.mark.virtual_time
async def test_the_first_offset_of_a_time(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        times = []
        for i in range(5):
            sent = await send(client, "a", "b")
            times.append((await get(client, sent[0])).stored_at)
            broker.broker._store.newest_us += 1000 * (i % 2)

        async def at(us: int, *queues: QueueRef) -> list[OffsetAt]:
            return decode_list(OffsetAt, await client.request(Op.OFFSETS_AT, OffsetsAt(us, list(queues))))

        orders = QueueRef("orders", 0)
        stamps = [batches.read(f.batch, stores=StoreIds(1)).header.stored_at for f in (await query(client, "a")).found][
            ::-1
        ]
        for us in (0, stamps[0] - 1, stamps[0], stamps[2], stamps[2] + 1, stamps[4], stamps[4] + 1):
            older = 2 * sum(stamp < us for stamp in stamps)
            assert await at(us, orders) == [OffsetAt(0, older, 0, 10)]
        assert await at(0, QueueRef("orders", 1)) == [OffsetAt(0, 0, 0, 0)]
        none, wrong = await at(0, QueueRef("other", 0), QueueRef("orders", 9))
        assert (none.status, wrong.status) == (TopicNotFound.code, QueueNotFound.code)


@pytest.mark.virtual_time
async def test_the_message_at_an_offset_of_each_queue(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        first = await send(client, "a", "b")
        second = await send(client, "c")

        async def heads(*entries: tuple[str, int, int]) -> list[Head]:
            return decode_list(Head, await client.request(Op.HEADS, Heads([HeadAt(*entry) for entry in entries])))

        found = await heads(("orders", 0, 0), ("orders", 0, 1), ("orders", 0, 2), ("orders", 0, -1))
        named = [batches.message_id(client.hello.store_id, head.handle) for head in found]
        assert named == [*first, *second, first[0]]
        assert [head.queue_offset for head in found] == [0, 1, 2, 0]
        assert [from_us(head.stored_at) for head in found[:3]] == [
            (await get(client, message_id)).stored_at for message_id in (*first, *second)
        ]
        assert await heads(("orders", 0, 3), ("orders", 1, 0)) == [Head(EMPTY, 3), Head(EMPTY, 0)]
        assert [head.status for head in await heads(("other", 0, 0), ("orders", 9, 0))] == [
            TopicNotFound.code, QueueNotFound.code,
        ]  # fmt: skip


@pytest.mark.virtual_time
async def test_the_message_at_an_offset_of_a_batch_that_is_longer_than_a_header(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        named = await send(client, *(f"k{i}" * 20 for i in range(100)))

        (head,) = decode_list(Head, await client.request(Op.HEADS, Heads([HeadAt("orders", 0, 99)])))

        assert batches.message_id(client.hello.store_id, head.handle) == named[99]


@pytest.mark.virtual_time
async def test_the_message_at_a_damaged_place_is_reported_to_be_damaged(tmp_path: Path) -> None:
    async with InMemoryBroker(data_dir=str(tmp_path)) as broker, Client(broker) as client:
        await client.create()
        (named,) = await send(client, "a")
        _, position, _ = batches.split_message_id(named)
        with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as segment:
            segment.seek(position + 32)  # stored_at
            segment.write(b"\xff")

        (head,) = decode_list(Head, await client.request(Op.HEADS, Heads([HeadAt("orders", 0, 0)])))

        assert (head.status, head.queue_offset) == (Damaged.code, 0)
        assert head.text == "the batch of orders/0 at offset 0 is damaged"


@pytest.mark.virtual_time
async def test_another_message_in_its_place_is_never_reported(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        await send(client, "a")
        queue = broker.broker._store.queue(MessageQueue("orders", 0))
        queue.add_gap(queue._positions[0], 2)  # what lay behind the first one is damaged
        queue.readable = 2

        first, second = decode_list(
            Head, await client.request(Op.HEADS, Heads([HeadAt("orders", 0, 0), HeadAt("orders", 0, 1)]))
        )

        assert (first.status, second.status) == (OK, Damaged.code)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"key": ""}, "is empty"),
        ({"limit": 0}, "1 to 1024 messages"),
        ({"limit": 1025}, "1 to 1024 messages"),
        ({"since_us": -2}, "not between 1970 and 9999"),
        ({"until_us": 1 << 60}, "not between 1970 and 9999"),
        ({"before": -1}, "not a handle"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    broker: InMemoryBroker, wrong: dict[str, Any], sentence: str
) -> None:
    async with Client(broker) as client:
        with pytest.raises(BadRequest, match=sentence):
            await query(client, **{"key": "a", **wrong})


class SlowIndexer:
    """Indexes when it is told to; what is sent meanwhile is owed."""

    def __init__(self, broker: InMemoryBroker) -> None:
        self.store = broker.broker._store
        self.maintenance = broker.broker._maintenance
        self.maintenance._busy = True  # so that nothing is begun

    def catch_up(self) -> None:
        self.maintenance._ended(None)


@pytest.mark.virtual_time
async def test_a_query_waits_for_the_index_to_catch_up(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        indexer = SlowIndexer(broker)
        named = await send(client, "a")
        loop = asyncio.get_running_loop()
        loop.call_later(0.25, indexer.catch_up)
        began = loop.time()

        reply = await query(client, "a")

        assert (ids(client, reply), reply.lag_bytes, loop.time() - began) == (named, 0, 0.25)


@pytest.mark.virtual_time
async def test_after_a_second_a_query_answers_and_says_by_how_much_the_index_lags(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        before = await send(client, "a")
        await query(client, "a")
        indexer = SlowIndexer(broker)
        await send(client, "a")
        began = asyncio.get_running_loop().time()

        reply = await query(client, "a")

        indexer.maintenance._busy = False
        assert ids(client, reply) == before
        assert reply.lag_bytes == broker.broker._store.exposed - indexer.store.keys.end > 0
        assert asyncio.get_running_loop().time() - began == pytest.approx(1.0)


@pytest.mark.virtual_time
async def test_a_connection_asks_few_questions_at_once(broker: InMemoryBroker) -> None:
    async with Client(broker) as client:
        await client.create()
        indexer = SlowIndexer(broker)
        await send(client, "a")

        answers = await asyncio.gather(*(query(client, "a") for _ in range(12)), return_exceptions=True)

        assert sum(isinstance(answer, TooManyInFlight) for answer in answers) == 4
        assert sum(isinstance(answer, QueryReply) for answer in answers) == 8
        assert isinstance(await query(client, "a"), QueryReply)
        indexer.catch_up()


@pytest.mark.virtual_time
async def test_no_search_runs_for_a_closed_connection(broker: InMemoryBroker) -> None:
    indexer = SlowIndexer(broker)
    async with Client(broker) as client:
        await client.create()
        await send(client, "a")
        asking = asyncio.create_task(query(client, "a"))
        while not indexer.maintenance._waiting:
            await asyncio.sleep(0)
        await client.connection.close()
        with pytest.raises(ConnectionLost):
            await asking
    indexer.catch_up()
    while not indexer.maintenance.idle:
        await asyncio.sleep(0.01)

    handler = broker.broker.handlers[Op.QUERY_MESSAGES].__self__  # type: ignore[attr-defined]
    assert (handler._asked, broker.broker._read_pool.jobs) == ({}, 0)


@pytest.mark.virtual_time
async def test_keys_are_found_over_many_segments_and_after_a_crash(tmp_path: Path) -> None:
    async with InMemoryBroker(segment_bytes=4096) as broker:
        async with Client(broker) as client:
            await client.create()
            named = [(await send(client, "a", f"b-{i}"))[0] for i in range(60)]
            assert len(broker.broker._store.log.segments) > 2
            assert ids(client, await query(client, "a")) == named[::-1]
        async with crash_copy(broker, tmp_path / "copy") as copy, Client(copy) as client:
            assert ids(client, await query(client, "a")) == named[::-1]
            (row,) = messages(client, (await query(client, "b-3")).found)
            assert row.queue_offset == 7
            assert (await get(client, named[3])).queue_offset == 6


ID = "f" * 32


class Asker:
    """The part of a connection that answers; it remembers what was answered."""

    def __init__(self) -> None:
        self.closing = False
        self.blocked = False
        self.answers: list[type[WireError] | bytes] = []

    def reply_parts(self, request_id: int, payload: Sequence[Buffer]) -> None:
        self.answers.append(b"".join(payload))

    def refuse(self, request_id: int, error: WireError) -> None:
        self.answers.append(type(error))

    def defect(self, error: Exception, request_id: int) -> Internal:
        return Internal(str(error))


class Pool:
    """A pool whose jobs run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.full = False

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if self.full:
            raise TooManyInFlight("full")
        self.jobs.append((job, done))

    def run(self) -> None:
        for job, done in self.jobs:
            try:
                done(job())
            except WireError as error:
                done(error)
        self.jobs.clear()


@pytest.fixture
def store(memory_path: Path) -> Iterator[MessageStore]:
    opened = Opened(memory_path / "data")
    yield opened.store
    opened.close()


def make(store: MessageStore, pool: Pool) -> tuple[MessageHandler, Asker, Connection]:
    asker = Asker()
    handler = MessageHandler(
        store, TopicTable(), pool, index_now=lambda ready: None, call_later=lambda *_: None, clock=lambda: 0.0  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    return handler, asker, cast(Connection, asker)


def test_a_question_is_answered_when_its_thread_is_done(store: MessageStore) -> None:
    pool = Pool()
    handler, asker, connection = make(store, pool)

    assert handler.get(connection, 1, [ID]) is DEFERRED
    assert handler.query(connection, 2, [None, "k"]) is DEFERRED
    assert handler.offsets_at(connection, 3, [0, []]) is DEFERRED
    assert asker.answers == []
    pool.run()

    assert asker.answers == [MessageNotFound, b"\x93\x90\x00\x00", b"\x90"]


def test_a_full_pool_refuses_and_forgets_the_question(store: MessageStore) -> None:
    pool = Pool()
    handler, asker, connection = make(store, pool)
    pool.full = True
    for _ in range(MAX_AT_ONCE + 1):
        handler.get(connection, 1, [ID])

    assert asker.answers == [TooManyInFlight] * (MAX_AT_ONCE + 1)


def test_a_peer_that_does_not_read_gets_no_more_large_answers(store: MessageStore) -> None:
    pool = Pool()
    handler, asker, connection = make(store, pool)
    handler.query(connection, 1, [None, "k"])
    asker.blocked = True
    pool.run()

    assert asker.answers == [TooManyInFlight]


def test_a_defect_in_a_thread_is_answered_as_one(store: MessageStore) -> None:
    pool = Pool()
    handler, asker, connection = make(store, pool)
    handler.query(connection, 1, [None, "k"])
    ((_, done),) = pool.jobs
    done(ZeroDivisionError("a defect"))

    assert asker.answers == [Internal]
