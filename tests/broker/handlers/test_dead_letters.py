"""
Dead letters are listed, replayed in order and once, and dropped; each has its own result.

Replays with threads, turns and the disk by hand: whatever comes between the request and its copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.state.dead_letters import MAX_RUNS
from rmq.broker.store.changes import DeadHandled
from rmq.broker.store.rebuild import read_head
from rmq.client import Admin
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.batch import layout
from rmq.wire.batch.batch import Rows
from rmq.wire.errors import (
    OK,
    BadName,
    BadRequest,
    Damaged,
    DiskFull,
    Internal,
    MessagesLost,
    OffsetOutOfRange,
    QueueNotFound,
    StoreFailed,
    TopicNotFound,
)
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.redelivery import (
    DROPPED,
    REPLAYED,
    WAITING,
    DeadResult,
    DeadRow,
    DeadRun,
    DropDead,
    ReplayDead,
)
from rmq.wire.protocol.ops.topics import DeleteTopic
from rmq.wire.stores import StoreIds

from ..builders import BORN_AT, ORDERS, files_limited_to, segment_files
from ..copy_rig import DEAD_LETTERS, RETRIES, Rig, found_by_a_start
from ..fakes import request
from ..harness import Client, crash_copy, holder
from rigs.disk.faulty import flip

RETRIES_PLAIN = MessageQueue("%RETRY%g", 0)
LETTERS = MessageQueue("%DLQ%g", 0)


async def dead(broker: InMemoryBroker, count: int = 6) -> tuple[Client, int]:
    """A group that has given up so many messages of orders/0; their offsets are those of the dead letters."""
    client, epoch = await holder(broker)
    rows = Rows(
        [b"%d" % i for i in range(count)], BORN_AT, tags=["t"] * count, index_keys=[(f"k{i}",) for i in range(count)],
        keys=["o"] * count, properties=[{"colour": "red"}] * count,
    )  # fmt: skip
    await client.send_batches(ops.OutgoingBatch(0, bytes(batches.encode("orders", 0, rows))))
    await client.dead_letter(epoch, *range(count), commit=count)
    return client, epoch


async def bodies(client: Client, queue: MessageQueue = RETRIES_PLAIN, offset: int = 0) -> list[bytes]:
    return [message.body for message in await client.stored(queue, offset)]


@pytest.mark.virtual_time
async def test_groups_with_dead_letters_are_listed_with_what_became_of_them(broker: InMemoryBroker) -> None:
    client, _ = await dead(broker)
    async with client, Admin(broker.address) as admin:
        await client.join("a")
        grant = await client.acquire(group="a")
        await client.dead_letter(grant.epoch, 0, group="a")
        await admin.replay_dead_letters("g", [0, 1, 4])
        await admin.drop_dead_letters("g", [2])

        assert await admin.list_dead_letters() == [
            DeadRow("a", "%DLQ%a", 0, 1, 1, 0, 0), DeadRow("g", "%DLQ%g", 0, 6, 2, 3, 1),
        ]  # fmt: skip
        assert await admin.dead_letter_states("g") == [
            DeadRun(0, 2, REPLAYED),
            DeadRun(2, 3, DROPPED),
            DeadRun(4, 5, REPLAYED),
        ]
        assert await admin.dead_letter_states("a") == []
        with pytest.raises(TopicNotFound, match="%DLQ%nobody"):
            await admin.dead_letter_states("nobody")


@pytest.mark.virtual_time
async def test_a_replay_comes_to_the_group_at_once_as_if_it_had_never_failed(broker: InMemoryBroker) -> None:
    client, _ = await dead(broker)
    async with client, Admin(broker.address) as admin:
        results = await admin.replay_dead_letters("g", [1, 3])

        assert results == {
            1: DeadResult(0, REPLAYED, True, "%RETRY%g", 0, 0), 3: DeadResult(0, REPLAYED, True, "%RETRY%g", 0, 1),
        }  # fmt: skip
        first, _ = await client.stored(RETRIES_PLAIN)
        letter = (await client.stored(LETTERS))[1]
        assert (first.body, first.tag, first.index_keys, first.key) == (b"1", "t", ("k1",), "o")
        assert (first.topic, first.attempt, first.born_at) == ("orders", 1, letter.born_at)
        kept = {
            name: text for name, text in letter.properties.items() if name not in ("RMQ_ATTEMPTS", "RMQ_DEAD_REASON")
        }
        assert first.properties == kept
        assert kept["RMQ_ORIGIN_OFFSET"] == "1"
        batch = batches.read_all(
            (await client.pull(0, queue=RETRIES_PLAIN)).batches, stores=StoreIds(client.hello.store_id)
        )[0]
        assert batch.header.origin == int(letter.message_id[16:], 16)
        assert await client.committed(RETRIES_PLAIN) == 0


@pytest.mark.virtual_time
async def test_a_replay_to_its_topic_is_for_all_groups_and_shows_no_trace(broker: InMemoryBroker) -> None:
    client, _ = await dead(broker)
    async with client, Admin(broker.address) as admin:
        results = await admin.replay_dead_letters("g", [1, 3], to_topic=True)

        assert [result[:6] for result in results.values()] == [
            (0, REPLAYED, True, "orders", 0, 6), (0, REPLAYED, True, "orders", 0, 7),
        ]  # fmt: skip
        again = await client.stored(MessageQueue("orders", 0), 6)
        assert [(message.body, message.tag, message.properties) for message in again] == [
            (b"1", "t", {"colour": "red"}), (b"3", "t", {"colour": "red"}),
        ]  # fmt: skip
        assert await client.stored(RETRIES_PLAIN) == []


@pytest.mark.virtual_time
async def test_what_was_replayed_or_dropped_stays_so(broker: InMemoryBroker) -> None:
    client, _ = await dead(broker)
    async with client, Admin(broker.address) as admin:
        await admin.replay_dead_letters("g", [1])
        await admin.drop_dead_letters("g", [2])

        assert [result[:3] for result in (await admin.replay_dead_letters("g", [0, 1, 2])).values()] == [
            (0, REPLAYED, True), (0, REPLAYED, False), (0, DROPPED, False),
        ]  # fmt: skip
        assert [result[:3] for result in (await admin.drop_dead_letters("g", [0, 2, 3])).values()] == [
            (0, REPLAYED, False), (0, DROPPED, False), (0, DROPPED, True),
        ]  # fmt: skip
        replayed = await admin.replay_dead_letters("g", [1], to_topic=True)
        assert [result.is_new for result in replayed.values()] == [False]
        assert await bodies(client) == [b"1", b"0"]


@pytest.mark.virtual_time
async def test_a_dry_run_judges_everything_and_does_nothing(broker: InMemoryBroker) -> None:
    client, _ = await dead(broker)
    async with client, Admin(broker.address) as admin:
        await admin.drop_dead_letters("g", [0])

        told = await admin.replay_dead_letters("g", [0, 1, 9], dry_run=True)
        assert [result[:3] for result in told.values()] == [
            (0, DROPPED, False), (0, WAITING, True), (OffsetOutOfRange.code, WAITING, False),
        ]  # fmt: skip
        assert told[1][3:5] == ("%RETRY%g", 0)
        assert (await admin.replay_dead_letters("g", [1], to_topic=True, dry_run=True))[1][3:5] == ("orders", 0)
        assert (await admin.drop_dead_letters("g", [1], dry_run=True))[1][:3] == (0, WAITING, True)
        assert (await admin.list_dead_letters())[0][4:] == (5, 0, 1)
        assert [topic.topic for topic in await admin.list_topics()] == ["%DLQ%g", "orders"]


@pytest.mark.virtual_time
async def test_each_message_has_its_own_result(broker: InMemoryBroker) -> None:
    client, _ = await dead(broker)
    async with client, Admin(broker.address) as admin:
        results = await admin.replay_dead_letters("g", [5, 6, 99])

        assert [(result.status, result.is_new) for result in results.values()] == [
            (0, True), (OffsetOutOfRange.code, False), (OffsetOutOfRange.code, False),
        ]  # fmt: skip
        assert results[6].text == "offset 6 is out of range: %DLQ%g/0 holds 0 to 6"
        assert [result.status for result in (await admin.drop_dead_letters("g", [4, 6])).values()] == [0, 124]


@pytest.mark.virtual_time
async def test_a_replay_to_a_topic_that_is_gone_is_refused_message_by_message(broker: InMemoryBroker) -> None:
    async with Admin(broker.address) as admin, Client(broker) as client:
        for topic, queue_id in (("orders", 3), ("payments", 0)):
            await client.create(topic)
            queue = MessageQueue(topic, queue_id)
            await client.send(topic.encode(), to=queue)
            await client.join(topics=(topic,))
            await client.dead_letter((await client.acquire(queue)).epoch, 0, queue=queue)
        await client.join("h", topics=("%DLQ%g",))
        await client.dead_letter((await client.acquire(LETTERS, group="h")).epoch, 0, queue=LETTERS, group="h")
        await admin.delete_topic("orders")
        gone = await admin.replay_dead_letters("g", [0, 1], to_topic=True)
        await admin.create_topic("orders", 2)
        narrow = await admin.replay_dead_letters("g", [0, 1], to_topic=True)
        own = await admin.replay_dead_letters("h", [0], to_topic=True)

        assert [result[:3] for result in gone.values()] == [(TopicNotFound.code, 0, False), (0, REPLAYED, True)]
        assert [result[:3] for result in narrow.values()] == [(QueueNotFound.code, 0, False), (0, REPLAYED, False)]
        assert (own[0].status, own[0].text) == (
            BadName.code,
            "it came from '%DLQ%g', which is written by the broker alone: replay it to its group",
        )
        assert (await admin.replay_dead_letters("g", [0]))[0].is_new  # to its group it can go


@pytest.mark.virtual_time
async def test_requests_that_make_no_sense_are_refused(broker: InMemoryBroker) -> None:
    client, _ = await dead(broker)
    async with client, Admin(broker.address) as admin:
        for offsets in ([], [1, 1], [2, 1], [-1]):
            for op in (Op.REPLAY_DEAD, Op.DROP_DEAD):
                with pytest.raises(BadRequest):
                    await client.request(op, ["g", offsets])
        with pytest.raises(BadRequest, match="at most 1024 entries, not 1025"):
            await client.request(Op.REPLAY_DEAD, ReplayDead("g", list(range(1025))))
        for group, error in (("a b", BadName), ("nobody", TopicNotFound)):
            with pytest.raises(error):
                await admin.replay_dead_letters(group, [0])
            with pytest.raises(error):
                await admin.drop_dead_letters(group, [0])


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_what_became_of_dead_letters_survives_and_is_not_done_twice(
    broker: InMemoryBroker, memory_path: Path, how: str
) -> None:
    client, _ = await dead(broker)
    async with Admin(broker.address) as admin:
        await admin.replay_dead_letters("g", [0, 2])
        await admin.drop_dead_letters("g", [1])
    after = crash_copy(broker, memory_path / "copy")
    if how == "restart":
        await broker.restart()
    await client.connection.close()
    if how == "crash":
        await broker.stop()
        await after.start()
    else:
        after = broker
    async with Admin(after.address) as admin, Client(after) as client:
        assert await admin.dead_letter_states("g") == [DeadRun(0, 1, 1), DeadRun(1, 2, 2), DeadRun(2, 3, 1)]
        await admin.replay_dead_letters("g", range(4))
        assert await bodies(client) == [b"0", b"2", b"3"]
    if how == "crash":
        await after.stop()


@pytest.mark.virtual_time
async def test_a_deleted_topic_takes_its_dead_letters_and_what_became_of_them(broker: InMemoryBroker) -> None:
    client, epoch = await dead(broker)
    async with client, Admin(broker.address) as admin:
        await admin.replay_dead_letters("g", [0])
        await client.request(Op.DELETE_TOPIC, DeleteTopic("%DLQ%g"))
        assert await admin.list_dead_letters() == []
        with pytest.raises(TopicNotFound):
            await admin.replay_dead_letters("g", [0])

        await client.send(b"new")
        await client.dead_letter(epoch, 6)

        assert await admin.list_dead_letters() == [DeadRow("g", "%DLQ%g", 0, 1, 1, 0, 0)]
        assert (await admin.replay_dead_letters("g", [0]))[0].is_new
        assert await bodies(client) == [b"0", b"new"]


@pytest.mark.virtual_time
async def test_a_disk_that_takes_nothing_is_the_result_of_what_was_not_replayed(broker: InMemoryBroker) -> None:
    client, _ = await dead(broker)
    async with client, Admin(broker.address) as admin:
        await admin.replay_dead_letters("g", [0])
        (segment,) = segment_files(broker.broker.config.data_path())
        with files_limited_to(segment.stat().st_size):
            failed = await admin.replay_dead_letters("g", [0, 1, 2])
        broker.broker._sends.refuse_because = "only 3 MiB are free"
        full = await admin.replay_dead_letters("g", [1])
        broker.broker._sends.refuse_because = None

        assert [result[:3] for result in failed.values()] == [
            (0, REPLAYED, False), (StoreFailed.code, 0, False), (StoreFailed.code, 0, False),
        ]  # fmt: skip
        assert (full[1].status, full[1].text) == (DiskFull.code, "only 3 MiB are free")
        replayed = await admin.replay_dead_letters("g", [0, 1, 2])
        assert [result.is_new for result in replayed.values()] == [False, True, True]
        assert await bodies(client) == [b"0", b"1", b"2"]


@pytest.mark.virtual_time
async def test_large_dead_letters_are_replayed_in_portions_and_in_order(broker: InMemoryBroker) -> None:
    client, epoch = await holder(broker)
    async with client, Admin(broker.address) as admin:
        for i in range(4):
            await client.send(b"%d" % i * (3 << 20))
        await client.dead_letter(epoch, *range(4), commit=4)

        results = await admin.replay_dead_letters("g", range(4))

        assert [result.queue_offset for result in results.values()] == [0, 1, 2, 3]
        found = [(await bodies(client, RETRIES_PLAIN, i))[0][:1] for i in range(4)]
        assert found == [b"0", b"1", b"2", b"3"]


@pytest.mark.virtual_time
async def test_a_replayed_message_that_fails_again_is_a_new_dead_letter_with_its_old_origin(
    broker: InMemoryBroker,
) -> None:
    client, _ = await dead(broker)
    async with client, Admin(broker.address) as admin:
        await admin.replay_dead_letters("g", [2])
        await client.join(topics=("orders", "%RETRY%g"))
        grant = await client.acquire(RETRIES_PLAIN)

        assert await client.send_back(grant.epoch, {0: 1}, level=-1, queue=RETRIES_PLAIN, commit=1) == [-1]

        letter = (await client.stored(LETTERS))[6]
        assert (letter.body, letter.properties["RMQ_ORIGIN_TOPIC"], letter.properties["RMQ_ORIGIN_OFFSET"]) == (
            b"2", "orders", "2",
        )  # fmt: skip
        assert (await admin.replay_dead_letters("g", [6]))[6].is_new


def with_letters(path: Path, **more: Any) -> Rig:
    """A group with the dead letters 0 to 5, which hold the messages of these offsets."""
    rig = Rig(path, **more)
    rig.begin()
    rig.ask(0, *range(6), commit=6)
    rig.run()
    assert rig.answers() == [(0, OK)]
    return rig


@pytest.fixture
def rig(memory_path: Path) -> Iterator[Rig]:
    rig = with_letters(memory_path)
    yield rig
    rig.close()


def results(rig: Rig) -> list[tuple[int, int, bool]]:
    """(status, state, is_new) of each message of the one answer that came."""
    ((_, _, status, payload),) = rig.peer.answers()
    assert status == OK
    return [tuple(result[:3]) for result in payload]


def replayed(rig: Rig) -> str:
    """The dead letters whose copies lie in the retry topic, in their order."""
    return "".join(message.properties["RMQ_ORIGIN_OFFSET"] for message in rig.stored(RETRIES))


def drop(rig: Rig, *offsets: int) -> None:
    rig.peer.send(request(9, Op.DROP_DEAD, DropDead("g", list(offsets))))
    rig.peer.answers()


NEW, BEFORE = (OK, REPLAYED, True), (OK, REPLAYED, False)


def test_nothing_is_appended_before_a_thread_has_made_the_copies(rig: Rig) -> None:
    rig.ask_replay(1, 2, 4)
    assert (rig.peer.answers(), replayed(rig), len(rig.pool)) == ([], "", 1)

    rig.run()

    assert (results(rig), replayed(rig)) == ([NEW, NEW], "24")


def test_what_is_dropped_while_it_is_read_is_not_replayed(rig: Rig) -> None:
    rig.ask_replay(1, 2, 3, 4)
    drop(rig, 3)
    rig.run()

    assert (results(rig), replayed(rig)) == ([NEW, (OK, DROPPED, False), NEW], "24")


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_ends_while_it_is_read_ends_the_request_too(rig: Rig, again: bool) -> None:
    rig.ask_replay(1, 2)
    generation = rig.tables.topics.delete(DEAD_LETTERS.topic).generation
    rig.store.drop_topic(DEAD_LETTERS.topic, generation)
    if again:
        rig.make_topic(DEAD_LETTERS.topic)
    rig.run()

    assert rig.answers() == [(1, TopicNotFound.code)]
    assert replayed(rig) == ""


def test_two_requests_for_the_same_replay_it_once(rig: Rig) -> None:
    rig.ask_replay(1, 1, 2)
    rig.ask_replay(2, 2, 3)
    rig.run()

    payloads = [payload for _, _, _, payload in rig.peer.answers()]
    assert [[result[2] for result in payload] for payload in payloads] == [[True, True], [False, True]]
    assert replayed(rig) == "123"


def test_a_damaged_dead_letter_is_refused_and_the_others_are_replayed(rig: Rig) -> None:
    place = rig.store.locator(DEAD_LETTERS).position_of(3)
    assert place is not None
    flip(segment_files(rig.path)[0], place[0] + place[1] - 20)
    rig.ask_replay(1, 2, 3, 4)
    rig.run()

    assert (results(rig), replayed(rig)) == ([NEW, (Damaged.code, WAITING, False), NEW], "24")


def test_dead_letters_that_retention_has_taken_are_refused_and_forgotten(memory_path: Path) -> None:
    rig = with_letters(memory_path, segment_bytes=2500)
    drop(rig, 0, 5)
    rig.turn()
    rig.store.log.sync()
    segment = rig.store.log.segments[-1]
    head = read_head(rig.files, str(segment.path), segment.start)
    assert head is not None
    gone, _ = rig.store.forget_before(segment.start, head.changes)
    for old in gone:
        old.path.unlink()
    first = rig.store.queue(DEAD_LETTERS).min_offset
    assert first > 0

    rig.ask_replay(1, 0)
    rig.run()

    assert results(rig) == [(MessagesLost.code, WAITING, False)]
    assert rig.tables.ledger.handled.runs(DEAD_LETTERS.topic, 0, 9) == ([DeadRun(5, 6, DROPPED)] if first < 6 else [])
    rig.close()


def test_a_disk_that_cannot_be_read_and_a_defect_are_reported(rig: Rig) -> None:
    rig.files.fail("open_to_read", "commitlog")
    rig.ask_replay(1, 2)
    rig.run()
    rig.files.heal()
    rig.ask_replay(2, 2)
    ((_, done),) = rig.pool.jobs
    rig.pool.jobs.clear()
    done(ZeroDivisionError("a defect"))
    rig.ask_replay(3, 2)
    rig.run()

    assert rig.answers() == [(1, StoreFailed.code), (2, Internal.code), (3, OK)]
    assert replayed(rig) == "2"


def test_a_failed_write_is_the_result_of_all_that_are_left(rig: Rig) -> None:
    rig.make_topic(RETRIES.topic)
    rig.turn()
    rig.ask_replay(1, 2, 3)
    rig.files.fail("write", "commitlog", after=200)
    rig.run()
    rig.files.heal()

    assert results(rig) == [(StoreFailed.code, WAITING, False)] * 2
    rig.ask_replay(2, 2, 3)
    rig.run()
    assert (results(rig), replayed(rig)) == ([NEW, NEW], "23")
    assert found_by_a_start(rig).ledger.handled.counts(DEAD_LETTERS.topic) == (2, 0)


def ends_of_copies(data: bytes, at: int) -> list[int]:
    """Where each of the copies behind a place of the log ends, that place included."""
    ends = [at]
    while at + layout.FIXED_HEADER <= len(data) and (header := layout.parse_header(data, at)).size:
        at += header.size
        if header.origin:
            ends.append(at)
        if at == len(data):
            break
    return ends


@pytest.mark.parametrize("to_topic", [False, True])
@pytest.mark.parametrize("copies", [0, 1, 2, 3])
def test_a_replay_that_is_torn_anywhere_is_completed_by_asking_again(
    memory_path: Path, to_topic: bool, copies: int
) -> None:
    rig = with_letters(memory_path)
    before = rig.store.log.written
    rig.ask_replay(1, 1, 3, 4, to_topic=to_topic)
    rig.run()
    written = rig.store.log.written
    rig.store.log.sync()
    rig.close()
    (segment,) = segment_files(memory_path)
    data = segment.read_bytes()[:written]
    segment.write_bytes(data[: ends_of_copies(data, before)[copies]])
    for start in range(2):  # also if the start after the tear comes to nothing but that
        rig = Rig(memory_path)
        if not start:
            rig.turn()
            rig.store.log.sync()
            rig.close()

    rig.ask_replay(1, 1, 3, 4, to_topic=to_topic)
    rig.run()

    assert results(rig) == [BEFORE] * copies + [NEW] * (3 - copies)
    where = ORDERS if to_topic else RETRIES
    assert [message.body[:1] for message in rig.stored(where)][6 if to_topic else 0 :] == [b"1", b"3", b"4"]
    rig.close()


def test_who_picks_here_and_there_may_do_so_only_so_often(rig: Rig) -> None:
    many = [DeadRun(10 + 2 * i, 11 + 2 * i, DROPPED) for i in range(MAX_RUNS - 1)]
    rig.tables.ledger.apply(DeadHandled(DEAD_LETTERS.topic, many))
    rig.ask_replay(1, 2)
    rig.ask_replay(2, 4)
    rig.ask_replay(3, 3)  # beside 2: no run more
    rig.run()

    assert sorted(rig.answers()) == [(1, OK), (2, BadRequest.code), (3, OK)]
    assert replayed(rig) == "23"
