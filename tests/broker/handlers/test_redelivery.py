"""Messages that a group fails at are delivered to it again later or become dead letters, each copied once."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.handlers.redelivery import (
    MAX_COPY_ATTEMPTS,
    PORTION_BYTES,
    PORTION_COPIES,
    CopyAppender,
    CopyQueue,
    LastBatch,
    MessageCopy,
    SourceMessage,
    Sources,
    came_from,
    dead_copy,
    fate,
    replay_copy,
    retry_copy,
    returned_copy,
)
from rmq.broker.net.connection import Connection
from rmq.broker.state.dead_letters import MAX_COPIED
from rmq.broker.state.deferred import Delays
from rmq.broker.store.changes import Copied
from rmq.broker.store.committer import AppendTicket
from rmq.broker.store.lookup import Locator, LogReader
from rmq.broker.store.rebuild import read_head
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import ProducerMark, Rows
from rmq.wire.batch.compression import CODECS
from rmq.wire.errors import (
    OK,
    BadName,
    BadRequest,
    Damaged,
    DiskFull,
    Fenced,
    Internal,
    MessagesLost,
    OffsetOutOfRange,
    QueueNotFound,
    Refused,
    StoreFailed,
    TooManyInFlight,
    TopicNotFound,
)
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op, Push
from rmq.wire.protocol.ops.redelivery import DEAD, REPLAYED, DropDead, SendBack
from rmq.wire.protocol.ops.topics import DeleteTopic, DescribeTopic
from rmq.wire.stores import StoreIds

from ..builders import BORN_AT, ORDERS, WallClock, files_limited_to, make_batch, segment_files
from ..copy_rig import DEAD_LETTERS, RETRIES, SESSION, Rig, found_by_a_start
from ..fakes import HeldPool, Peer, request
from ..harness import Client, bodies, crash_copy, holder, messages
from rigs.batches import quick
from rigs.disk.faulty import flip

pytestmark = pytest.mark.virtual_time


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


async def letters(client: Client, queue: MessageQueue = DEAD_LETTERS) -> list[StoredMessage]:
    """All dead letters, as anybody can read them."""
    return await client.stored(queue)


async def retried(client: Client, from_offset: int = 0) -> list[StoredMessage]:
    return await client.stored(RETRIES, from_offset)


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
    grant = await client.acquire(RETRIES)
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
        fates = await client.send_back(grant.epoch, {attempt - 2: attempt}, commit=attempt - 1, queue=RETRIES)
        assert fates == [attempt + 2 if attempt < 17 else DEAD]

    (letter,) = await letters(client)
    assert letter.body == b"poison"
    assert letter.properties["RMQ_ATTEMPTS"] == "17"
    assert letter.properties["RMQ_ORIGIN_TOPIC"] == "orders"
    assert letter.properties["RMQ_ORIGIN_ID"].endswith(f"{batches.handle(sent.physical_offset, 0):016x}")
    assert (await client.range(RETRIES)).max_offset == 16
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
        first = messages(await client.pull(0, queue=RETRIES))
        second = messages(await client.pull(1, queue=RETRIES), 1)
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
        grant = await client.acquire(RETRIES)

        assert await client.send_back(grant.epoch, {0: 1}, queue=RETRIES, commit=1) == [DEAD]
        (letter,) = await letters(client)
        assert letter.properties["RMQ_ATTEMPTS"] == "17"


async def test_how_often_is_set_at_the_broker_unless_the_consumer_says() -> None:
    async with InMemoryBroker(max_retries=1, message_delay_level="1s 2s") as broker:
        client, epoch = await holder(broker)
        async with client:
            await client.send(b"a", b"b", b"c", b"d")

            assert await client.send_back(epoch, {0: 1, 1: 2}) == [2, DEAD]
            assert await client.send_back(epoch, {2: 2, 3: 3}, most=3) == [2, DEAD]


async def test_retries_of_a_topic_that_was_deleted_begin_again(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a", b"b")
        await client.send_back(epoch, {0: 1}, commit=1)
        await client.request(Op.DELETE_TOPIC, DeleteTopic("%RETRY%g"))
        await client.send_back(epoch, {1: 1}, commit=2)
        await asyncio.sleep(11.0)

        assert [message.body for message in await retried(client)] == [b"b"]
        assert await client.committed(RETRIES) == 0


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


# ---- messages that a group gives up lie in its dead-letter topic, each once, and the group has passed them


async def origins(client: Client) -> list[int]:
    return [int(letter.properties["RMQ_ORIGIN_OFFSET"]) for letter in await letters(client)]


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

        (letter,) = await letters(client)
        assert (letter.body, letter.tag, letter.index_keys) == (b"odd" * 100, "paid", ("k1", "k2"))
        assert (letter.key, letter.attempt) == ("order-9", 1)
        assert round(letter.born_at.timestamp() * 1e6) == BORN_AT + 7
        origin = batches.handle(sent.physical_offset, 1)
        assert letter.properties == {
            "colour": "red", "RMQ_ORIGIN_TOPIC": "orders", "RMQ_ORIGIN_QUEUE": "0", "RMQ_ORIGIN_OFFSET": "2",
            "RMQ_ORIGIN_ID": batches.message_id(client.hello.store_id, origin), "RMQ_ATTEMPTS": "3",
            "RMQ_DEAD_REASON": "cannot be parsed", "RMQ_GROUP": "g",
        }  # fmt: skip
        (batch,) = batches.read_all((await client.pull(0, queue=DEAD_LETTERS)).batches, stores=StoreIds(1))
        assert (batch.header.origin, batch.header.producer_id) == (origin, 0)
        assert await client.committed() == 3
        assert (await client.acquire()).runs == []


@pytest.mark.parametrize(("reported", "told", "shown"), [(2, [3], "3"), (4, [3], "4"), (0, [1], "1"), (2, [], "2")])
async def test_the_last_failure_counts_too_if_it_is_reported(
    broker: InMemoryBroker, reported: int, told: list[int], shown: str
) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"poison")
        if reported:
            await client.attempt(epoch, 0, reported)

        await client.dead_letter(epoch, 0, attempts=told)

        (letter,) = await letters(client)
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

        assert (await client.range(DEAD_LETTERS)).max_offset == 6
        found = [(await client.pull(i, queue=DEAD_LETTERS)) for i in range(6)]
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

        (letter,) = await letters(client)
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
        refused = await reader.send(b"mine", to=DEAD_LETTERS)
        assert refused.status == BadName.code
        assert refused.text == "the topic '%DLQ%g' is written by the broker alone: send to one of your own"
        described = await reader.request(Op.DESCRIBE_TOPIC, DescribeTopic("%DLQ%g"))
        assert described[5][0][2:] == [0, 1]
        grant = await reader.acquire(DEAD_LETTERS, group="mourners")
        answer = await reader.pull(0, queue=DEAD_LETTERS, group="mourners", epoch=grant.epoch)
        assert bodies(answer) == [b"a"]
        assert (await reader.commit(grant.epoch, 1, DEAD_LETTERS, group="mourners")).status == 0

        await reader.request(Op.DELETE_TOPIC, DeleteTopic("%DLQ%g"))
        await client.dead_letter(epoch, 1, commit=2)
        assert await origins(client) == [1]


async def test_a_group_gives_up_a_dead_letter_of_another(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client:
        await client.send(b"a")
        await client.dead_letter(epoch, 0, commit=1)
        await client.join("h", topics=("%DLQ%g",))
        grant = await client.acquire(DEAD_LETTERS, group="h")

        await client.dead_letter(grant.epoch, 0, commit=1, queue=DEAD_LETTERS, group="h")

        (letter,) = await letters(client, MessageQueue("%DLQ%h", 0))
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


# ---- send-backs and dead letters with threads, turns and the disk by hand: whatever comes between request and copies


KINDS = ("dead", "back")


@pytest.fixture(params=KINDS)
def rig_running(memory_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:  # pytest's own
    rig_running = Rig(memory_path, kind=request.param)
    rig_running.begin()
    yield rig_running
    rig_running.close()


def test_nothing_is_appended_before_a_thread_has_made_the_copies(rig_running: Rig) -> None:
    rig_running.ask(1, 2, 3, commit=4)
    assert (rig_running.answers(), rig_running.copies(), rig_running.committed, len(rig_running.pool)) == (
        [],
        [],
        -1,
        1,
    )

    rig_running.pool.run()

    assert rig_running.answers() == [(1, OK)]
    assert (rig_running.copies(), rig_running.committed) == (["2", "3"], 4)


def lose(rig_running: Rig) -> None:
    rig_running.tables.locks.release_session(SESSION)


def outlive(rig_running: Rig) -> None:
    rig_running.service.time += rig_running.tables.locks.lease_s + 0.001


def move_on(rig_running: Rig) -> None:
    rig_running.tables.locks.acquire("g", ORDERS, SESSION, "m", now=rig_running.service.time)


def delete(rig_running: Rig) -> None:
    rig_running.tables.topics.delete("orders")
    rig_running.store.drop_topic("orders", 1)


def make_anew(rig_running: Rig) -> None:
    delete(rig_running)
    rig_running.tables.topics.create("orders", 1, created_at=1)


@pytest.mark.parametrize(
    ("event", "code"),
    [(lose, Fenced), (outlive, Fenced), (move_on, Fenced), (delete, TopicNotFound), (make_anew, TopicNotFound)],
)
def test_what_ends_while_messages_are_read_ends_the_request_too(
    rig_running: Rig, event: Callable[[Rig], None], code: type[Exception]
) -> None:
    rig_running.ask(1, 2, commit=3)
    event(rig_running)
    written = rig_running.store.log.written

    rig_running.pool.run()

    assert rig_running.answers() == [(1, code.code)]  # type: ignore[attr-defined]
    assert (rig_running.copies(), rig_running.committed, rig_running.store.log.written) == ([], -1, written)


def test_a_lease_that_lasts_exactly_until_then_is_enough(rig_running: Rig) -> None:
    rig_running.ask(1, 2, commit=3)
    rig_running.service.time += rig_running.tables.locks.lease_s

    rig_running.pool.run()

    assert rig_running.answers() == [(1, OK)]


def test_a_commit_that_came_meanwhile_is_not_undone(rig_running: Rig) -> None:
    rig_running.ask(1, 2, 3, commit=4)
    rig_running.progress.commit_one(SESSION, "g", ORDERS, rig_running.epoch, 5)

    rig_running.pool.run()

    assert rig_running.answers() == [(1, OK)]
    assert rig_running.committed == 5


def test_the_next_request_waits_and_sees_what_was_done(rig_running: Rig) -> None:
    other = Peer(rig_running.service, rig_running.turns)
    rig_running.ask(1, 2, 3)
    rig_running.ask(2, 3, 4)
    rig_running.ask(3, 2, 3, peer=other)
    assert len(rig_running.pool) == 1

    while rig_running.pool.run():
        pass

    assert rig_running.answers() == [(1, OK), (2, OK)]
    assert rig_running.answers(other) == [(3, OK)]
    assert rig_running.copies() == ["2", "3", "4"]


def test_a_request_without_the_lease_is_not_queued(rig_running: Rig) -> None:
    rig_running.ask(1, 1)
    epoch, rig_running.epoch = rig_running.epoch, rig_running.epoch + 1
    rig_running.ask(2, 2)
    rig_running.epoch = epoch

    assert rig_running.answers() == [(2, Fenced.code)]
    rig_running.pool.run()
    assert rig_running.answers() == [(1, OK)]


def test_a_request_of_a_closed_connection_copies_nothing_and_delays_no_other(rig_running: Rig) -> None:
    gone = Peer(rig_running.service, rig_running.turns)
    rig_running.ask(1, 1, peer=gone)
    rig_running.ask(2, 2, peer=gone)
    rig_running.ask(3, 3)
    gone.transport.abort()

    while rig_running.pool.run():
        pass

    assert rig_running.answers() == [(3, OK)]
    assert rig_running.copies() == ["3"]


def test_a_full_pool_refuses_and_the_next_request_is_served(rig_running: Rig) -> None:
    rig_running.pool.full = True
    rig_running.ask(1, 1)
    rig_running.pool.full = False
    rig_running.ask(2, 2)
    rig_running.pool.run()

    assert rig_running.answers() == [(1, TooManyInFlight.code), (2, OK)]


def test_a_damaged_message_is_refused_by_name(rig_running: Rig) -> None:
    place = rig_running.store.locator(ORDERS).position_of(3)
    assert place is not None
    flip(segment_files(rig_running.path)[0], place[0] + place[1] - 20)

    for request_id, offsets in enumerate(((2, 3), (3,), (2,))):
        rig_running.ask(request_id, *offsets, commit=3)
        rig_running.pool.run()

    assert rig_running.answers() == [(0, Damaged.code), (1, Damaged.code), (2, OK)]
    assert rig_running.copies() == ["2"]


def test_a_disk_that_cannot_be_read_is_reported(rig_running: Rig) -> None:
    rig_running.files.fail("open_to_read", "commitlog")
    rig_running.ask(1, 2, commit=3)
    rig_running.pool.run()

    assert (rig_running.answers(), rig_running.committed) == ([(1, StoreFailed.code)], -1)


def test_a_defect_is_reported_and_the_next_request_is_served(rig_running: Rig) -> None:
    rig_running.ask(1, 2)
    ((_, done),) = rig_running.pool.jobs
    rig_running.pool.jobs.clear()
    done(ZeroDivisionError("a defect"))
    rig_running.ask(2, 2)
    rig_running.pool.run()

    assert rig_running.answers() == [(1, Internal.code), (2, OK)]


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, DiskFull), (errno.EIO, StoreFailed)])
def test_a_failed_write_takes_letters_and_progress_back_and_keeps_other_changes(
    rig_running: Rig, number: int, code: type[Exception]
) -> None:
    rig_running.ask(1, 2, commit=3)
    rig_running.progress.commit_one(SESSION, "g", ORDERS, rig_running.epoch, 1)  # in the same turn
    rig_running.files.fail("write", "commitlog", number, after=200)

    rig_running.pool.run()

    assert rig_running.answers() == [(1, code.code)]  # type: ignore[attr-defined]
    assert (rig_running.copies(), rig_running.committed) == ([], 1)
    rig_running.files.heal()
    rig_running.ask(2, 2, commit=3)
    rig_running.pool.run()
    assert rig_running.answers() == [(2, OK)]
    assert (rig_running.copies(), rig_running.committed) == (["2"], 3)
    again = found_by_a_start(rig_running)
    assert again.ledger.offsets.get("g", ORDERS) == 3
    assert again.topics.get((DEAD_LETTERS if rig_running.kind == "dead" else RETRIES).topic) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_retention_that_was_faster_is_reported_as_lost(memory_path: Path, kind: str) -> None:
    rig_running = Rig(memory_path, segment_bytes=700, kind=kind)
    rig_running.begin()
    rig_running.ask(1, 0, commit=1)
    rig_running.store.log.sync()
    segment = rig_running.store.log.segments[-1]
    head = read_head(rig_running.files, str(segment.path), segment.start)
    assert head is not None
    gone, _ = rig_running.store.forget_before(segment.start, head.changes)
    for old in gone:
        old.path.unlink()

    rig_running.pool.run()
    rig_running.ask(2, 0)

    assert rig_running.answers() == [(1, MessagesLost.code), (2, MessagesLost.code)]
    rig_running.close()


def cut_at(path: Path, data: bytes, size: int) -> None:
    """The power went in the middle of a write: so much of the log is there."""
    (segment,) = segment_files(path)
    segment.write_bytes(data[:size])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("another", [False, True])
def test_a_copy_whose_change_was_torn_off_is_not_made_again(
    memory_path: Path, kind: str, starts: int, another: bool
) -> None:
    rig_running = Rig(memory_path, kind=kind)
    rig_running.begin()
    before = rig_running.store.log.written
    rig_running.ask(1, 2, commit=3)
    rig_running.pool.run()
    rig_running.store.log.sync()
    rig_running.close()
    (segment,) = segment_files(memory_path)
    data = segment.read_bytes()
    cut_at(memory_path, data, copy_end(data, before))
    for _ in range(starts):
        rig_running = Rig(memory_path, kind=kind)
        if another:  # its change must not pass for the one that was torn off
            rig_running.acquire()
            rig_running.ask(1, 5)
            rig_running.pool.run()
        rig_running.turn()
        rig_running.store.log.sync()
        rig_running.close()

    rig_running = Rig(memory_path, kind=kind)
    found = ["2", "5"] if another else ["2"]
    assert (rig_running.copies(), rig_running.committed) == (found, -1)
    rig_running.acquire()
    rig_running.ask(1, 2, 3, commit=4)
    rig_running.pool.run()

    assert rig_running.answers() == [(1, OK)]
    assert (rig_running.copies(), rig_running.committed) == ([*found, "3"], 4)
    rig_running.close()


def copy_end(data: bytes, at: int) -> int:
    """Where the first copy behind a place of the log ends."""
    while True:
        header = layout.parse_header(data, at)
        at += header.size
        if header.origin:
            return at


@pytest.mark.parametrize("kind", KINDS)
def test_wherever_the_write_is_torn_asking_again_loses_nothing_and_copies_nothing_twice(
    memory_path: Path, kind: str
) -> None:
    """Also if the whole write is there and only its answer was lost."""
    rig_running = Rig(memory_path, kind=kind)
    rig_running.begin()
    before = rig_running.store.log.written
    rig_running.ask(1, 1, 2, 4, commit=3)
    rig_running.pool.run()
    assert rig_running.answers() == [(1, OK)]
    end = rig_running.store.log.written
    rig_running.store.log.sync()
    rig_running.close()
    (segment,) = segment_files(memory_path)
    data = segment.read_bytes()
    steps = {before, end, copy_end(data, before), *range(before, end, 56)}
    for size in sorted(steps):
        cut_at(memory_path, data, size)
        rig_running = Rig(memory_path, kind=kind)
        rig_running.acquire()

        rig_running.ask(1, 1, 2, 4, commit=3)
        rig_running.pool.run()

        assert rig_running.answers() == [(1, OK)]
        assert (rig_running.copies(), rig_running.committed) == (["1", "2", "4"], 3), size
        rig_running.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_torn_write_whose_original_the_disk_cannot_read_refuses_the_start(memory_path: Path, number: int) -> None:
    """A start without its name would copy it once more when the disk is sound."""
    rig_running = Rig(memory_path)
    rig_running.begin()
    rig_running.ask(1, 2)
    rig_running.pool.run()
    data = rig_running.store.reader().batch(copy_start(segment_files(memory_path)[0].read_bytes()))
    assert data is not None
    replay = rig_running.tables.replay()
    replay.batch(layout.parse_header(data))
    rig_running.files.fail("read", "commitlog", number)

    with pytest.raises(OSError) as failure:
        replay.name_copies(rig_running.store.reader())
    assert failure.value.errno == number
    rig_running.files.heal()
    rig_running.close()


def copy_start(data: bytes) -> int:
    """Where the first copy of a log lies."""
    at = 0
    while not (header := layout.parse_header(data, at)).origin:
        at += header.size
    return at


# ---- send-backs and dead letters of one request


def send_back(rig_running: Rig, attempts: list[int], **more: Any) -> list[int]:
    """Have the first messages of the queue sent back; what became of them."""
    offsets = list(range(len(attempts)))
    rig_running.peer.send(
        request(7, Op.SEND_BACK, SendBack("g", *ORDERS, rig_running.epoch, offsets, attempts, **more))
    )
    rig_running.run()
    ((_, _, status, payload),) = rig_running.peer.answers()
    assert status == OK
    (fates,) = payload
    return list(fates)


def test_each_message_waits_for_the_level_of_its_deliveries_or_is_dead(rig_running: Rig) -> None:
    assert send_back(rig_running, [1, 2, 3, 16, 17, 18]) == [3, 4, 5, 5, -1, -1]  # there are five levels

    assert [(due_s, message.body[:1]) for due_s, message in rig_running.deferred()] == [
        (10, b"0"), (30, b"1"), (60, b"2"), (60, b"3"),
    ]  # fmt: skip
    assert [message.body[:1] for message in rig_running.stored(DEAD_LETTERS)] == [b"4", b"5"]
    assert send_back(rig_running, [1, 2, 3, 16, 17, 18]) == [0] * 6


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_a_write_of_both_kinds_that_is_torn_is_completed_by_asking_again(memory_path: Path, size: int) -> None:
    rig_running = Rig(memory_path)
    rig_running.begin()
    ends = [rig_running.store.log.written]
    send_back(rig_running, [1, 17, 2])
    rig_running.store.log.sync()
    rig_running.close()
    (segment,) = segment_files(memory_path)
    data = segment.read_bytes()
    for _ in range(3):
        ends.append(copy_end(data, ends[-1]))
    cut_at(memory_path, data, ends[size])
    rig_running = Rig(memory_path)
    rig_running.acquire()

    assert send_back(rig_running, [1, 17, 2]) == [0] * size + [3, -1, 4][size:]

    assert [message.body[:1] for _, message in rig_running.deferred()] == [b"0", b"2"]
    assert [message.body[:1] for message in rig_running.stored(DEAD_LETTERS)] == [b"1"]
    rig_running.close()


def test_groups_take_turns(rig_running: Rig) -> None:
    """A stream of send-backs of one group does not starve another, and large requests are done in portions."""
    for i in range(4):
        rig_running.ask(i, i)
    assert len(rig_running.copy_queue) == 3
    lease = rig_running.tables.locks.acquire("h", ORDERS, SESSION, "m", now=rig_running.service.time)
    assert lease is not None
    payload = SendBack("h", *ORDERS, lease.epoch, [5], [1])
    rig_running.peer.send(request(9, Op.SEND_BACK, payload))

    rig_running.run()

    assert [request_id for request_id, _ in rig_running.answers()] == [0, 1, 9, 2, 3]


# ---- scripts of send-backs, dead letters, replays, commits and power cuts: nothing is copied twice, and nothing lost


MESSAGES = range(6)  # what the rig begins with


class Step(NamedTuple):
    """``cut``: the power goes, and so much of the last write (a share) is there; None: all goes on."""

    what: str
    offsets: list[int]
    cut: float | None


steps = st.builds(
    Step,
    st.sampled_from(["back", "dead", "mixed", "replay", "drop", "commit"]),
    st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=4, unique=True).map(sorted),
    st.none() | st.floats(0, 1),
)


class Script:
    """A broker that is cut off again and again, on one directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rig = Rig(path)
        self.rig.begin()
        self.committed = 0

    def do(self, step: Step) -> None:
        rig = self.rig
        before = rig.store.log.written
        offsets = step.offsets
        if step.what == "commit":
            self.committed = max(self.committed, offsets[0])
            rig.progress.commit_one(SESSION, "g", ORDERS, rig.epoch, offsets[0])
            rig.turn()
        elif step.what in ("replay", "drop"):
            if (letters := [offset for offset in offsets if offset < rig.store.queue(DEAD_LETTERS).readable]) != []:
                ask = rig.ask_replay if step.what == "replay" else self._drop
                ask(1, *letters)
        else:
            attempts = {"back": [1], "dead": [99], "mixed": [1, 99]}[step.what] * len(offsets)
            payload = SendBack("g", *ORDERS, rig.epoch, offsets, attempts[: len(offsets)])
            rig.peer.send(request(1, Op.SEND_BACK, payload))
        rig.run()
        assert all(status == OK for _, status in rig.answers())
        if step.cut is not None:
            self._cut(before, step.cut)

    def _drop(self, request_id: int, *offsets: int) -> None:
        self.rig.peer.send(request(request_id, Op.DROP_DEAD, DropDead("g", list(offsets))))

    def _cut(self, before: int, share: float) -> None:
        self.rig.store.log.sync()
        end = self.rig.store.log.written
        self.rig.close()
        (segment,) = segment_files(self._path)
        data = segment.read_bytes()
        segment.write_bytes(data[: before + round((end - before) * share)])
        self.rig = Rig(self._path)
        self.rig.acquire()
        self.committed = max(self.rig.committed, 0)

    def copies(self) -> Counter[str]:
        """How often each message was copied, to wait or to be dead."""
        waiting = [message.body[:1].decode() for _, message in self.rig.deferred()]
        return Counter(waiting + [message.body[:1].decode() for message in self.rig.stored(DEAD_LETTERS)])

    def replays(self) -> Counter[str]:
        """How often each dead letter was replayed."""
        return Counter(message.body[:1].decode() for message in self.rig.stored(RETRIES))


@quick
@given(st.lists(steps, max_size=8))
def test_whatever_is_torn_each_message_is_copied_once_and_each_dead_letter_replayed_once(script: list[Step]) -> None:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=memory) as folder:
        running = Script(Path(folder))
        for step in script:
            running.do(step)
            assert all(times == 1 for times in running.copies().values()), running.copies()
            assert all(times == 1 for times in running.replays().values()), running.replays()
        left = [str(offset) for offset in MESSAGES if offset >= running.committed]

        running.do(Step("mixed", list(MESSAGES), None))
        running.do(Step("replay", list(MESSAGES), None))

        assert set(left) <= set(running.copies())
        assert set(running.copies().values()) == {1}
        letters, handled = running.rig.stored(DEAD_LETTERS), running.rig.tables.ledger.handled
        replayed = [i for i, _ in enumerate(letters) if handled.state_of(DEAD_LETTERS.topic, i) == REPLAYED]
        assert running.replays() == Counter(letters[i].body[:1].decode() for i in replayed)
        assert sum(handled.counts(DEAD_LETTERS.topic)) == len(letters)  # none waits any more
        running.rig.close()


# ---- copies keep what was the message's own, say where it came from at first, and fit into a batch


BORN_AT_COPIES = 1_700_000_000_000_000


ORDERS_COPIES = MessageQueue("orders", 2)


STORE = 0xABC


def stored(*bodies: bytes, to: MessageQueue = ORDERS_COPIES, base: int = 0, at: int = 4096, **columns: Any) -> bytes:
    """A batch as it lies in the log."""
    data = batches.encode(*to, Rows(bodies, BORN_AT_COPIES, **columns))
    header = layout.parse_header(data, 0)
    stamp = layout.Stamp(1, at, base, BORN_AT_COPIES, 0, 0, 1, to.queue_id, layout.KIND_DATA)
    return layout.stamp(data, header.header_size, stamp) + bytes(data[layout.BROKER_PART :])


class Log:
    """Batches by their position."""

    def __init__(self, *found: bytes) -> None:
        self.batches = {layout.parse_header(data, 0).physical_offset: data for data in found}
        self.reads: list[int] = []
        self.is_open = False

    def __enter__(self) -> Log:
        self.is_open = True
        return self

    def __exit__(self, *exc: object) -> None:
        self.is_open = False

    def batch(self, position: int) -> bytes | None:
        assert self.is_open
        self.reads.append(position)
        return self.batches.get(position)

    def place(self, offset: int) -> tuple[int, int] | None:
        for position, data in self.batches.items():
            header = layout.parse_header(data, 0)
            if header.base_offset <= offset < header.end_offset:
                return position, header.size
        return None


def sources(
    log: Log, last: LastBatch | None = None, *, generation: int = 1, queue: MessageQueue = ORDERS_COPIES
) -> Sources:
    return Sources(
        queue, generation, Locator(0, 99, log.place), cast(LogReader, log), StoreIds(STORE), last=last or LastBatch()
    )  # fmt: skip


def found(data: bytes, index: int = 0) -> SourceMessage:
    batch = batches.read(data, stores=StoreIds(STORE))
    return SourceMessage(batch.pick([index])[0], batch)


def read(copy: MessageCopy) -> StoredMessage:
    """A copy as it will be read."""
    header = copy.checked.header
    stamp = layout.Stamp(1, 8192, 5, BORN_AT_COPIES, 0, copy.origin, 1, copy.to.queue_id, layout.KIND_DATA)
    data = layout.stamp(copy.batch, header.header_size, stamp) + copy.batch[layout.BROKER_PART :]
    (message,) = batches.read(data, stores=StoreIds(STORE)).messages()
    return message


FULL = stored(
    b"a", b"b", base=7, tags=[None, "t"], index_keys=[(), ("k",)], keys=["x", "y"], properties=[{}, {"p": "1"}],
    attempts=[0, 4],
)  # fmt: skip


ORIGIN = {
    "RMQ_ORIGIN_TOPIC": "orders", "RMQ_ORIGIN_QUEUE": "2", "RMQ_ORIGIN_OFFSET": "8",
    "RMQ_ORIGIN_ID": batches.message_id(STORE, batches.handle(4096, 1)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("make", "to", "said", "attempt"),
    [
        (lambda one: dead_copy(one, "g", 9, "why"), "%DLQ%g",
         {**ORIGIN, "RMQ_GROUP": "g", "RMQ_ATTEMPTS": "9", "RMQ_DEAD_REASON": "why"}, 1),
        (lambda one: retry_copy(one, "g", 5, 7), "%RETRY%g", {**ORIGIN, "RMQ_GROUP": "g"}, 6),
    ],
)  # fmt: skip
def test_a_copy_keeps_what_was_the_message_s_own_and_says_where_it_is_from(
    make: Any, to: str, said: dict[str, str], attempt: int
) -> None:
    copy = make(found(FULL, 1))

    assert (copy.queue_offset, copy.origin, copy.to) == (8, batches.handle(4096, 1), MessageQueue(to, 0))
    again = read(copy)
    assert (again.body, again.tag, again.index_keys, again.key, again.attempt) == (b"b", "t", ("k",), "y", attempt)
    assert again.properties == {"p": "1", **said}
    assert copy.checked.header.delay_level == copy.level == (7 if to == "%RETRY%g" else 0)


def test_more_attempts_than_a_batch_can_hold_are_stored_as_the_most() -> None:
    assert read(retry_copy(found(FULL, 1), "g", 1 << 20, 3)).attempt == MAX_COPY_ATTEMPTS + 1


def test_a_retry_tells_on_where_its_message_came_from_at_first() -> None:
    once = read(retry_copy(found(FULL, 1), "g", 1, 3))
    lying = stored(b"b", to=MessageQueue("%RETRY%g", 0), base=3, at=9000 * 8, properties=[once.properties])

    assert came_from(found(lying)) == ORIGIN
    for copy in (retry_copy(found(lying), "g", 2, 4), dead_copy(found(lying), "g", 2, "")):
        assert copy.origin == batches.handle(9000 * 8, 0)  # of what it was made of
        assert {name: read(copy).properties[name] for name in ORIGIN} == ORIGIN


@pytest.mark.parametrize("topic", ["orders", "%DLQ%other"])
def test_only_the_broker_is_believed_about_where_a_message_came_from(topic: str) -> None:
    forged = stored(b"b", to=MessageQueue(topic, 0), base=3, properties=[ORIGIN])

    assert came_from(found(forged))["RMQ_ORIGIN_TOPIC"] == topic


def test_a_replay_keeps_the_origin_and_forgets_the_failures() -> None:
    letter = read(dead_copy(found(FULL, 1), "g", 9, "why"))
    lying = stored(b"b", to=MessageQueue("%DLQ%g", 0), properties=[letter.properties], tags=["t"])

    to_group, to_topic = read(replay_copy(found(lying), "g")), returned_copy(found(lying))

    assert to_group.properties == {"p": "1", "RMQ_GROUP": "g", **ORIGIN}
    assert (to_group.attempt, to_group.tag) == (1, "t")
    assert (to_topic.to, read(to_topic).properties) == (ORDERS_COPIES, {"p": "1"})


@pytest.mark.parametrize("said", [{}, {"RMQ_ORIGIN_TOPIC": "orders"}, {**ORIGIN, "RMQ_ORIGIN_QUEUE": "two"}])
def test_a_dead_letter_that_does_not_say_where_it_is_from_cannot_go_back(said: dict[str, str]) -> None:
    with pytest.raises(Damaged, match="offset 3 does not say where it is from"):
        returned_copy(found(stored(b"b", to=MessageQueue("%DLQ%g", 0), base=3, properties=[said])))


ROOM = layout.MAX_BATCH - layout.MAX_BODY


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [
        ({"properties": [{"a": "1", "b": "y" * (ROOM - 300)}]}, "2 properties"),
        ({"index_keys": [["k" * (ROOM - 250)]]}, "1 index keys"),
        ({"keys": ["o" * (ROOM - 250)]}, "the key"),
        ({"index_keys": [["k" * (ROOM // 2)]], "properties": [{"a": "y" * (ROOM // 2 - 300)}]}, "1 properties"),
        ({"index_keys": [["k" * (ROOM - 310)]], "properties": [{"a": "1"}]}, "1 properties, 1 index keys"),
    ],
)  # fmt: skip
def test_of_the_largest_message_the_least_needed_is_left_out(columns: dict[str, Any], left_out: str) -> None:
    largest = stored(b"x" * layout.MAX_BODY, tags=["t"], **columns)

    for copy in (dead_copy(found(largest), "g", 1, "r" * 255), retry_copy(found(largest), "g", 1, 3)):
        again = read(copy)
        assert (len(again.body), again.tag) == (layout.MAX_BODY, "t")
        assert again.properties["RMQ_LEFT_OUT"] == f"{left_out}: the copy would be too large"
        assert again.properties["RMQ_ORIGIN_TOPIC"] == "orders"


# ---- reading


def offsets_of(made: Sequence[MessageCopy | Refused]) -> list[int | type[Refused]]:
    return [type(copy) if isinstance(copy, Refused) else copy.queue_offset for copy in made]


def keep(one: SourceMessage) -> MessageCopy:
    return retry_copy(one, "g", 1, 3)


def test_a_batch_is_read_once_for_all_of_its_messages_that_are_wanted() -> None:
    log = Log(stored(b"a", b"b", b"c"), stored(b"d", base=3, at=8192))

    assert offsets_of(sources(log).copies([0, 2, 3], keep)) == [0, 2, 3]
    assert (log.reads, log.is_open) == ([4096, 8192], False)


def test_what_cannot_be_copied_stands_in_its_place_with_the_reason() -> None:
    broken = bytearray(stored(b"b", base=1, at=8192))
    broken[-12] ^= 1
    elsewhere = stored(b"c", to=MessageQueue("orders", 1), base=2, at=8192 * 2)
    log = Log(stored(b"a"), bytes(broken), elsewhere, stored(b"e", base=4, at=8192 * 3))

    made = sources(log).copies([0, 1, 2, 3, 4], keep)

    assert offsets_of(made) == [0, Damaged, Damaged, Damaged, 4]
    why = [copy.text for copy in made if isinstance(copy, Refused)]
    assert why[0].startswith("orders/2 is damaged at offset 1: the ")
    assert why[1:] == [
        "orders/2 is damaged at offset 2: another message lies in its place",
        "orders/2 is damaged at offset 3: the message cannot be copied",
    ]


def test_a_portion_ends_before_the_copy_that_is_too_much_and_has_one_at_least() -> None:
    size = PORTION_BYTES // 2 - 1000
    log = Log(*(stored(b"x" * size, base=i, at=(i + 1) << 24) for i in range(3)))

    assert offsets_of(sources(log).copies([0, 1, 2], keep)) == [0, 1]
    assert offsets_of(sources(log).copies([2], keep)) == [2]


def test_a_portion_has_so_many_copies_at_most() -> None:
    log = Log(stored(*[b"x"] * (PORTION_COPIES + 2)))

    assert len(sources(log).copies(range(PORTION_COPIES + 2), keep)) == PORTION_COPIES


def test_the_batch_that_was_read_last_serves_the_next_request_too() -> None:
    log, last = Log(stored(b"a", b"b", b"c"), stored(b"d", base=3, at=8192)), LastBatch()

    for offset in (0, 1, 2, 3, 2):
        sources(log, last).copies([offset], keep)

    assert log.reads == [4096, 8192, 4096]


def test_the_batch_that_was_read_last_is_not_taken_for_one_of_another_queue_or_topic() -> None:
    last = LastBatch()
    sources(Log(stored(b"a")), last).copies([0], keep)

    (anew,) = sources(Log(), last, generation=2).copies([0], keep)
    (other,) = sources(Log(stored(b"b", to=MessageQueue("orders", 1))), last, queue=MessageQueue("orders", 1)).copies(
        [0], keep
    )

    assert isinstance(anew, Damaged)
    assert isinstance(other, MessageCopy)
    assert read(other).body == b"b"


# ---- one request is worked off at a time, groups take turns, and what one raises is its own answer


class Asker:
    """A connection; what it was refused is kept."""

    def __init__(self) -> None:
        self.closing = False
        self.refused: list[tuple[int, type[Refused]]] = []

    def refuse(self, request_id: int, error: Refused) -> None:
        self.refused.append((request_id, type(error)))

    def defect(self, error: Exception, request_id: int) -> Refused:
        return Internal(str(error))


class Task:
    """So many portions of work; notes in ``done`` what is finished."""

    def __init__(self, done: list[str], name: str, *, portions: int = 1, asker: Asker | None = None) -> None:
        self.name = name
        self.group = name[0]
        self.connection = cast(Connection, asker or Asker())
        self.request_id = 7
        self.messages = 10
        self.portions = portions
        self.error: Exception | None = None
        self._done = done

    def begin(self) -> Callable[[], Any] | None:
        if isinstance(self.error, BadRequest):
            raise self.error
        if not self.portions:
            self._done.append(self.name)
            return None
        return lambda: self.name

    def finish(self, result: Any) -> bool:
        if self.error is not None:
            raise self.error
        assert result == self.name
        self._done.append(self.name)
        self.portions -= 1
        return self.portions > 0


@pytest.fixture
def pool() -> HeldPool:
    return HeldPool()


@pytest.fixture
def copy_queue(pool: HeldPool) -> Iterator[CopyQueue]:
    copy_queue = CopyQueue(pool)
    yield copy_queue
    while pool.run():
        pass
    assert len(copy_queue) == 0


@pytest.fixture
def done() -> list[str]:
    return []


def work(pool: HeldPool) -> None:
    while pool:
        assert len(pool) == 1  # never two at once
        pool.run()


def test_the_tasks_of_a_group_are_done_in_the_order_they_came(
    copy_queue: CopyQueue, pool: HeldPool, done: list[str]
) -> None:
    for name in ("a1", "a2", "a3"):
        copy_queue.add(Task(done, name))
    assert (len(pool), len(copy_queue)) == (1, 2)

    work(pool)

    assert done == ["a1", "a2", "a3"]


def test_groups_take_turns_whatever_they_have_in_line(copy_queue: CopyQueue, pool: HeldPool, done: list[str]) -> None:
    for name in ("a1", "a2", "a3", "b1", "a4", "c1", "b2"):
        copy_queue.add(Task(done, name))

    work(pool)

    assert done == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


def test_the_rest_of_a_large_task_comes_after_other_groups_and_before_its_own(
    copy_queue: CopyQueue, pool: HeldPool, done: list[str]
) -> None:
    copy_queue.add(Task(done, "a1", portions=3))
    copy_queue.add(Task(done, "a2"))
    copy_queue.add(Task(done, "b1"))
    copy_queue.add(Task(done, "b2"))

    work(pool)

    assert done == ["a1", "a1", "b1", "a1", "b2", "a2"]


def test_a_task_with_nothing_left_takes_no_thread(copy_queue: CopyQueue, pool: HeldPool, done: list[str]) -> None:
    copy_queue.add(Task(done, "a1", portions=0))

    assert (done, len(pool)) == (["a1"], 0)


def test_a_task_whose_asker_is_gone_is_left_out_before_and_after_its_job(
    copy_queue: CopyQueue, pool: HeldPool, done: list[str]
) -> None:
    first, second = Asker(), Asker()
    copy_queue.add(Task(done, "a1", asker=first))
    copy_queue.add(Task(done, "a2", asker=second))
    copy_queue.add(Task(done, "a3"))
    first.closing = second.closing = True

    work(pool)

    assert done == ["a3"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(BadRequest("no"), BadRequest), (TooManyInFlight("no"), TooManyInFlight), (KeyError(), Internal)],
)
def test_what_a_task_raises_is_its_answer_and_the_next_is_done(
    copy_queue: CopyQueue, pool: HeldPool, done: list[str], error: Exception, code: type[Refused]
) -> None:
    asker = Asker()
    task = Task(done, "a1", asker=asker)
    task.error = error
    copy_queue.add(task)
    copy_queue.add(Task(done, "a2"))

    work(pool)

    assert (asker.refused, done) == ([(7, code)], ["a2"])


def test_a_full_pool_refuses_the_task_and_not_later_ones(
    copy_queue: CopyQueue, pool: HeldPool, done: list[str]
) -> None:
    asker = Asker()
    pool.full = True
    copy_queue.add(Task(done, "a1", asker=asker))
    pool.full = False
    copy_queue.add(Task(done, "a2"))

    work(pool)

    assert (asker.refused, done) == ([(7, TooManyInFlight)], ["a2"])


def test_requests_that_name_too_many_messages_together_are_refused_until_some_are_done(
    pool: HeldPool, done: list[str]
) -> None:
    copy_queue = CopyQueue(pool, most=30)
    for name in ("a1", "a2", "b1", "c1"):  # the first is under way, and in line no more
        copy_queue.add(Task(done, name, portions=2))
    with pytest.raises(TooManyInFlight, match="30 messages wait to be copied already: try again soon"):
        copy_queue.add(Task(done, "d1"))

    pool.run()  # the rest of the first stands in line again, and another one is under way
    with pytest.raises(TooManyInFlight):
        copy_queue.add(Task(done, "d1"))
    while pool.run():
        pass

    copy_queue.add(Task(done, "d1"))
    work(pool)
    assert sorted(done) == ["a1", "a1", "a2", "a2", "b1", "b1", "c1", "c1", "d1"]


# ---- copies and the changes that hold only with them are in the log together, or not at all


@pytest.fixture
def rig_appending(memory_path: Path) -> Iterator[Rig]:
    rig_appending = Rig(memory_path)
    rig_appending.begin()
    yield rig_appending
    rig_appending.close()


@pytest.fixture
def appender(rig_appending: Rig) -> CopyAppender:
    delays = Delays(rig_appending.store.delays, [1_000_000, 5_000_000], max_delay_s=1e6, now_us=rig_appending.wall)
    return CopyAppender(
        rig_appending.store,
        rig_appending.committer,
        delays,
        rig_appending.tables.ledger,
        make_topic=rig_appending.make_topic,
        refusal=lambda: rig_appending.refusal,
    )


def copy(offset: int, to: MessageQueue, level: int = 0) -> MessageCopy:
    rows = Rows([b"x"], BORN_AT, properties=[{"RMQ_ORIGIN_OFFSET": str(offset)}])
    data = bytes(batches.encode(*to, rows, delay_level=level))
    return MessageCopy(offset, 8 << 12, to, data, batches.check(data, stamped=False), level)


def test_copies_for_now_and_for_later_are_there_when_it_is_true(rig_appending: Rig, appender: CopyAppender) -> None:
    seen: list[object] = []
    change = rig_appending.tables.ledger.copied.change("g", ORDERS, [1, 2])
    ticket = AppendTicket(lambda: seen.append("durable"))

    placed = appender.append(
        [copy(1, DEAD_LETTERS), copy(2, RETRIES, 2)],
        [change],
        ticket,
        lambda: seen.append(sorted(rig_appending.tables.ledger.copied.offsets("g", ORDERS))),
    )

    assert [place.base_offset for place in placed] == [0, -1]
    assert seen == [[1, 2], "durable"]
    assert (len(rig_appending.stored(DEAD_LETTERS)), [due_s for due_s, _ in rig_appending.deferred()]) == (1, [5])
    after = found_by_a_start(rig_appending)
    assert sorted(after.ledger.copied.offsets("g", ORDERS)) == [1, 2]
    assert {topic.name for topic in after.topics.all()} == {"orders", DEAD_LETTERS.topic, RETRIES.topic}


def test_nothing_is_begun_while_nothing_may_be_stored(rig_appending: Rig, appender: CopyAppender) -> None:
    rig_appending.refusal = "only 3 MiB are free"
    written = rig_appending.store.log.written

    with pytest.raises(DiskFull, match="only 3 MiB are free"):
        appender.append([copy(1, DEAD_LETTERS)], [], AppendTicket(), lambda: None)
    rig_appending.turn()

    assert rig_appending.tables.topics.get(DEAD_LETTERS.topic) is None
    assert rig_appending.store.log.written == written


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StoreFailed)]
)
def test_a_write_that_fails_says_why_and_nothing_of_it_is_true(
    rig_appending: Rig, appender: CopyAppender, number: int, kind: type[Refused]
) -> None:
    seen: list[str] = []
    change = rig_appending.tables.ledger.copied.change("g", ORDERS, [1])
    rig_appending.files.fail("write", "commitlog", number)

    ticket = AppendTicket(lambda: seen.append("durable"))
    with pytest.raises(kind, match=os.strerror(number)):
        appender.append([copy(1, DEAD_LETTERS), copy(2, RETRIES, 1)], [change], ticket, lambda: seen.append("written"))

    rig_appending.files.heal()
    rig_appending.turn()
    assert (seen, rig_appending.stored(DEAD_LETTERS), rig_appending.deferred()) == ([], [], [])
    assert not rig_appending.tables.ledger.copied.offsets("g", ORDERS)
