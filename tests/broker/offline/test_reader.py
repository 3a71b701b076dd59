"""A stopped log gives what its broker gave, and what a broker that starts on it would give."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from rmq.broker.offline.backup import Backup
from rmq.broker.offline.reader import OfflineLog
from rmq.broker.store.directory import StoreError
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import layout
from rmq.wire.batch.batch import Rows, encode
from rmq.wire.batch.compression import CODECS
from rmq.wire.errors import BadRequest, MessagesLost, OffsetOutOfRange, QueueNotFound, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops import messages
from rmq.wire.protocol.ops.core import Op

from ..builders import ORDERS, segment_files
from ..harness import Client
from ..scanning import Content, of_broker, of_log
from rigs.batches import patched

pytestmark = pytest.mark.virtual_time

SETTINGS = {"segment_bytes": 4096, "checkpoint_bytes": 8192, "recent_bytes": 0}
TOPICS = ("orders", "payments", "refunds")


@pytest.fixture
async def stopped(memory_path: Path) -> AsyncIterator[Path]:
    """Ten batches of three messages in orders/0, stopped; several segments."""
    async with InMemoryBroker(data_dir=str(memory_path), **SETTINGS) as broker, Client(broker) as client:
        await client.create("orders", 2)
        for i in range(10):
            await client.send(*(b"%d.%d" % (i, n) * 100 for n in range(3)))
    yield memory_path


def pulled(log: OfflineLog, offset: int, expression: str | None = None, max_bytes: int = 1 << 20) -> ops.PullResult:
    pull = ops.Pull(None, 0, max_bytes, [ops.PullQueue(*ORDERS, offset)], expression)
    return ops.PullResult(*log.request(Op.PULL, pull)[0])


# ---- the same as the broker


async def live(client: Client, chance: Random) -> None:
    """Some operations as users do them."""
    for _ in range(chance.randrange(20, 40)):
        topic = chance.choice(TOPICS)
        infos = {info[0]: len(info[3]) for info in await client.request(Op.LIST_TOPICS, ops.ListTopics())}
        match chance.randrange(12):
            case 0 if topic in infos:
                await client.request(Op.DELETE_TOPIC, [topic])
            case 1 if topic in infos:
                await client.request(Op.GROW_TOPIC, [topic, min(infos[topic] + 1, 4)])
            case _:
                queues = infos.get(topic) or len((await client.create(topic, chance.randrange(1, 4))).queues)
                to = MessageQueue(topic, chance.randrange(queues))
                count = chance.randrange(1, 6)
                rows = Rows(
                    [chance.randbytes(chance.randrange(200)) * 3 for _ in range(count)], 5,
                    tags=[chance.choice(["a", "b", None]) for _ in range(count)],
                )  # fmt: skip
                codec = chance.choice([None, CODECS.by_name("zlib")])
                await client.send_batches(ops.OutgoingBatch(to.queue_id, bytes(encode(*to, rows, codec=codec))))
        if not chance.randrange(4):
            await asyncio.sleep(chance.random() * 8)


@pytest.mark.seeds(1, 2, 3, 4)
@pytest.mark.parametrize("retention_bytes", [0, 12_000])
async def test_the_rows_are_those_of_the_broker_that_wrote_the_directory(
    memory_path: Path, seed: int, retention_bytes: int
) -> None:
    chance = Random(seed)
    data, torn, copy = (memory_path / name for name in ("data", "torn", "copy"))
    for _ in range(3):
        settings = {**SETTINGS, "retention_bytes": retention_bytes}
        async with InMemoryBroker(data_dir=str(data), **settings) as broker, Client(broker) as client:
            await live(client, chance)
            await asyncio.sleep(15)
    async with InMemoryBroker(data_dir=str(data), **SETTINGS) as broker, Client(broker) as client:
        await live(client, chance)
        listed_keys = await of_broker(client)
        some = await of_broker(client, expression="a")
        durable, store_id = broker.broker._store.log.durable, client.hello.store_id
        shutil.copytree(data, torn)  # as kill -9 leaves it
        Backup(data, copy, durable, store_id=f"{store_id:016x}").run()
        with pytest.raises(StoreError, match=f"a broker uses {data}: stop it first"):
            OfflineLog(str(data))
    tear(torn, durable, chance)

    for path in (data, torn, copy):
        before = files_of(path)
        with OfflineLog(str(path)) as log:
            assert log.stores.current == store_id
            assert await of_log(log, max_bytes=chance.choice([1, 3000, 1 << 20])) == listed_keys
            assert await of_log(log, expression="a") == some
        assert files_of(path) == before, "nothing is written"
    assert (int(segment_files(data)[0].name) > 0) == bool(retention_bytes), "the script does what it is for"
    assert any(kept.generation > 3 for kept in listed_keys.values())


def tear(path: Path, end: int, chance: Random) -> None:
    """Behind the end of the log lies the beginning of a batch that was never acknowledged."""
    last = segment_files(path)[-1]
    data = last.read_bytes()
    whole = [chance.randbytes(300), data[: layout.parse_header(data).size]]
    with open(last, "r+b") as file:
        file.seek(end - int(last.name))
        file.write(chance.choice(whole)[: chance.randrange(1, 200)])


def files_of(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def harm(path: Path, chance: Random) -> str:
    """What happens to disks and to people."""
    segments = segment_files(path)
    segment = chance.choice(segments)
    match chance.randrange(8):
        case 0:
            (path / "checkpoint").unlink(missing_ok=True)
            return "no checkpoint"
        case 1 if segment not in (segments[0], segments[-1]):
            segment.unlink()
            return f"{segment.name} is missing"
    size = segment.stat().st_size
    place = chance.randrange(size)
    with open(segment, "r+b") as file:
        if not chance.randrange(4):
            file.seek(place)
            file.write(bytes(min(chance.choice([16, 700]), size - place)))
            return f"zeros at {place} of {segment.name}"
        file.seek(place)
        kept = file.read(1)
        file.seek(place)
        file.write(bytes((kept[0] ^ 1 << chance.randrange(8),)))
    return f"byte {place} of {segment.name}"


@pytest.mark.seeds(1, 2)
async def test_what_is_damaged_is_so_for_both(memory_path: Path, seed: int) -> None:
    chance = Random(seed)
    data = memory_path / "data"
    async with InMemoryBroker(data_dir=str(data), **SETTINGS) as broker, Client(broker) as client:
        await live(client, chance)
        await live(client, chance)
    damaged = 0
    for number in range(15):
        sick = memory_path / f"sick{number}"
        shutil.copytree(data, sick)
        harms = [harm(sick, chance) for _ in range(chance.randrange(1, 4))]

        try:
            with OfflineLog(str(sick)) as log:
                found: dict[tuple[str, int], Content] | None = await of_log(log)
        except StoreError:
            found = None  # the head of the oldest segment: a broker does not start either
        try:
            async with InMemoryBroker(data_dir=str(sick), **SETTINGS) as broker, Client(broker) as client:
                assert found == await of_broker(client), harms
        except StoreError:
            assert found is None
        damaged += found is not None and any(isinstance(part, tuple) for held in found.values() for part in held.parts)
    assert damaged, "the script does what it is for"


# ---- its answers


async def test_a_hint_is_enough_to_read_a_range_elsewhere(stopped: Path) -> None:
    with OfflineLog(str(stopped)) as log:
        hint = log.hint("orders", 0, 4, 20)
        whole = pulled(log, 4)
    with OfflineLog(str(stopped), hint) as hinted:
        answer = pulled(hinted, 4)
        store_id = hinted.stores.current

    assert (answer.status, answer.min_offset, answer.max_offset) == (0, 0, 30)
    assert answer.next_offset == 21
    assert whole.batches.startswith(answer.batches)
    with OfflineLog(str(stopped)) as log:
        assert log.stores.current == store_id
    assert len(hint) < 500


async def test_with_a_hint_nothing_but_its_queue_is_known(stopped: Path) -> None:
    with OfflineLog(str(stopped)) as log:
        hint = log.hint("orders", 0, 0, 30)

    with OfflineLog(str(stopped), hint) as hinted, pytest.raises(BadRequest, match="one queue only"):
        hinted.request(Op.LIST_TOPICS, ops.ListTopics())
    with pytest.raises(BadRequest, match="cannot be used"):
        OfflineLog(str(stopped), hint[:-3])


async def test_segments_that_went_since_the_hint_are_lost_messages(stopped: Path) -> None:
    with OfflineLog(str(stopped)) as log:
        hint = log.hint("orders", 0, 0, 30)
    gone = segment_files(stopped)[0]
    gone.unlink()

    with OfflineLog(str(stopped), hint) as hinted:
        answer = pulled(hinted, 0)
        behind = pulled(hinted, answer.next_offset)

    assert answer.status == MessagesLost.code
    assert 0 < answer.next_offset < 30
    assert answer.text == f"retention removed orders/0 from offset 0 to {answer.next_offset}"
    assert layout.parse_header(behind.batches).base_offset == answer.next_offset


async def test_offsets_after_the_end_are_empty_or_out_of_range(stopped: Path) -> None:
    with OfflineLog(str(stopped)) as log:
        assert (pulled(log, 30).status, pulled(log, 30).next_offset) == (ops.EMPTY, 30)
        assert pulled(log, 31).status == OffsetOutOfRange.code
        assert pulled(log, -1).status == OffsetOutOfRange.code


async def test_times_lie_where_the_broker_says(memory_path: Path) -> None:
    refs = [ops.QueueRef("orders", 0), ops.QueueRef("orders", 1), ops.QueueRef("orders", 7)]
    async with InMemoryBroker(data_dir=str(memory_path), **SETTINGS) as broker, Client(broker) as client:
        await client.create("orders", 2)
        times = []
        for i in range(8):
            times.append((await client.send(b"%d" % i * 900, b"x")).stored_at)
        asked = [messages.OffsetsAt(time + step, refs) for time in times for step in (-1, 0, 1)]
        listed_keys = [await client.request(Op.OFFSETS_AT, at) for at in asked]

    with OfflineLog(str(memory_path)) as log:
        found = [log.request(Op.OFFSETS_AT, at) for at in asked]

    assert [each[:2] for each in found] == [each[:2] for each in listed_keys]
    assert [each[2][0] for each in found] == [QueueNotFound.code] * len(asked)


async def test_topics_and_queues_that_do_not_exist_are_refused(stopped: Path) -> None:
    with OfflineLog(str(stopped)) as log:
        with pytest.raises(TopicNotFound):
            log.request(Op.ROUTE, ops.Route("order"))
        with pytest.raises(QueueNotFound):
            log.request(Op.PULL, ops.Pull(None, 0, 1, [ops.PullQueue("orders", 9, 0)]))
        (answer,) = log.request(Op.RANGES, ops.Ranges(None, [ops.QueueRef("orders", 9)]))
        assert answer[0] == QueueNotFound.code


@pytest.mark.parametrize(
    ("op", "payload", "sentence"),
    [
        (Op.JOIN, [], "does not answer JOIN"),
        (Op.PULL, ops.Pull("g", 0, 1, [ops.PullQueue("orders", 0, 0)]), "free reads of one queue"),
        (Op.PULL, ops.Pull(None, 5, 1, [ops.PullQueue("orders", 0, 0)]), "free reads of one queue"),
    ],
)
async def test_what_only_a_running_broker_can_do_is_refused(
    stopped: Path, op: Op, payload: ops.Pull | list[object], sentence: str
) -> None:
    with OfflineLog(str(stopped)) as log, pytest.raises(BadRequest, match=sentence):
        log.request(op, payload)


# ---- directories


@pytest.mark.parametrize("name", ["", "nothing", "a/file"])
def test_what_is_no_data_directory_is_refused(memory_path: Path, name: str) -> None:
    (memory_path / "a").mkdir()
    (memory_path / "a" / "file").write_text("x")

    with pytest.raises(StoreError, match=r"holds no log: name the data directory|cannot be read"):
        OfflineLog(str(memory_path / name))


async def test_a_log_of_a_newer_version_is_refused(stopped: Path) -> None:
    (stopped / "checkpoint").unlink()
    first = segment_files(stopped)[0]
    data = first.read_bytes()
    at = layout.parse_header(data).size
    first.write_bytes(data[:at] + patched(data[at:], 64, ">B", layout.KIND_TRANSACTION))

    with pytest.raises(StoreError, match=rf"cannot read the log at {at} \(.*kind 3 is unknown.*the one that wrote it"):
        OfflineLog(str(stopped))


async def test_the_directory_is_free_again_when_it_was_refused_or_closed(stopped: Path) -> None:
    log = OfflineLog(str(stopped))
    log.close()
    log.close()
    shutil.rmtree(stopped / "commitlog")
    with pytest.raises(StoreError):
        OfflineLog(str(stopped))

    async with InMemoryBroker(data_dir=str(stopped)):
        pass
