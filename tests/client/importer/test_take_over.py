"""A store of RocketMQ and a broker of ours: contents, order, offsets, progress and delays are the same afterwards."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq.client import Admin, Message, Producer, ProducerFenced
from rmq.client.importer.plan import Wishes
from rmq.client.importer.present import ImportRefused
from rmq.client.importer.take_over import Portion
from rmq.testing.broker import InMemoryBroker
from rmq.wire.model import MessageQueue

from rigs.rocketmq_import import bodies_in, committed, imported, messages_in, take_over
from rigs.rocketmq_store import NOW_MS, StoreBuilder


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(min_free_bytes=0, wall_us=lambda: NOW_MS * 1000) as running:
        yield running


class Cut(Exception):
    """The import was cut off."""


async def test_an_imported_message_that_is_sent_again_with_its_key_reaches_its_queue(
    tmp_path: Path, broker: InMemoryBroker
) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t", 6, b"as keys do", properties={"__SHARDINGKEY": "order-1"})  # 6 of 8
        store.put("t", 7, b"by a selector of its own", properties={"__SHARDINGKEY": "order-1"})

    await imported(tmp_path, broker.address)

    async with Admin(broker.address) as admin, Producer(broker.address) as producer:
        (message,) = await messages_in(admin, "t", 6)
        (other,) = await messages_in(admin, "t", 7)
        assert (message.key, other.key) == ("order-1", None)
        assert message.properties["__SHARDINGKEY"] == other.properties["__SHARDINGKEY"] == "order-1"
        assert (await producer.send(Message("t", b"again", key=message.key))).queue_id == 6


async def test_a_message_is_as_it_was(tmp_path: Path, broker: InMemoryBroker) -> None:
    with StoreBuilder(tmp_path) as store:
        properties = {"trace": "7", "CLUSTER": "c1"}
        fields = {"flag": 3, "reconsume_times": 1, "born_at": 1_600_000_000_123}
        store.put("t", 1, b"body", tags="paid", keys="a b", uniq="U1", properties=properties, **fields)
        store.put("t", 1, zlib.compress(b"packed"), sysflag=0x301, born_at=1_600_000_000_456)

    outcome = await imported(tmp_path, broker.address)

    async with Admin(broker.address) as admin:
        message, packed = await messages_in(admin, "t", 1)
        assert await bodies_in(admin, "t", 0) == []
        (found,) = (await admin.query_messages("b", "t")).messages
    assert (message.body, message.tag, message.index_keys, message.queue_offset) == (b"body", "paid", ("a", "b"), 0)
    assert found.message_id == message.message_id
    assert message.born_at == datetime.fromtimestamp(1_600_000_000.123, UTC)
    assert packed.born_at == datetime.fromtimestamp(1_600_000_000.456, UTC)
    assert packed.body == b"packed"
    assert message.key is None
    assert message.properties == {
        "trace": "7",
        "ROCKETMQ_CLUSTER": "c1",
        "ROCKETMQ_UNIQ_KEY": "U1",
        "ROCKETMQ_OFFSET_ID": "7F00000100002A9F0000000000000000",
        "ROCKETMQ_STORE_TIME": str(NOW_MS),
        "ROCKETMQ_FLAG": "3",
        "ROCKETMQ_RECONSUME_TIMES": "1",
    }
    assert (outcome.sent, outcome.before) == (2, 0)


async def test_what_is_due_is_delivered_and_what_is_not_waits(tmp_path: Path, broker: InMemoryBroker) -> None:
    with StoreBuilder(tmp_path) as store:
        store.delay("t", 1, b"past", 3, stored_at=NOW_MS - 60_000)
        store.delay("t", 1, b"future", 18)
        store.delay("t", 1, b"delivered", 3)
        store.delivered("t", 1, b"delivered", 3)
        store.put("t", 1, b"plain")

    outcome = await imported(tmp_path, broker.address)

    async with Admin(broker.address) as admin:
        assert await bodies_in(admin, "t", 1) == [b"delivered", b"plain", b"past"]
        (row,) = (await admin.list_deferred("t")).rows
        assert (row.due_at, row.queue_id, row.messages) == ((NOW_MS + 7_200_000) * 1000, 1, 1)
        assert (await admin.message(row.message_id)).body == b"future"
    assert outcome.deferred_sent == 2


async def test_a_delay_that_the_broker_does_not_allow_is_refused_before_anything_is_sent(
    tmp_path: Path, broker: InMemoryBroker
) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t", 0, b"plain")
        store.delay("t", 0, b"late", 18, stored_at=NOW_MS + 31 * 86_400_000)

    with pytest.raises(ImportRefused, match="1 messages wait for longer than this broker lets them"):
        await imported(tmp_path, broker.address)

    async with Admin(broker.address) as admin:
        assert await admin.list_topics() == []


async def test_groups_go_on_at_the_message_they_were_at(tmp_path: Path, broker: InMemoryBroker) -> None:
    with StoreBuilder(tmp_path, start=4096, first_offsets={("t", 0): 70}) as store:
        store.topics(t=2)
        for n in range(5):
            store.put("t", 0, b"%d" % n)
        store.put("%RETRY%a", 0, b"again")
        store.offsets({"t@a": {0: 73, 1: 0}, "t@b": {0: 1}, "%RETRY%a@a": {0: 1}})
        store.config["topics.json"] = store.config["topics.json"].replace('"t":{', '"%RETRY%a":{},"t":{')

    await imported(tmp_path, broker.address)

    async with Admin(broker.address) as admin:
        assert await bodies_in(admin, "t") == [b"0", b"1", b"2", b"3", b"4"]
        assert [await committed(admin, "a", "t", queue) for queue in (0, 1)] == [3, 0]
        assert await committed(admin, "b", "t") == 0
        assert await committed(admin, "a", "RETRY-a") == 1


async def test_progress_made_since_is_never_moved(tmp_path: Path, broker: InMemoryBroker) -> None:
    with StoreBuilder(tmp_path) as store:
        for _ in range(5):
            store.put("t")
        store.offsets({"t@g": {0: 2}})
    await imported(tmp_path, broker.address)
    async with Admin(broker.address) as admin:
        await admin.reset_offsets("g", {MessageQueue("t", 0): 4})

        outcome = await imported(tmp_path, broker.address)

        assert await committed(admin, "g", "t") == 4
    assert [(row.new_offset, now) for row, now in outcome.groups] == [(2, 4)]
    assert (outcome.sent, outcome.before) == (0, 5)


def three_queues(root: Path) -> None:
    with StoreBuilder(root) as store:
        for n in range(20):
            store.put("t", n % 3, b"%d" % n, born_at=NOW_MS + n // 4)
        store.delay("t", 0, b"due", 1, stored_at=NOW_MS - 5000)
        store.delay("t", 1, b"due too", 1, stored_at=NOW_MS - 4000)
        for n in range(4):
            store.delay("t", 2, b"later %d" % n, 18 - n % 2)
        store.offsets({"t@g": {0: 2, 1: 3}})


async def everything(admin: Admin, topic: str) -> list[Any]:
    rows = (await admin.list_deferred(topic)).rows
    ids = [f"{int(row.message_id, 16) + index:032x}" for row in rows for index in range(row.messages)]
    return [
        *[await bodies_in(admin, topic, queue) for queue in range(3)],
        sorted([(await admin.message(each)).body for each in ids]),
        [await committed(admin, "g", topic, queue) for queue in range(3)],
    ]


async def test_a_run_that_is_cut_off_anywhere_is_completed_by_the_next(tmp_path: Path, broker: InMemoryBroker) -> None:
    three_queues(tmp_path)
    await imported(tmp_path, broker.address)
    async with Admin(broker.address) as admin:
        whole = await everything(admin, "t")
        for cut in range(1, 20):
            wishes, left = Wishes(topic_names={"t": f"t{cut}"}), cut

            def count() -> None:
                nonlocal left
                left -= 1
                if not left:
                    raise Cut

            cut_off = take_over(tmp_path, broker.address, wishes, portion=Portion(3), after_portion=count)
            try:
                await cut_off.run()
            except Cut:
                pass
            else:
                break
            outcome = await imported(tmp_path, broker.address, wishes)

            assert await everything(admin, f"t{cut}") == whole
            assert outcome.before + outcome.deferred_before == min(3 * cut, 20) + max(0, 3 * (cut - 7))
        assert cut > 7, "also while the delayed ones were sent"


@pytest.mark.virtual_time
async def test_what_became_due_since_a_run_was_cut_off_is_not_sent_again(tmp_path: Path) -> None:
    now_us = 1_700_000_000_000_000
    with StoreBuilder(tmp_path) as store:
        store.put("t", 0, b"0")
        for level in (4, 5, 6):  # 30 s, 1 and 2 minutes
            store.delay("t", 0, b"level %d" % level, level, stored_at=now_us // 1000)
    began = asyncio.get_running_loop().time()
    wall_us = lambda: now_us + int((asyncio.get_running_loop().time() - began) * 1e6)  # noqa: E731
    async with InMemoryBroker(min_free_bytes=0, wall_us=wall_us) as broker:
        left = 3

        def count() -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Cut

        with pytest.raises(Cut):
            await take_over(tmp_path, broker.address, portion=Portion(1), after_portion=count).run()
        await asyncio.sleep(45)
        outcome = await imported(tmp_path, broker.address)
        async with Admin(broker.address) as admin:
            assert await bodies_in(admin, "t") == [b"0", b"level 4"]
            assert (await admin.list_deferred("t")).total_messages == 2
        await asyncio.sleep(120)
        async with Admin(broker.address) as admin:
            assert await bodies_in(admin, "t") == [b"0", b"level 4", b"level 5", b"level 6"]

    assert (outcome.before, outcome.deferred_before, outcome.deferred_sent) == (1, 2, 1)


async def test_a_run_that_still_has_something_on_its_way_is_fenced(tmp_path: Path, broker: InMemoryBroker) -> None:
    three_queues(tmp_path)
    old = await take_over(tmp_path, broker.address)._open_producer()
    await imported(tmp_path, broker.address)

    with pytest.raises(ProducerFenced):
        await old.send(Message("t", b"late"), queue_id=0)
    await old.close()


async def test_of_two_imports_at_once_one_goes_on_and_the_other_says_so(tmp_path: Path, broker: InMemoryBroker) -> None:
    three_queues(tmp_path)
    first = take_over(tmp_path, broker.address, portion=Portion(messages=2))
    second = take_over(tmp_path, broker.address, portion=Portion(messages=3))

    ends = await asyncio.gather(first.run(), second.run(), return_exceptions=True)

    (refused,) = [end for end in ends if isinstance(end, BaseException)]
    assert isinstance(refused, ImportRefused)
    assert str(refused).startswith("another import of this store has begun: let it end")
    assert (await imported(tmp_path, broker.address)).sent == 0


async def test_a_topic_that_holds_something_else_is_refused_before_anything_is_sent(
    tmp_path: Path, broker: InMemoryBroker
) -> None:
    three_queues(tmp_path)
    async with Admin(broker.address) as admin, Producer(broker.address) as producer:
        await admin.create_topic("t", 3)
        await producer.send(Message("t", b"mine"), queue_id=2)

        with pytest.raises(ImportRefused, match="t/2 has a message at offset 0 that this import did not send"):
            await imported(tmp_path, broker.address)

        assert [len(await bodies_in(admin, "t", queue)) for queue in range(3)] == [0, 0, 1]


async def test_a_store_that_changes_while_it_is_sent_is_told(tmp_path: Path, broker: InMemoryBroker) -> None:
    three_queues(tmp_path)
    run = take_over(tmp_path, broker.address)
    path = tmp_path / "commitlog" / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[88] ^= 1  # in the first body
    path.write_bytes(data)

    with pytest.raises(
        ImportRefused, match=r"t/0 had \d+ messages when the store was read, and \d+ when they were sent"
    ):
        await run.run()


async def test_a_damaged_store_is_not_sent_unless_that_is_wished(tmp_path: Path, broker: InMemoryBroker) -> None:
    three_queues(tmp_path)
    path = tmp_path / "commitlog" / f"{0:020}"
    path.write_bytes(path.read_bytes().replace(b"\0\x0211\x01t", b"\0\x0212\x01t"))

    with pytest.raises(ImportRefused, match="the store is damaged: 00000000000000000000 at "):
        await imported(tmp_path, broker.address)
    await imported(tmp_path, broker.address, Wishes(skip_damaged=True))

    async with Admin(broker.address) as admin:
        assert await bodies_in(admin, "t", 2) == [b"2", b"5", b"8", b"14", b"17"]


class Sent(NamedTuple):
    """A message as the test put it into the store."""

    queue: tuple[str, int]
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]


NAMES = st.text("abcXYZ09-_", min_size=1, max_size=5)
QUEUES = st.tuples(st.sampled_from(["t", "u", "%DLQ%g"]), st.integers(0, 2))
SENT = st.builds(
    Sent, QUEUES, st.binary(max_size=50), st.none() | NAMES, st.lists(NAMES, max_size=2).map(tuple),
    st.dictionaries(NAMES, NAMES, max_size=2),
)  # fmt: skip
NOISE = st.sampled_from(["prepared", "system", "nothing"])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sent=st.lists(st.tuples(SENT, NOISE), max_size=40),
    first=st.integers(0, 60),
    offsets=st.dictionaries(st.integers(0, 2), st.integers(0, 110), max_size=3),
    clean=st.booleans(),
    indexed=st.integers(0, 40),
)
def test_contents_counts_order_and_offsets_are_the_same(
    *, tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[Sent, str]], first: int, offsets: dict[int, int],
    clean: bool, indexed: int,
) -> None:  # fmt: skip
    root = tmp_path_factory.mktemp("store")
    start = 4096 * 5 if first else 0
    with StoreBuilder(root, start=start, clean=clean, entries=7, first_offsets={("t", 1): first}) as store:
        for number, (message, noise) in enumerate(sent):
            known = clean or number < indexed
            if noise == "prepared":
                store.put(*message.queue, b"half", sysflag=4)
            if noise == "system":
                store.put("TRANS_CHECK_MAX_TIME_TOPIC", 0, b"x", indexed=known)
            more = {"tags": message.tag, "keys": " ".join(message.keys) or None, "properties": message.properties}
            store.put(*message.queue, message.body, indexed=known, born_at=NOW_MS + number // 3, **more)
        store.offsets({"t@g": offsets})
    asyncio.run(_check(root, [message for message, _ in sent], first, offsets))


async def _check(root: Path, sent: list[Sent], first: int, offsets: dict[int, int]) -> None:
    async with InMemoryBroker(min_free_bytes=0) as broker, Admin(broker.address) as admin:
        await imported(root, broker.address)
        there = {info.topic: len(info.queues) for info in await admin.list_topics()}
        for topic, new in (("t", "t"), ("u", "u"), ("%DLQ%g", "DLQ-g")):
            for queue_id in range(3):
                expected = [message for message in sent if message.queue == (topic, queue_id)]
                found = await messages_in(admin, new, queue_id) if queue_id < there.get(new, 0) else []
                assert [_back(message, topic) for message in found] == expected
                assert [message.queue_offset for message in found] == list(range(len(expected)))
                if topic == "t" and queue_id in offsets and queue_id < there.get("t", 0):
                    before = first if queue_id == 1 else 0
                    new_offset = min(max(offsets[queue_id] - before, 0), len(expected))
                    assert await committed(admin, "g", "t", queue_id) == new_offset


def _back(message: Any, topic: str) -> Sent:
    own = {name: value for name, value in message.properties.items() if not name.startswith("ROCKETMQ_")}
    return Sent((topic, message.queue_id), message.body, message.tag, message.index_keys, own)
