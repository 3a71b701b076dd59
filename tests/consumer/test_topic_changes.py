"""Topics that are deleted, made again, or grow under a running consumer: nothing old gets into what is new."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rmq.client import Admin, Message, Producer
from rmq.consumer import ConsumeContext, Consumer
from rmq.testing.broker import InMemoryBroker
from rmq.wire.errors import QueueNotFound, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op, Push

from .fake_broker import FakeBroker
from .recorder import QUEUE, SUSPEND, Make, Messages, Recorder, now, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


class Bodies(Recorder):
    """A recorder that keeps what it was given."""

    def __init__(self, *script: object, takes_s: float = 0.0) -> None:
        super().__init__(*script, takes_s=takes_s)
        self.got: list[tuple[int, bytes]] = []
        self.lost: list[bool] = []

    async def __call__(self, messages: Messages, context: ConsumeContext) -> object:
        self.got += [(message.queue_offset, message.body) for message in messages]
        answer: object = await super().__call__(messages, context)
        self.lost.append(bool(context.lost))
        return answer


def make_again(broker: FakeBroker, *bodies: bytes, queues: int = 1) -> None:
    broker.topics["t"] = queues
    for body in bodies:
        broker.send("t", 0, body)
    broker.create("t", queues)


def kinds(broker: FakeBroker, since: float) -> Counter[Op]:
    return Counter(request.op for request in broker.requests if request.at > since)


# Deleted
async def test_the_queues_of_a_deleted_topic_are_dropped_at_once_and_nothing_more_is_asked_of_them(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t", 3)
    broker.create("u")
    consumer = make(topics={"t": "*", "u": "*"})

    async with consumer:
        await asyncio.sleep(2)
        broker.delete("t")
        assert consumer.assignment == [MessageQueue("u", 0)]
        await asyncio.sleep(60)

    assert kinds(broker, since=2.0) == {Op.PULL: 4, Op.JOIN: 2, Op.RENEW: 3, Op.LEAVE: 1}
    warnings = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert warnings == ["topic.deleted topic=t generation=1"]


async def test_a_call_that_runs_when_its_topic_is_deleted_is_told_ends_and_counts_for_nothing(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"old"] * 5)
    listener = Bodies(takes_s=1.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1.5)
        broker.delete("t")
        at = len(broker.requests)
        await asyncio.sleep(5)

        assert listener.got == [(0, b"old"), (1, b"old")]
        assert listener.lost == [False, True]
        assert [request.op for request in broker.requests[at:]] == []


async def test_a_failed_call_of_a_deleted_topic_is_not_tried_again(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"old"])
    listener = Bodies(*[SUSPEND] * 50, takes_s=0.1)

    async with make(listener, topics={"t": "*"}, suspend_s=0.1):
        await asyncio.sleep(0.05)
        broker.delete("t")
        await asyncio.sleep(10)

    assert len(listener.calls) == 1
    assert broker.sent(Op.ATTEMPT) == []


async def test_a_deletion_of_an_older_generation_changes_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("x")
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        broker.connections[0].push(Push.TOPIC_DELETED, ["t", 1])
        broker.connections[0].push(Push.TOPIC_DELETED, ["other", 2])
        broker.connections[0].push(Push.TOPIC_DELETED, ["t"])
        assert consumer.assignment == [QUEUE]


# Made again
@pytest.mark.parametrize("start_from", ["first", "last"])
async def test_a_topic_that_is_made_again_is_consumed_from_0_with_nothing_of_the_old_one(
    broker: FakeBroker, make: Make, start_from: str
) -> None:
    broker.create("t", bodies=[b"old"] * 5)
    broker.offsets["g", QUEUE] = 0
    listener = Bodies(takes_s=1.0)
    consumer = make(listener, topics={"t": "*"}, start_from=start_from)

    async with consumer:
        await asyncio.sleep(2.5)
        broker.delete("t")
        await asyncio.sleep(5)
        make_again(broker, b"new 0", b"new 1")
        await asyncio.sleep(0.5)
        assert consumer.assignment == [QUEUE]
        await asyncio.sleep(3)

    assert listener.got[3:] == [(0, b"new 0"), (1, b"new 1")]
    assert listener.times[3] - 7.5 <= 1.0
    assert broker.offsets["g", QUEUE] == 2
    pulls = [request.payload.queues[0] for request in broker.sent(Op.PULL) if request.at > 7]
    assert (pulls[0].queue_offset, pulls[0].log_epoch) == (0, 0)


async def test_deleted_and_made_again_under_a_running_call_the_new_queue_begins_when_that_has_ended(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"old"] * 5)
    listener = Bodies(takes_s=3.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(4)  # the second call runs
        broker.delete("t")
        make_again(broker, b"new")
        await asyncio.sleep(6)

    assert listener.got == [(0, b"old"), (1, b"old"), (0, b"new")]
    assert listener.times == [0.0, 3.0, 6.0]
    assert listener.lost == [False, True, False]
    assert listener.most == 1
    assert broker.offsets["g", QUEUE] == 1
    sent = [entry for request in broker.sent(Op.COMMIT) if request.at >= 4 for entry in request.payload.entries]
    assert {entry.epoch for entry in sent} == {2}


@pytest.mark.parametrize("kept", ["reply", "request"])
async def test_an_answer_to_a_pull_of_the_old_topic_does_not_get_into_the_new_queue(
    broker: FakeBroker, make: Make, kept: str
) -> None:
    broker.create("t", bodies=[b"old"] * 5)
    hold = broker.hold_reply(Op.PULL) if kept == "reply" else broker.hold_request(Op.PULL)
    listener = Bodies()

    async with make(listener, topics={"t": "*"}):
        await hold.reached.wait()
        broker.delete("t")
        make_again(broker, b"new")
        await asyncio.sleep(0)
        hold.let_go.set()
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 1

    assert listener.got == [(0, b"new")]


async def test_a_push_that_only_tells_of_the_new_topic_ends_the_old_one(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"old"] * 5)
    listener = Bodies()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.delete("t", tell=False)
        make_again(broker, b"new")
        await asyncio.sleep(1)

    assert listener.got[5:] == [(0, b"new")]


@pytest.mark.parametrize("again", [True, False])
async def test_what_was_missed_while_disconnected_is_told_by_the_next_join(
    broker: FakeBroker, make: Make, again: bool
) -> None:
    broker.create("t", bodies=[b"old"] * 5)
    listener = Bodies()
    consumer = make(listener, topics={"t": "*"}, start_from="last")
    broker.offsets["g", QUEUE] = 0

    async with consumer:
        await asyncio.sleep(1)
        broker.go_down()
        broker.delete("t")
        if again:
            make_again(broker, b"new")
        broker.come_up()
        await asyncio.sleep(1)
        assert consumer.assignment == ([QUEUE] if again else [])
        assert len(broker.sent(Op.ACQUIRE)) == (2 if again else 1)

    assert listener.got[5:] == ([(0, b"new")] if again else [])


@pytest.mark.parametrize("whole", [True, False])
async def test_a_grant_that_was_asked_for_under_the_old_topic_is_given_back_and_asked_for_anew(
    broker: FakeBroker, make: Make, whole: bool
) -> None:
    broker.create("t", bodies=[b"old"] * 5)
    hold = broker.hold_reply(Op.ACQUIRE) if whole else broker.hold_request(Op.ACQUIRE)
    listener = Bodies()

    async with make(listener, topics={"t": "*"}):
        await hold.reached.wait()
        broker.delete("t")
        make_again(broker, b"new")
        hold.let_go.set()
        await asyncio.sleep(1)

    assert listener.got == [(0, b"new")]
    assert len(broker.sent(Op.ACQUIRE)) == 2
    assert {request.payload.queues[0].epoch for request in broker.sent(Op.PULL)} == {2}


async def test_a_heartbeat_that_tells_of_another_generation_ends_the_old_one(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(29)
        broker.generations["t"] = 9  # nobody has told us
        await asyncio.sleep(2)
        assert consumer.assignment == [QUEUE]
        assert broker.times(Op.ACQUIRE) == [0.0, 30.0]


async def test_batches_of_another_topic_of_the_same_name_are_not_delivered(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    listener = Bodies()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.generations["t"] = 9  # nobody has told us
        broker.send("t", 0, b"new")
        await asyncio.sleep(0.5)
        assert listener.got == []
        await asyncio.sleep(1)

    assert listener.got == [(0, b"new")]


# Found out by a refusal
@pytest.mark.parametrize("error", [TopicNotFound("gone"), QueueNotFound("gone")])
@pytest.mark.parametrize("op", [Op.PULL, Op.RANGES, Op.ACQUIRE])
async def test_a_refusal_has_the_topics_asked_for_again_within_a_second(
    broker: FakeBroker, make: Make, op: Op, error: Exception
) -> None:
    broker.create("t", bodies=[b"x"])
    broker.refuse[op] = [error]
    listener = Bodies()

    await run_for(3, make(listener, topics={"t": "*"}))

    assert listener.got == [(0, b"x")]
    assert listener.times == [1.0]
    # One at the start, one after a second, and one after each change of what is held.
    assert set(broker.times(Op.JOIN)) == {0.0, 1.0}


async def test_a_topic_that_went_unnoticed_is_found_out_by_the_pull_and_asked_for_no_more(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t", 2)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1.5)
        broker.delete("t", tell=False)
        await asyncio.sleep(0.1)
        assert consumer.assignment == []
        await asyncio.sleep(25)
        assert kinds(broker, since=1.5) == {Op.JOIN: 1}
        broker.create("t", 2)
        await asyncio.sleep(0.1)
        assert len(consumer.assignment) == 2

    assert caplog.text.count("topic.missing") == 1


async def test_a_topic_that_went_unnoticed_is_found_out_by_a_fenced_renewal(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        hold = broker.hold_reply(Op.PULL)
        await asyncio.sleep(0.5)
        broker.delete("t", tell=False)
        await asyncio.sleep(2)  # the renewal comes at 1 s
        hold.let_go.set()
        await asyncio.sleep(3)
        assert consumer.assignment == []
        assert kinds(broker, since=0.5) == {Op.RENEW: 1, Op.ACQUIRE: 1, Op.JOIN: 1, Op.RELEASE: 1}


# Grown
@pytest.mark.parametrize("start_from", ["first", "last"])
async def test_new_queues_are_taken_within_a_second_and_read_from_0(
    broker: FakeBroker, make: Make, start_from: str
) -> None:
    broker.create("t", 2)
    listener = Recorder()
    consumer = make(listener, topics={"t": "*"}, start_from=start_from)

    async with consumer:
        await asyncio.sleep(3)
        before = list(consumer.assignment)
        broker.topics["t"] = 4
        broker.send("t", 3, b"a", b"b")
        broker.create("t", 4)
        await asyncio.sleep(0.5)
        assert consumer.assignment == [*before, MessageQueue("t", 2), MessageQueue("t", 3)]

    assert [(queue_id, offsets) for _, queue_id, offsets in listener.calls] == [(3, [0]), (3, [1])]
    assert [request.payload.queues for request in broker.sent(Op.ACQUIRE)][1:] == [[("t", 2), ("t", 3)]]


async def test_two_members_share_a_grown_topic(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    first, second = make(topics={"t": "*"}), make(topics={"t": "*"})

    async with first, second:
        await asyncio.sleep(1)
        broker.create("t", 6)
        await asyncio.sleep(1)
        ids = [[queue.queue_id for queue in member.assignment] for member in (first, second)]

    assert ids == [[0, 1, 2], [3, 4, 5]]


async def test_growth_that_was_missed_while_disconnected_is_told_by_the_next_join(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    listener = Recorder()
    consumer = make(listener, topics={"t": "*"}, start_from="last")

    async with consumer:
        await asyncio.sleep(1)
        broker.go_down()
        broker.create("t", 2)
        broker.send("t", 1, b"x")
        broker.come_up()
        await asyncio.sleep(1)
        assert len(consumer.assignment) == 2

    assert [(queue_id, offsets) for _, queue_id, offsets in listener.calls] == [(1, [0])]


async def test_an_answer_to_a_join_that_was_held_up_does_not_bring_a_deleted_topic_back(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(29)
        hold = broker.hold_reply(Op.JOIN)
        await hold.reached.wait()
        broker.delete("t")
        hold.let_go.set()
        await asyncio.sleep(1)
        assert consumer.assignment == []
        assert len(broker.sent(Op.ACQUIRE)) == 1


# Topics that are deleted, made again and grown on the real broker, under running consumers, on virtual time


@pytest_asyncio.fixture
async def real() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker(min_free_bytes=0) as broker:
        yield broker


@pytest_asyncio.fixture
async def admin(real: InMemoryBroker) -> AsyncIterator[Admin]:
    async with Admin(real.address) as admin:
        yield admin


class LostBodies(Recorder):
    """A recorder that keeps what it was given, and whether each call was told that its queue is lost."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__(takes_s=takes_s)
        self.got: list[tuple[int, int, bytes]] = []
        self.lost: list[bool] = []

    async def __call__(self, messages: Messages, context: ConsumeContext) -> Any:
        self.got += [(message.queue_id, message.queue_offset, message.body) for message in messages]
        answer = await super().__call__(messages, context)
        self.lost.append(bool(context.lost))
        return answer


def consumer(real: InMemoryBroker, listener: Any, **settings: Any) -> Consumer:
    settings = {"topics": {"orders": "*"}, "group": "g", "now": asyncio.get_running_loop().time, **settings}
    return Consumer(real.address, listener=listener, **settings)


async def send(real: InMemoryBroker, *bodies: bytes, queue_id: int = 0) -> None:
    async with Producer(real.address) as producer:
        for body in bodies:
            await producer.send(Message("orders", body), queue_id=queue_id)


async def committed(admin: Admin, queue_id: int = 0) -> int:
    (held,) = await admin.ranges([MessageQueue("orders", queue_id)], "g")
    return held.committed


@pytest.mark.parametrize("start_from", ["first", "last"])
async def test_a_topic_that_is_deleted_and_made_again_is_consumed_from_0(
    real: InMemoryBroker, admin: Admin, start_from: str
) -> None:
    await admin.create_topic("orders", 2)
    listener = LostBodies()

    async with consumer(real, listener, start_from=start_from) as one:
        await asyncio.sleep(1)
        await send(real, b"old 0", b"old 1", b"old 2")
        await asyncio.sleep(1)
        assert await committed(admin) == 3

        await admin.delete_topic("orders")
        await asyncio.sleep(0.1)
        assert one.assignment == []
        await asyncio.sleep(60)
        assert one.assignment == []

        await admin.create_topic("orders", 2)
        await send(real, b"new 0", b"new 1")
        await asyncio.sleep(1)
        assert len(one.assignment) == 2
        assert await committed(admin) == 2

    assert [body for _, _, body in listener.got] == [b"old 0", b"old 1", b"old 2", b"new 0", b"new 1"]
    assert [offset for _, offset, _ in listener.got] == [0, 1, 2, 0, 1]


async def test_a_call_that_runs_while_its_topic_is_replaced_counts_for_nothing_in_the_new_one(
    real: InMemoryBroker, admin: Admin
) -> None:
    await admin.create_topic("orders", 1)
    await send(real, b"old 0", b"old 1", b"old 2")
    listener = LostBodies(takes_s=3.0)

    async with consumer(real, listener):
        await asyncio.sleep(4)  # the second call runs
        await admin.delete_topic("orders")
        await admin.create_topic("orders", 1)
        await send(real, b"new 0", b"new 1")
        await asyncio.sleep(3)
        assert await committed(admin) <= 0
        await asyncio.sleep(7)
        assert await committed(admin) == 2

    assert [body for _, _, body in listener.got] == [b"old 0", b"old 1", b"new 0", b"new 1"]
    assert listener.lost == [False, True, False, False]
    assert listener.most == 1


async def test_a_topic_made_again_with_fewer_queues_is_shared_anew(real: InMemoryBroker, admin: Admin) -> None:
    await admin.create_topic("orders", 4)
    first, second = consumer(real, LostBodies()), consumer(real, LostBodies())

    async with first, second:
        await asyncio.sleep(1)
        assert sorted([*first.assignment, *second.assignment]) == [MessageQueue("orders", i) for i in range(4)]
        await admin.delete_topic("orders")
        await admin.create_topic("orders", 2)
        await asyncio.sleep(1)
        assert (len(first.assignment), len(second.assignment)) == (1, 1)


async def test_a_topic_that_went_or_was_replaced_around_a_restart_is_noticed(
    real: InMemoryBroker, admin: Admin
) -> None:
    await admin.create_topic("orders", 1)
    await send(real, b"old")
    listener = LostBodies()

    async with consumer(real, listener) as one:
        await asyncio.sleep(1)
        await admin.delete_topic("orders")
        await real.restart()
        await asyncio.sleep(3)
        assert one.assignment == []
    async with Admin(real.address) as again:
        await again.create_topic("orders", 1)
    await send(real, b"new")
    async with consumer(real, listener):
        await asyncio.sleep(1)

    assert [body for _, _, body in listener.got] == [b"old", b"new"]


@pytest.mark.parametrize("start_from", ["first", "last"])
async def test_the_queues_a_topic_grows_by_are_consumed_within_a_second_and_from_0(
    real: InMemoryBroker, admin: Admin, start_from: str
) -> None:
    await admin.create_topic("orders", 1)
    listener = LostBodies()

    async with consumer(real, listener, start_from=start_from) as one:
        await asyncio.sleep(2)
        await admin.grow_topic("orders", 3)
        grown_at = now()
        await send(real, b"x", queue_id=2)
        await asyncio.sleep(1)
        assert one.assignment == [MessageQueue("orders", i) for i in range(3)]

    assert listener.got == [(2, 0, b"x")]
    assert listener.times[0] - grown_at < 1


async def test_last_passes_no_message_of_a_queue_that_is_younger_than_the_group(
    real: InMemoryBroker, admin: Admin
) -> None:
    """A member that comes after the queue was made cannot tell by itself whether the group has seen it."""
    await admin.create_topic("orders", 1)
    await send(real, b"old")
    listener = LostBodies()

    async with consumer(real, listener, start_from="last"):
        await asyncio.sleep(1)
    await admin.grow_topic("orders", 2)
    await send(real, b"while nobody was there", queue_id=1)
    async with consumer(real, listener, start_from="last"):
        await asyncio.sleep(1)
        await admin.grow_topic("orders", 3)
        await send(real, b"right after", queue_id=2)
        async with consumer(real, listener, start_from="last"):
            await asyncio.sleep(2)

    assert sorted(listener.got) == [(1, 0, b"while nobody was there"), (2, 0, b"right after")]


async def test_a_group_begins_at_a_point_in_time(real: InMemoryBroker, admin: Admin) -> None:
    await admin.create_topic("orders", 1)
    await send(real, b"a", b"b")
    past, future = LostBodies(), LostBodies()

    async with (
        consumer(real, past, start_from="2020-01-01T00:00Z"),
        consumer(real, future, group="h", start_from="timestamp:2990-01-01T00:00Z"),
    ):
        await asyncio.sleep(1)
        await send(real, b"c")
        await asyncio.sleep(1)

    assert [body for _, _, body in past.got] == [b"a", b"b", b"c"]
    assert [body for _, _, body in future.got] == [b"c"]
