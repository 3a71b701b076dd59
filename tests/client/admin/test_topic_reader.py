"""Reading queues on from their places: what is passed is told, and no answer fills the memory."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmq.client.admin.tail import MOST_BYTES, ReadPosition, TopicCursor, order
from rmq.engine.native.connection import Connection
from rmq.wire.errors import Damaged, LogTruncated, MessagesLost, OffsetOutOfRange, StoreFailed, TopicNotFound
from rmq.wire.protocol.ops.core import EMPTY, Op, Pull, PullResult
from rmq.wire.stores import StoreIds

from rigs.stored import STORE_ID, stored_batch


def stored(queue_id: int, base_offset: int, *bodies: bytes, **more: Any) -> bytes:
    return stored_batch("orders", queue_id, base_offset, *bodies, **more)


class Broker:
    """Answers pulls from a script."""

    def __init__(self, *answers: Sequence[PullResult]) -> None:
        self.answers = list(answers)
        self.asked: list[Pull] = []
        self.hello = SimpleNamespace(stores=StoreIds(STORE_ID), log_epoch=7)

    async def request(self, op: Op, payload: Pull, *, timeout_s: float) -> Any:
        assert op == Op.PULL
        self.asked.append(payload)
        return [list(answer) for answer in self.answers.pop(0)]


def reader(broker: Broker, positions: dict[int, int], said: list[str] | None = None, **more: Any) -> TopicCursor:
    heard: list[str] = [] if said is None else said
    return TopicCursor(cast(Connection, broker), "orders", positions, notice=heard.append, **more)


def found(index: int, *parts: bytes, next_offset: int = 0) -> PullResult:
    return PullResult(index, 0, next_offset, 0, 100, b"".join(parts))


async def test_messages_come_in_the_order_they_were_stored_and_places_move() -> None:
    broker = Broker([found(0, stored(0, 5, b"c", b"d", at=2000)), found(1, stored(1, 0, b"a", b"b"))], [])
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
    reading = reader(Broker([found(0, stored(0, 0, b"a"))]), {0: 0, 1: 0, 2: 0})
    await reading.read()

    assert list(reading.positions) == [1, 2, 0]


async def test_only_wanted_tags_come_and_others_are_passed() -> None:
    batch = stored(0, 0, b"a", tag="paid") + stored(0, 1, b"b", tag="new")
    empty = PullResult(0, EMPTY, 9, 0, 9, b"")
    broker = Broker([found(0, batch)], [empty])
    reading = reader(broker, {0: 0}, expression="new || old")

    assert [message.body for message in await reading.read()] == [b"b"]
    assert await reading.read() == []
    assert reading.positions == {0: ReadPosition(9, 7)}
    assert broker.asked[0].expression == "new || old"


@pytest.mark.parametrize("error", [MessagesLost, Damaged, LogTruncated])
async def test_what_cannot_be_read_is_passed_and_told(error: Any) -> None:
    said: list[str] = []
    reading = reader(Broker([PullResult(0, error.code, 8, 8, 20, b"", "3 to 8 are gone")]), {0: 3}, said)

    assert await reading.read() == []
    assert reading.positions == {0: ReadPosition(8, 7)}
    assert said == ["3 to 8 are gone"]


async def test_behind_the_end_it_goes_on_at_the_end() -> None:
    said: list[str] = []
    reading = reader(Broker([PullResult(0, OffsetOutOfRange.code, 30, 0, 20, b"", "out of range")]), {0: 30}, said)
    await reading.read()

    assert (reading.positions, said) == ({0: ReadPosition(20, 7)}, ["out of range: going on at 20"])


async def test_a_topic_that_ended_is_an_end() -> None:
    reading = reader(Broker([PullResult(0, TopicNotFound.code, 0, 0, 0, b"", "gone")]), {0: 0})

    with pytest.raises(TopicNotFound, match="the topic 'orders' was deleted"):
        await reading.read()


async def test_another_topic_of_the_same_name_is_not_mixed_in() -> None:
    reading = reader(Broker([found(0, stored(0, 0, b"a", generation=2))]), {0: 0}, generation=1)

    with pytest.raises(TopicNotFound, match="made again"):
        await reading.read()


async def test_a_disk_that_fails_is_an_error_of_its_class() -> None:
    reading = reader(Broker([PullResult(0, StoreFailed.code, 0, 0, 0, b"", "the disk")]), {0: 0})

    with pytest.raises(StoreFailed, match="the disk"):
        await reading.read()


async def test_what_unpacks_to_too_much_is_asked_for_again() -> None:
    large = b"x" * (4 << 20)
    parts = [stored(0, i, large) for i in range(6)]
    reading = reader(Broker([found(0, *parts), found(1, stored(1, 0, b"small"))]), {0: 0, 1: 0})

    messages = await reading.read()

    assert sum(len(message.body) for message in messages) <= MOST_BYTES
    assert reading.positions == {1: ReadPosition(0), 0: ReadPosition(4, 3)}


async def test_a_queue_is_added_once() -> None:
    reading = reader(Broker(), {0: 7})
    reading.add(0)
    reading.add(1)

    assert reading.positions == {0: ReadPosition(7), 1: ReadPosition(0)}
