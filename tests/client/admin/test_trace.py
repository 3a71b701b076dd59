"""
Traces of messages in a real broker.

What became of a message, from facts: no broker, no clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.client import Admin, Connection, Message, Producer
from rmq.client.admin.trace import (
    MessageCopy,
    Origin,
    copies,
    dead_state,
    group_of,
    is_for_group,
    origin_of,
    progress,
    standing,
    trace,
)
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import BadRequest, MessageNotFound
from rmq.wire.model import MessageQueue, StoredMessage
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.groups import GroupDescription, GroupQueue
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, DeadRun, SendBack

from rigs.dead_letters import bury_now
from rigs.stored import stored_message


class Member:
    """A member of a concurrent group that has one queue, and fails."""

    def __init__(self, connection: Connection, group: str, topic: str, queue_id: int, epoch: int) -> None:
        self._connection = connection
        self._group = group
        self._queue = (topic, queue_id)
        self._epoch = epoch

    async def fail(self, offset: int, attempt: int = 1) -> None:
        asked = SendBack(self._group, *self._queue, self._epoch, [offset], [attempt], 0, 9, offset + 1, "fails")
        await self._connection.request(Op.SEND_BACK, asked)

    async def commit(self, offset: int) -> None:
        entry = ops.CommitEntry(*self._queue, self._epoch, offset)
        await self._connection.request(Op.COMMIT, ops.Commit(self._group, [entry]))


@asynccontextmanager
async def member(address: str, group: str, topic: str, queue_id: int, expression: str = "*") -> AsyncIterator[Member]:
    connection = Connection(address, client="member", keep_alive=True)
    await connection.open(timeout_s=5.0)
    try:
        subscribed = {topic: expression, f"%RETRY%{group}": "*"}
        await connection.request(Op.JOIN, ops.Join(group, False, "clustering", "average", subscribed))
        (grant,) = await connection.request(Op.ACQUIRE, ops.Acquire(group, [ops.QueueRef(topic, queue_id)]))
        yield Member(connection, group, topic, queue_id, decode(ops.Grant, grant).epoch)
    finally:
        await connection.close()


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker() as running:
        yield running


@pytest.fixture
async def admin(broker: InMemoryBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.address) as running:
        yield running


async def send(broker: InMemoryBroker, *messages: Message) -> list[str]:
    async with Producer(broker.address) as producer:
        return [(await producer.send(message, queue_id=1)).message_id for message in messages]


async def test_groups_are_before_at_and_past_a_message(broker: InMemoryBroker, admin: Admin) -> None:
    ids = await send(broker, *[Message("orders", b"%d" % i, tag="paid") for i in range(3)])
    async with member(broker.address, "g", "orders", 1) as one, member(broker.address, "new", "orders", 0, "created"):
        await one.commit(1)
        told = [await trace(admin, message_id) for message_id in ids]

    assert [found.standings[0].position for found in told] == ["past", "at", "before"]
    assert {found.standings[1].position for found in told} == {"unwanted"}
    first, other = told[0].standings
    assert (first.group, first.committed, first.owner is not None) == ("g", 1, True)
    assert (other.group, other.committed, other.owner) == ("new", None, None)
    assert told[0].origin == ("orders", 1, 0, ids[0])
    assert [(found.copies, found.remarks, found.is_copy) for found in told] == [([], [], False)] * 3


@pytest.mark.virtual_time
async def test_a_delayed_message_waits_and_becomes_another() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        (name,) = await send(broker, Message("orders", b"later", delay_s=5))
        waiting = await trace(admin, name)
        await asyncio.sleep(6)
        done = await trace(admin, name)
        assert done.became is not None
        copy = await trace(admin, done.became.message_id)

    assert (waiting.is_deferred, waiting.became, waiting.standings) == (True, None, [])
    assert waiting.message.due_at is not None
    assert (done.is_deferred, done.origin.queue_offset) == (False, 0)
    assert done.became.copy_of == name
    assert copy.source is not None
    assert (copy.source.message_id, copy.is_copy) == (name, False)


@pytest.mark.virtual_time
async def test_retries_are_found_while_they_wait_and_when_they_are_stored() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        name, other = await send(broker, Message("orders", b"a"), Message("orders", b"b"))
        async with member(broker.address, "g", "orders", 1) as one:
            await one.fail(0)
            await one.fail(1)
        waiting = await trace(admin, name)
        (put_off,) = waiting.copies
        await asyncio.sleep(11)
        stored = await trace(admin, name)
        (retry,) = stored.copies
        by_retry, by_parked = await trace(admin, retry.message_id), await trace(admin, put_off.message_id)

    assert (put_off.kind, put_off.group, put_off.state, put_off.queue_offset) == ("retry", "g", "waiting", None)
    assert put_off.delivery == 2
    assert (retry.state, retry.queue_offset, retry.copy_of) == ("at", 0, put_off.message_id)
    for found in (by_retry, by_parked):
        assert (found.origin.message_id, found.is_copy) == (name, True)
        assert (found.copies, found.standings) == (stored.copies, stored.standings)
    assert by_parked.became is not None
    assert by_parked.became.message_id == retry.message_id
    assert other != name


@pytest.mark.virtual_time
async def test_each_retry_that_failed_again_is_told_as_failed() -> None:
    async with InMemoryBroker() as broker, Admin(broker.address) as admin:
        (name,) = await send(broker, Message("orders", b"a"))
        async with member(broker.address, "g", "orders", 1) as one:
            await one.fail(0)
        await asyncio.sleep(11)
        for delivery in (2, 3):
            async with member(broker.address, "g", "%RETRY%g", 0) as one:
                await one.fail(delivery - 2, delivery)
            await asyncio.sleep(61)
        told = await trace(admin, name)

    assert [(copy.delivery, copy.state) for copy in told.copies] == [(2, "failed"), (3, "failed"), (4, "at")]


async def test_dead_letters_are_followed_to_where_they_were_replayed(broker: InMemoryBroker, admin: Admin) -> None:
    ids = await bury_now(broker.address, "g", [Message("orders", b"%d" % i) for i in range(3)], "poison", 1)
    await admin.replay_dead_letters("g", [0])
    await admin.replay_dead_letters("g", [1], to_topic=True)
    told = [await trace(admin, message_id) for message_id in ids]
    letter, returned = told[1].copies
    by_letter, by_returned = await trace(admin, letter.message_id), await trace(admin, returned.message_id)

    assert [[copy.kind for copy in found.copies] for found in told] == [
        ["dead_letter", "replay"],
        ["dead_letter", "returned"],
        ["dead_letter"],
    ]
    assert [found.copies[0].state for found in told] == ["replayed", "replayed", "waiting"]
    assert {found.copies[0].reason for found in told} == {"poison"}
    assert (returned.topic, returned.queue_id, returned.queue_offset) == ("orders", 1, 3)
    assert by_letter.copies == told[1].copies
    assert by_letter.source is not None
    assert by_returned.source is not None
    assert (by_letter.source.message_id, by_returned.source.message_id) == (ids[1], letter.message_id)


async def test_of_a_topic_that_is_gone_the_dead_letters_are_left(broker: InMemoryBroker, admin: Admin) -> None:
    (name,) = await bury_now(broker.address, "g", [Message("orders", b"x")], "poison", 1)
    (letter,) = (await trace(admin, name)).copies
    await admin.delete_topic("orders")
    told = await trace(admin, letter.message_id)

    assert told.copies == [letter]
    assert told.origin == ("orders", 1, 0, name)
    assert "the topic 'orders' was deleted" in told.remarks
    assert any("the original cannot be read" in remark for remark in told.remarks)
    with pytest.raises(MessageNotFound):
        await trace(admin, name)


async def test_what_was_not_looked_at_is_said(broker: InMemoryBroker, admin: Admin) -> None:
    ids = await bury_now(broker.address, "g", [Message("orders", b"%d" % i) for i in range(5)], "poison", 1)
    told = await trace(admin, ids[4], max_read=2)

    assert told.copies == []
    assert told.remarks == ["only 2 of 5 messages of %DLQ%g/0 were looked at"]
    assert told.unsure == ["g"]
    assert (await trace(admin, ids[4])).unsure == []


async def test_every_group_is_looked_at_also_where_a_topic_has_more_than_it_tells_of(
    broker: InMemoryBroker, admin: Admin
) -> None:
    await admin.create_topic("orders", 1024)
    (name,) = await send(broker, Message("orders", b"a"))
    for i in range(20):
        await admin.reset_offsets(f"g{i:02}", {MessageQueue("orders", 1): i % 2})
    assert (await admin.describe_topic("orders")).more_groups

    told = await trace(admin, name)

    assert [(each.group, each.position) for each in told.standings] == [
        (f"g{i:02}", "past" if i % 2 else "at") for i in range(20)
    ]
    assert told.remarks == []


async def test_an_id_of_no_message_is_refused_as_get_does(admin: Admin) -> None:
    with pytest.raises(BadRequest, match="32 hex digits"):
        await trace(admin, "17")
    with pytest.raises(MessageNotFound, match="ask the broker that has it"):
        await trace(admin, "f" * 32)


ORIGINAL = stored_message("orders", 2, 17, position=80, tag="paid")
ORIGIN = Origin("orders", 2, 17, ORIGINAL.message_id)
SAID = {
    "RMQ_ORIGIN_TOPIC": "orders",
    "RMQ_ORIGIN_QUEUE": "2",
    "RMQ_ORIGIN_OFFSET": "17",
    "RMQ_ORIGIN_ID": ORIGINAL.message_id,
}
RETRY = stored_message("%RETRY%g", 0, 3, position=160, at=2000, copy_of=120, properties=SAID, attempts=1)
LETTER = stored_message(
    "%DLQ%g", 0, 5, position=240, at=3000, copy_of=160,
    properties={**SAID, "RMQ_ATTEMPTS": "2", "RMQ_DEAD_REASON": "poison"},
)  # fmt: skip
REPLAYED_COPY = stored_message("%RETRY%g", 0, 4, position=320, at=4000, copy_of=240, properties=SAID)
RETURNED = stored_message("orders", 2, 30, position=400, at=5000, copy_of=240)
PUT_OFF = stored_message("%RETRY%g", 0, position=480, at=6000, due_at=9000, copy_of=320, properties=SAID, attempts=2)


def described(expression: str | None = "*", model: str | None = "clustering") -> GroupDescription:
    subscribed = {} if expression is None else {"orders": expression}
    return GroupDescription("g", True, model, "average", 0, 0, subscribed, [], [])


def queue(committed: int, **more: object) -> GroupQueue:
    return GroupQueue("orders", 2, 5, 40, committed, 0)._replace(**more)


# ---- origin


@pytest.mark.parametrize("message", [RETRY, LETTER, REPLAYED_COPY, PUT_OFF, ORIGINAL])
def test_every_copy_for_a_group_names_the_first_message(message: StoredMessage) -> None:
    assert origin_of(message) == ORIGIN


def test_a_dead_letter_that_was_put_back_is_a_message_of_its_own() -> None:
    assert origin_of(RETURNED) == Origin("orders", 2, 30, RETURNED.message_id)
    assert not is_for_group(RETURNED)


def test_properties_of_users_make_no_copy() -> None:
    sent = stored_message("orders", 2, 18, position=88, properties=SAID)

    assert origin_of(sent).queue_offset == 18


@pytest.mark.parametrize("name", [*SAID])
@pytest.mark.parametrize("text", [None, "", "x"])
def test_a_copy_that_does_not_say_where_it_is_from_is_told_as_itself(name: str, text: str | None) -> None:
    said = {key: value for key, value in SAID.items() if key != name} | ({} if text is None else {name: text})
    message = stored_message("%RETRY%g", 0, 3, position=160, properties=said)
    is_text = name in ("RMQ_ORIGIN_TOPIC", "RMQ_ORIGIN_ID")

    assert (origin_of(message).message_id == message.message_id) == (text is None or not is_text)


@pytest.mark.parametrize(("message", "group"), [(ORIGINAL, None), (RETRY, "g"), (LETTER, "g"), (RETURNED, None)])
def test_the_group_of_a_copy(message: StoredMessage, group: str | None) -> None:
    assert group_of(message) == group


# ---- groups


@pytest.mark.parametrize(
    ("committed", "position", "before"),
    [(-1, "none", 0), (0, "before", 12), (10, "before", 7), (16, "before", 1), (17, "at", 0), (18, "past", 0)],
)
def test_where_a_group_stands_is_a_matter_of_its_committed_offset(committed: int, position: str, before: int) -> None:
    told = standing(ORIGINAL, ORIGIN, described(), queue(committed))

    assert (told.position, told.messages_before) == (position, before)
    assert told.committed == (None if committed < 0 else committed)
    assert (told.owner, told.epoch, told.lease_left_s) == (None, None, None)


@given(st.integers(0, 100), st.integers(-1, 100))
def test_a_message_is_past_at_or_before_and_nothing_else(offset: int, committed: int) -> None:
    expected = "none" if committed < 0 else "past" if committed > offset else "at" if committed == offset else "before"

    assert progress(offset, committed) == expected


def test_the_owner_and_its_failures_are_told() -> None:
    at = queue(17, owner="h@1#ab", epoch=5, lease_left_s=9.0, state="held", retry_offset=17, attempts=3,
               suspect_offset=17, abandoned=2)  # fmt: skip
    told = standing(ORIGINAL, ORIGIN, described(), at)
    other = standing(ORIGINAL, ORIGIN, described(), at._replace(retry_offset=16, suspect_offset=16))

    assert (told.owner, told.epoch, told.lease_left_s, told.state) == ("h@1#ab", 5, 9.0, "held")
    assert (told.attempts, told.abandoned) == (3, 2)
    assert (other.attempts, other.abandoned) == (0, 0)


@pytest.mark.parametrize(
    ("expression", "position"),
    [("*", "past"), ("paid || new", "past"), ("new", "unwanted"), (None, "past"), ("not | one", "past")],
)
def test_a_tag_that_is_not_subscribed_to_is_not_wanted(expression: str | None, position: str) -> None:
    assert standing(ORIGINAL, ORIGIN, described(expression), queue(20)).position == position


def test_without_the_message_its_tag_says_nothing() -> None:
    assert standing(None, ORIGIN, described("new"), queue(20)).position == "past"


def test_members_that_broadcast_have_a_progress_of_their_own() -> None:
    assert standing(ORIGINAL, ORIGIN, described(model="broadcasting"), queue(-1)).position == "broadcasting"


# ---- copies

ALL = (RETRY, LETTER, REPLAYED_COPY, RETURNED, PUT_OFF)


def told(*messages: StoredMessage, committed: int = 4) -> list[MessageCopy]:
    return copies(messages, {"g": committed}, {"g": [DeadRun(5, 6, REPLAYED)]})


def test_copies_are_told_once_and_in_the_order_they_were_made_however_they_were_found() -> None:
    expected = told(*ALL)

    assert [copy.kind for copy in expected] == ["retry", "dead_letter", "replay", "returned", "retry"]
    for found in list(permutations(ALL))[::7]:
        assert told(*found, *found[:2]) == expected


def test_what_became_of_each_copy() -> None:
    retry, letter, replay, returned, put_off = told(*ALL)

    assert (retry.state, retry.delivery, retry.queue_offset) == ("failed", 2, 3)
    assert (letter.state, letter.delivery, letter.reason) == ("replayed", 2, "poison")
    assert (replay.state, replay.delivery) == ("failed", 1)
    assert (returned.state, returned.group, returned.topic) == (None, None, "orders")
    assert (put_off.state, put_off.queue_offset, put_off.delivery) == ("waiting", None, 3)
    assert put_off.due_at == PUT_OFF.due_at


@pytest.mark.parametrize(("committed", "state"), [(-1, "none"), (2, "before"), (3, "at"), (4, "past")])
def test_a_retry_stands_where_its_group_is_with_its_retries(committed: int, state: str) -> None:
    (copy,) = told(RETRY, committed=committed)

    assert copy.state == state


@pytest.mark.parametrize(("offset", "state"), [(0, "waiting"), (1, "replayed"), (2, "replayed"), (3, "dropped")])
def test_the_state_of_a_dead_letter_is_that_of_its_run(offset: int, state: str) -> None:
    assert dead_state(offset, [DeadRun(1, 3, REPLAYED), DeadRun(3, 9, DROPPED)]) == state
