"""Messages that a group fails at come back to it later, each once, with all that was theirs; or are given up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.handlers.redelivery import fate
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import ProducerMark, Rows
from rmq.wire.errors import BadName, BadRequest, DiskFull, Fenced, OffsetOutOfRange, StoreFailed
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op, Push
from rmq.wire.protocol.ops.redelivery import DEAD, SendBack
from rmq.wire.protocol.ops.topics import DeleteTopic

from ..builders import BORN_AT, ORDERS, WallClock, files_limited_to, segment_files
from ..harness import Client, crash_copy, holder, messages

pytestmark = pytest.mark.virtual_time

RETRIES_PLAIN = MessageQueue("%RETRY%g", 0)
LETTERS = MessageQueue("%DLQ%g", 0)
LEVELS_S = [1, 5, 10, 30, *(60 * i for i in range(1, 11)), 1200, 1800, 3600, 7200]


@pytest.mark.parametrize(
    ("deliveries", "asked", "most", "becomes"),
    [
        (1, 0, 17, 3), (2, 0, 17, 4), (15, 0, 17, 17), (16, 0, 17, 18), (17, 0, 17, DEAD), (18, 0, 17, DEAD),
        (16, 0, 99, 18), (40, 0, 99, 18),  # beyond the last level
        (1, 1, 17, 1), (9, 7, 17, 7), (1, 19, 17, 18), (17, 1, 17, DEAD),
        (1, -1, 17, DEAD), (1, -9, 99, DEAD), (1, 0, 1, DEAD), (1, 0, 0, DEAD), (1, 0, 2, 3),
    ],
)  # fmt: skip
def test_the_level_grows_with_the_deliveries_up_to_the_last(
    deliveries: int, asked: int, most: int, becomes: int
) -> None:
    """RocketMQ: level 3 + times, 16 times, then the dead letters; a negative level gives up at once."""
    assert fate(deliveries, delay_level=asked, max_attempts=most, last_level=18) == becomes


async def retried(client: Client, from_offset: int = 0) -> list[StoredMessage]:
    return await client.stored(RETRIES_PLAIN, from_offset)


async def letters(client: Client) -> list[StoredMessage]:
    return await client.stored(LETTERS)


async def test_a_message_that_failed_comes_back_with_all_that_was_its_own(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        rows = Rows(
            [b"plain", b"odd" * 100], [BORN_AT, BORN_AT + 7], tags=[None, "paid"], index_keys=[(), ("k1", "k2")],
            keys=["a", "order-9"], properties=[{}, {"colour": "red"}],
        )  # fmt: skip
        data = bytes(batches.encode("orders", 0, rows, by=ProducerMark(5, 1)))
        sent = (await client.send_batches(ops.OutgoingBatch(0, data)))[0]

        assert await client.send_back(epoch, {1: 1}, commit=2) == [3]

        assert await client.committed() == 2
        await asyncio.sleep(9.99)
        assert await retried(client) == []
        await asyncio.sleep(0.11)
        (again,) = await retried(client)
        assert (again.body, again.tag, again.index_keys) == (b"odd" * 100, "paid", ("k1", "k2"))
        assert (again.key, again.attempt, again.topic) == ("order-9", 2, "orders")
        assert round(again.born_at.timestamp() * 1e6) == BORN_AT + 7
        origin = batches.handle(sent.physical_offset, 1)
        assert again.properties == {
            "colour": "red", "RMQ_ORIGIN_TOPIC": "orders", "RMQ_ORIGIN_QUEUE": "0", "RMQ_ORIGIN_OFFSET": "1",
            "RMQ_ORIGIN_ID": batches.message_id(client.hello.store_id, origin), "RMQ_GROUP": "g",
        }  # fmt: skip


async def test_all_sixteen_retries_and_then_the_dead_letter_across_restarts(memory_path: Path) -> None:
    """Each failure puts the message off by the next level; a restart and a crash in the middle change nothing."""
    wall = WallClock()
    broker = InMemoryBroker(wall_us=wall, data_dir=str(memory_path / "data"))
    await broker.start()
    client, epoch = await holder(broker)
    sent = await client.send(b"poison")
    assert await client.send_back(epoch, {0: 1}, commit=1) == [3]
    await client.join(topics=("orders", "%RETRY%g"))
    grant = await client.acquire(RETRIES_PLAIN)
    session = client.connection.session
    for attempt in range(2, 18):
        due_us = wall.us + LEVELS_S[attempt] * 1_000_000  # level attempt + 1
        if attempt == 5:
            await broker.restart()
            await client.connection.wait_connected()
        if attempt == 9:
            after = crash_copy(broker, memory_path / "copy")
            await client.connection.close()
            await broker.stop()
            await after.start()
            broker, client = after, Client(after)
            client.connection.session = session
            await client.connection.open(timeout_s=5.0)
        wall.us = due_us - 1
        await asyncio.sleep(1.1)  # the broker looks at the clock every second
        assert await retried(client, attempt - 2) == []
        wall.us = due_us
        await asyncio.sleep(1.1)
        (got,) = await retried(client, attempt - 2)
        assert (got.body, got.attempt, got.topic) == (b"poison", attempt, "orders")
        fates = await client.send_back(grant.epoch, {attempt - 2: attempt}, commit=attempt - 1, queue=RETRIES_PLAIN)
        assert fates == [attempt + 2 if attempt < 17 else DEAD]

    (letter,) = await letters(client)
    assert letter.body == b"poison"
    assert letter.properties["RMQ_ATTEMPTS"] == "17"
    assert letter.properties["RMQ_ORIGIN_TOPIC"] == "orders"
    assert letter.properties["RMQ_ORIGIN_ID"].endswith(f"{batches.handle(sent.physical_offset, 0):016x}")
    assert (await client.range(RETRIES_PLAIN)).max_offset == 16
    await client.connection.close()
    await broker.stop()


async def test_asking_again_does_nothing_again(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(*(b"%d" % i for i in range(8)))

        assert await client.send_back(epoch, {3: 1}) == [3]
        assert await client.send_back(epoch, {3: 1}) == [0]
        assert await client.send_back(epoch, {2: 1, 3: 2, 4: 2}) == [3, 0, 4]
        assert await client.send_back(epoch, {2: 1, 4: 1}, level=-1, commit=5) == [0, 0]
        assert await client.send_back(epoch, {1: 1, 2: 1, 6: 1}, commit=5) == [0, 0, 3]  # below the committed offset
        await client.dead_letter(epoch, 6)

        assert await client.committed() == 5
        await asyncio.sleep(31.0)
        found = [int(message.properties["RMQ_ORIGIN_OFFSET"]) for message in await retried(client)]
        assert found == [3, 2, 6, 4]
        assert await letters(client) == []


@pytest.mark.parametrize("how", ["restart", "crash", "blip"])
async def test_a_request_whose_answer_was_lost_is_done_once(
    broker: InMemoryBroker, memory_path: Path, how: str
) -> None:
    client, epoch = await holder(broker)
    await client.send(b"a", b"b", b"c")
    await client.send_back(epoch, {0: 1, 2: 17})
    copy = crash_copy(broker, memory_path / "copy")
    session, after = client.connection.session, broker
    await client.connection.close()
    if how == "restart":
        await broker.restart()
    elif how == "crash":
        after = copy
        await broker.stop()
        await copy.start()
    again = Client(after)
    again.connection.session = session
    async with again:
        assert await again.send_back(epoch, {0: 1, 1: 1, 2: 17}, commit=3) == [0, 3, 0]

        assert await again.committed() == 3
        await asyncio.sleep(11.0)
        assert [message.body for message in await retried(again)] == [b"a", b"b"]
        assert [message.body for message in await letters(again)] == [b"c"]
    if how == "crash":
        await copy.stop()


async def test_requests_of_one_moment_copy_once_and_in_order(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(*(b"%d" % i for i in range(8)))

        fates = await asyncio.gather(
            *(client.send_back(epoch, dict.fromkeys(some, 1)) for some in ((1, 2), (2, 3), (1, 2, 3, 4)))
        )

        assert fates == [[3, 3], [0, 3], [0, 0, 0, 3]]


async def test_send_backs_are_fenced(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two:
        await two.join()
        await one.send(b"a")
        for client, stale in ((one, epoch - 1), (one, 0), (two, epoch)):
            with pytest.raises(Fenced):
                await client.send_back(stale, {0: 1}, commit=1)
        await one.release(epoch)
        second = (await two.acquire()).epoch

        with pytest.raises(Fenced):  # another one has taken over
            await one.send_back(epoch, {0: 1}, commit=1)
        assert await one.committed() == -1
        assert [topic[0] for topic in await one.request(Op.LIST_TOPICS, [])] == ["orders"]
        assert await two.send_back(second, {0: 1}, commit=1) == [3]


async def test_what_was_sent_back_under_a_lost_lease_is_not_sent_back_again(broker: InMemoryBroker) -> None:
    one, epoch = await holder(broker)
    async with one, Client(broker, "b") as two:
        await two.join()
        await one.send(b"a", b"b")
        await one.send_back(epoch, {1: 1})  # and goes without a commit
        await one.release(epoch)
        second = (await two.acquire()).epoch

        assert await two.send_back(second, {0: 1, 1: 1}, commit=2) == [3, 0]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"queue_offsets": [], "attempts": []}, "names no message"),
        ({"queue_offsets": [1, 1]}, "not after the one before it"),
        ({"queue_offsets": [-1, 1]}, "is negative"),
        ({"attempts": [1]}, "there are 1 attempts for 2 messages"),
        ({"attempts": [1, 0]}, "attempts must be 1 to 2147483647, not 0"),
        ({"attempts": [1, 1 << 31]}, "attempts must be 1 to 2147483647, not 2147483648"),
        ({"max_attempts": -2}, "max_attempts must be -1 or more"),
        ({"commit_offset": 4}, "offset 4 cannot be committed"),
        ({"reason": "x" * 256}, "the reason has 256 characters"),
        ({"queue_offsets": [*range(1025)]}, "at most 1024 entries, not 1025"),
        ({"attempts": [1] * 1025}, "at most 1024 entries, not 1025"),
    ],
)
async def test_what_makes_no_sense_is_refused(broker: InMemoryBroker, more: dict[str, Any], why: str) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")

        with pytest.raises(BadRequest, match=why):
            await client.request(Op.SEND_BACK, SendBack("g", *ORDERS, epoch, [0, 1], [1, 1])._replace(**more))
        with pytest.raises(BadName):
            await client.send_back(epoch, {0: 1}, group="a b")
        with pytest.raises(OffsetOutOfRange):
            await client.send_back(epoch, {0: 1, 3: 1}, commit=1)
        assert await client.committed() == -1


async def test_a_disk_that_takes_nothing_leaves_neither_copy_nor_progress(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")
        await client.send_back(epoch, {0: 1})
        (segment,) = segment_files(broker.broker.config.data_path())
        with files_limited_to(segment.stat().st_size):
            with pytest.raises(StoreFailed):
                await client.send_back(epoch, {1: 1}, commit=2)
            assert await client.committed() == -1
        broker.broker._sends.refuse_because = "only 3 MiB are free"
        with pytest.raises(DiskFull, match="only 3 MiB are free"):
            await client.send_back(epoch, {1: 1}, commit=2)
        broker.broker._sends.refuse_because = None

        assert await client.send_back(epoch, {1: 1}, commit=2) == [3]
        await asyncio.sleep(11.0)
        assert [message.body for message in await retried(client)] == [b"a", b"b"]


async def test_a_copy_of_the_largest_message_leaves_out_what_does_not_fit(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        large = {"small": "1", "large": "y" * ((64 << 10) - 300)}
        keys = [tuple(f"{i:07}" for i in range(5436))]
        for mark, more in enumerate(({"properties": [large]}, {"index_keys": keys}), 1):
            rows = Rows([b"x" * layout.MAX_BODY], BORN_AT, tags=["t"], **more)  # type: ignore[arg-type]
            data = bytes(batches.encode("orders", 0, rows, by=ProducerMark(5, mark)))
            assert len(data) > layout.MAX_BATCH - 256
            (sent,) = await client.send_batches(ops.OutgoingBatch(0, data))
            assert sent.status == 0

        assert await client.send_back(epoch, {0: 1, 1: 1}, commit=2) == [3, 3]

        await asyncio.sleep(11.0)
        first = messages(await client.pull(0, queue=RETRIES_PLAIN))
        second = messages(await client.pull(1, queue=RETRIES_PLAIN), 1)
        told = [(message.body == b"x" * layout.MAX_BODY, message.tag, message.properties) for message in first + second]
        assert [(same, tag, said["RMQ_LEFT_OUT"].split(":")[0]) for same, tag, said in told] == [
            (True, "t", "2 properties"), (True, "t", "5436 index keys"),
        ]  # fmt: skip
        assert [said["RMQ_ORIGIN_OFFSET"] for _, _, said in told] == ["0", "1"]


async def test_a_group_in_a_namespace_has_retries_of_its_own(broker: InMemoryBroker) -> None:
    group, topic = "shop%billing", "%RETRY%shop%billing"
    async with Client(broker) as client:
        await client.create()
        await client.send(b"a")
        await client.join(group, topics=("orders", topic), ordered=False)
        grant = await client.acquire(group=group)

        assert await client.send_back(grant.epoch, {0: 1}, group=group, commit=1) == [3]

        assert [payload[0] for payload in client.of(Push.TOPIC_CHANGED)] == [topic]
        retries = MessageQueue(topic, 0)
        again = await client.acquire(retries, group=group)
        assert again.committed_offset == 0
        await asyncio.sleep(9.0)
        pull = asyncio.create_task(
            client.pull(0, queue=retries, group=group, epoch=again.epoch, wait_ms=5000)
        )  # it is woken when the message is due
        (message,) = messages(await pull)
        assert (message.topic, message.attempt, message.properties["RMQ_GROUP"]) == ("orders", 2, group)
        assert await client.send_back(again.epoch, {0: 2}, level=-1, group=group, queue=retries, commit=1) == [DEAD]
        (letter,) = messages(await client.pull(0, queue=MessageQueue("%DLQ%shop%billing", 0)))
        assert letter.properties["RMQ_ORIGIN_TOPIC"] == "orders"


async def test_a_consumer_that_forgets_its_attempts_does_not_retry_for_ever(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a")
        await client.send_back(epoch, {0: 16}, level=1, commit=1)
        await asyncio.sleep(1.1)
        await client.join(topics=("orders", "%RETRY%g"))
        grant = await client.acquire(RETRIES_PLAIN)

        assert await client.send_back(grant.epoch, {0: 1}, queue=RETRIES_PLAIN, commit=1) == [DEAD]
        (letter,) = await letters(client)
        assert letter.properties["RMQ_ATTEMPTS"] == "17"


async def test_how_often_is_set_at_the_broker_unless_the_consumer_says() -> None:
    async with InMemoryBroker(max_retries=1, message_delay_level="1s 2s") as broker:
        client, epoch = await holder(broker)
        async with client:
            await client.send(b"a", b"b", b"c", b"d")

            assert await client.send_back(epoch, {0: 1, 1: 2}) == [2, DEAD]
            assert await client.send_back(epoch, {2: 2, 3: 3}, most=3) == [2, DEAD]


async def test_retries_of_a_topic_that_was_deleted_begin_anew(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b")
        await client.send_back(epoch, {0: 1}, commit=1)
        await client.request(Op.DELETE_TOPIC, DeleteTopic("%RETRY%g"))
        await client.send_back(epoch, {1: 1}, commit=2)
        await asyncio.sleep(11.0)

        assert [message.body for message in await retried(client)] == [b"b"]
        assert await client.committed(RETRIES_PLAIN) == 0


async def test_a_group_that_goes_back_may_send_back_again(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b")
        await client.send_back(epoch, {1: 1})
        await client.reset(0)
        epoch = (await client.acquire()).epoch

        assert await client.send_back(epoch, {1: 1}) == [3]


async def test_the_broker_counts_what_failed(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b", b"c")
        await client.send_back(epoch, {0: 1, 1: 1, 2: 17})

        stats = (await client.request(Op.STATS, []))["serving"]
        assert (stats["sent_back"], stats["dead_letters"], stats["copy_requests_waiting"]) == (2, 1, 0)
