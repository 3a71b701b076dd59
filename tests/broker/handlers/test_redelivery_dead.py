"""Messages that a group gives up lie in its dead-letter topic, each once, and the group has passed them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmq.broker.state.dead_letters import MAX_COPIED
from rmq.broker.store.changes import Copied
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import ProducerMark, Rows
from rmq.wire.batch.compression import CODECS
from rmq.wire.errors import BadName, BadRequest, DiskFull, Fenced, OffsetOutOfRange, QueueNotFound, StoreFailed
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op, Push
from rmq.wire.protocol.ops.topics import DeleteTopic, DescribeTopic
from rmq.wire.stores import StoreIds

from ..builders import BORN_AT, ORDERS, files_limited_to, make_batch, segment_files
from ..harness import Client, bodies, crash_copy, holder

pytestmark = pytest.mark.virtual_time

DEAD_DEAD = MessageQueue("%DLQ%g", 0)


async def letters_dead(client: Client, queue: MessageQueue = DEAD_DEAD) -> list[StoredMessage]:
    """All dead letters, as anybody can read them."""
    return await client.stored(queue)


async def origins(client: Client) -> list[int]:
    return [int(letter.properties["RMQ_ORIGIN_OFFSET"]) for letter in await letters_dead(client)]


async def test_a_copy_has_all_of_the_original_and_says_where_it_is_from(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        rows = Rows(
            [b"plain", b"odd" * 100], [BORN_AT, BORN_AT + 7], tags=[None, "paid"], index_keys=[(), ("k1", "k2")],
            keys=["a", "order-9"], properties=[{}, {"colour": "red"}],
        )  # fmt: skip
        data = bytes(batches.encode("orders", 0, rows, by=ProducerMark(5, 1), codec=CODECS.by_number(1)))
        await client.send(b"first")
        sent = (await client.send_batches(ops.OutgoingBatch(0, data)))[0]
        await client.attempt(epoch, 2, 3)

        assert await client.dead_letter(epoch, 2, commit=3, reason="cannot be parsed") == (0, None)

        (letter,) = await letters_dead(client)
        assert (letter.body, letter.tag, letter.index_keys) == (b"odd" * 100, "paid", ("k1", "k2"))
        assert (letter.key, letter.attempt) == ("order-9", 1)
        assert round(letter.born_at.timestamp() * 1e6) == BORN_AT + 7
        origin = batches.handle(sent.physical_offset, 1)
        assert letter.properties == {
            "colour": "red", "RMQ_ORIGIN_TOPIC": "orders", "RMQ_ORIGIN_QUEUE": "0", "RMQ_ORIGIN_OFFSET": "2",
            "RMQ_ORIGIN_ID": batches.message_id(client.hello.store_id, origin), "RMQ_ATTEMPTS": "3",
            "RMQ_DEAD_REASON": "cannot be parsed", "RMQ_GROUP": "g",
        }  # fmt: skip
        (batch,) = batches.read_all((await client.pull(0, queue=DEAD_DEAD)).batches, stores=StoreIds(1))
        assert (batch.header.origin, batch.header.producer_id) == (origin, 0)
        assert await client.committed() == 3
        assert (await client.acquire()).runs == []


@pytest.mark.parametrize(("reported", "told", "shown"), [(2, [3], "3"), (4, [3], "4"), (0, [1], "1"), (2, [], "2")])
async def test_the_last_failure_is_counted_too_if_it_is_told(
    broker: InMemoryBroker, reported: int, told: list[int], shown: str
) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"poison")
        if reported:
            await client.attempt(epoch, 0, reported)

        await client.dead_letter(epoch, 0, attempts=told)

        (letter,) = await letters_dead(client)
        assert letter.properties["RMQ_ATTEMPTS"] == shown


async def test_asking_again_does_nothing_again_dead(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(*(b"%d" % i for i in range(8)))
        await client.dead_letter(epoch, 3)
        await client.dead_letter(epoch, 3)
        await client.dead_letter(epoch, 2, 3, 4)
        await client.dead_letter(epoch, 2, 4, commit=5)
        await client.dead_letter(epoch, 1, 2, commit=5)  # below the committed offset

        assert await origins(client) == [3, 2, 4]
        assert await client.committed() == 5


async def test_requests_of_one_moment_copy_once_and_in_order_dead(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(*(b"%d" % i for i in range(8)))

        outcomes = await asyncio.gather(*(client.dead_letter(epoch, *some) for some in ((1, 2), (2, 3), (1, 2, 3, 4))))

        assert outcomes == [(0, None)] * 3
        assert await origins(client) == [1, 2, 3, 4]


@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_letters_progress_and_what_was_given_up_survive(
    broker: InMemoryBroker, memory_path: Path, how: str
) -> None:
    client, epoch = await holder(broker)
    await client.send(b"a", b"b", b"c", b"d")
    await client.dead_letter(epoch, 1, commit=2)
    await client.dead_letter(epoch, 3)  # above the committed offset
    copy = crash_copy(broker, memory_path / "copy")
    if how == "restart":
        await broker.restart()
    session = client.connection.session
    await client.connection.close()
    if how == "crash":
        await broker.stop()
        await copy.start()
    after = copy if how == "crash" else broker

    again = Client(after)
    again.connection.session = session
    async with again:
        assert await again.committed() == 2
        assert await again.dead_letter(epoch, 3, commit=4) == (0, None)
        assert await origins(again) == [1, 3]
        assert await again.committed() == 4
    if how == "crash":
        await copy.stop()


async def test_dead_letters_are_fenced(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two:
        await two.join()
        await one.send(b"a")

        for client, stale in ((one, epoch - 1), (one, 0), (two, epoch)):
            with pytest.raises(Fenced):
                await client.dead_letter(stale, 0, commit=1)
        assert await one.committed() == -1
        assert [topic[0] for topic in await one.request(Op.LIST_TOPICS, [])] == ["orders"]


@pytest.mark.parametrize("offsets", [[], [1, 1], [2, 1], [-1], [-1, 0]])
async def test_offsets_that_make_no_sense_are_refused(broker: InMemoryBroker, offsets: list[int]) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")

        with pytest.raises(BadRequest):
            await client.dead_letter(epoch, *offsets)


async def test_what_cannot_be_copied_is_refused_by_name_and_commits_nothing(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")

        with pytest.raises(OffsetOutOfRange, match="offset 3 is out of range: orders/0 holds 0 to 3"):
            await client.dead_letter(epoch, 1, 3, commit=2)
        with pytest.raises(BadRequest, match="offset 4 cannot be committed"):
            await client.dead_letter(epoch, 1, commit=4)
        with pytest.raises(BadRequest, match="the reason has 256 characters"):
            await client.dead_letter(epoch, 1, reason="x" * 256)
        with pytest.raises(QueueNotFound):
            await client.dead_letter(epoch, 1, queue=MessageQueue("orders", 9))
        with pytest.raises(BadRequest, match="at most 1024 entries, not 1025"):
            await client.dead_letter(epoch, *range(1025))
        for attempts in ([1, 2], [0], [1 << 31]):
            with pytest.raises(BadRequest, match="attempts"):
                await client.dead_letter(epoch, 1, attempts=attempts)
        with pytest.raises(BadName):
            await client.dead_letter(epoch, 1, group="a b")
        assert await client.committed() == -1


async def test_a_disk_that_takes_nothing_leaves_neither_letter_nor_progress(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")
        await client.dead_letter(epoch, 0)
        (segment,) = segment_files(broker.broker.config.data_path())
        with files_limited_to(segment.stat().st_size):
            with pytest.raises(StoreFailed):
                await client.dead_letter(epoch, 1, commit=2)
            assert await client.committed() == -1
        broker.broker._sends.refuse_because = "only 3 MiB are free"
        with pytest.raises(DiskFull, match="only 3 MiB are free"):
            await client.dead_letter(epoch, 1, commit=2)
        broker.broker._sends.refuse_because = None

        assert await client.dead_letter(epoch, 1, commit=2) == (0, None)
        assert await origins(client) == [0, 1]
        assert await client.committed() == 2


async def test_many_large_messages_are_given_up_in_portions(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        for i in range(6):
            await client.send(b"%d" % i * (3 << 20))

        assert await client.dead_letter(epoch, *range(6), commit=6) == (0, None)

        assert (await client.range(DEAD_DEAD)).max_offset == 6
        found = [(await client.pull(i, queue=DEAD_DEAD)) for i in range(6)]
        assert [bodies(answer, i)[0][:1] for i, answer in enumerate(found)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_the_largest_message_is_given_up_without_its_properties_if_need_be(
    broker: InMemoryBroker,
) -> None:
    client, epoch = await holder(broker)
    async with client:
        rows = Rows(
            [b"x" * layout.MAX_BODY],
            BORN_AT,
            index_keys=[("k",)],
            properties=[{"small": "1", "large": "y" * ((64 << 10) - 300)}],
        )
        data = bytes(batches.encode("orders", 0, rows, by=ProducerMark(5, 1)))
        assert len(data) > layout.MAX_BATCH - 256
        await client.send_batches(ops.OutgoingBatch(0, data))

        assert await client.dead_letter(epoch, 0, commit=1, reason="r" * 255) == (0, None)

        (letter,) = await letters_dead(client)
        assert (len(letter.body), letter.index_keys, letter.properties["RMQ_ORIGIN_OFFSET"]) == (
            layout.MAX_BODY,
            ("k",),
            "0",
        )
        assert letter.properties["RMQ_LEFT_OUT"] == "2 properties: the copy would be too large"
        assert "large" not in letter.properties


async def test_who_never_commits_can_give_up_so_many_messages_and_no_more(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send_batches(*(ops.OutgoingBatch(0, make_batch(*[b"x"] * 4096)) for _ in range(5)))
        broker.broker._ledger.apply(Copied("g", *ORDERS, list(range(MAX_COPIED))))  # which takes a while one by one

        with pytest.raises(BadRequest, match="16384 messages of orders/0 were sent back or given up"):
            await client.dead_letter(epoch, MAX_COPIED)
        assert await client.dead_letter(epoch, 5) == (0, None)  # which is done
        await client.commit(epoch, 10)
        assert await client.dead_letter(epoch, MAX_COPIED, commit=MAX_COPIED + 1) == (0, None)


# ---- the topic


async def test_the_topic_is_like_any_other_but_for_sending_and_making(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client, Client(broker, "reader") as reader:
        with pytest.raises(BadName):
            await reader.create("%DLQ%g", 1)
        with pytest.raises(BadName):
            await reader.route("%DLQ%g", create=True)
        await reader.join("mourners", topics=("%DLQ%g",))
        await client.send(b"a", b"b")
        await client.dead_letter(epoch, 0, commit=1)

        assert [payload[0] for payload in reader.of(Push.TOPIC_CHANGED)] == ["%DLQ%g"]
        refused = await reader.send(b"mine", to=DEAD_DEAD)
        assert refused.status == BadName.code
        assert refused.text == "the topic '%DLQ%g' is written by the broker alone: send to one of your own"
        described = await reader.request(Op.DESCRIBE_TOPIC, DescribeTopic("%DLQ%g"))
        assert described[5][0][2:] == [0, 1]
        grant = await reader.acquire(DEAD_DEAD, group="mourners")
        answer = await reader.pull(0, queue=DEAD_DEAD, group="mourners", epoch=grant.epoch)
        assert bodies(answer) == [b"a"]
        assert (await reader.commit(grant.epoch, 1, DEAD_DEAD, group="mourners")).status == 0

        await reader.request(Op.DELETE_TOPIC, DeleteTopic("%DLQ%g"))
        await client.dead_letter(epoch, 1, commit=2)
        assert await origins(client) == [1]


async def test_a_group_gives_up_a_dead_letter_of_another(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a")
        await client.dead_letter(epoch, 0, commit=1)
        await client.join("h", topics=("%DLQ%g",))
        grant = await client.acquire(DEAD_DEAD, group="h")

        await client.dead_letter(grant.epoch, 0, commit=1, queue=DEAD_DEAD, group="h")

        (letter,) = await letters_dead(client, MessageQueue("%DLQ%h", 0))
        assert (letter.body, letter.properties["RMQ_ORIGIN_TOPIC"]) == (b"a", "%DLQ%g")


async def test_a_producer_is_not_confused_by_copies_of_its_batches(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", by=ProducerMark(9, 1))
        await client.dead_letter(epoch, 0, commit=1)
        await broker.restart()
        await client.connection.wait_connected()

        assert (await client.send(b"a", by=ProducerMark(9, 1))).duplicate
        assert not (await client.send(b"b", by=ProducerMark(9, 2))).duplicate
        assert (await client.range()).max_offset == 2


async def test_a_group_that_goes_back_may_give_up_again(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b")
        await client.dead_letter(epoch, 1)
        await client.reset(0, ORDERS)
        epoch = (await client.acquire()).epoch

        await client.dead_letter(epoch, 1)

        assert await origins(client) == [1, 1]
