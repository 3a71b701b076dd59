"""
Who has which queue, and how it changes hands: dropped before locked, the running call first, nothing lost.

Drop, keep, add: what is held compared with what should be, and queues that nobody pulls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import Consumer
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import Assignment, LeaseBelief, LogGap, Stopped
from rmq.consumer.group.rebalancer import compare, is_pull_expired
from rmq.wire.errors import ConnectionLost, GroupMismatch, Internal, MessagesLost, NotAMember, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op, Push

from ..fake_broker import FakeBroker
from ..recorder import SUSPEND, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

Make = Callable[..., Consumer]
QUEUE = MessageQueue("t", 0)


def ids(consumer: Consumer) -> list[int]:
    return [queue.queue_id for queue in consumer.assignment]


async def test_all_locks_are_asked_for_in_one_request(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 5)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(0.1)
        assert ids(consumer) == [0, 1, 2, 3, 4]

    assert len(broker.sent(Op.ACQUIRE)) == 1


async def test_more_locks_than_a_request_may_have_are_asked_for_in_several(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 1000)
    broker.create("u", 100)
    consumer = make(topics={"t": "*", "u": "*"})

    async with consumer:
        await asyncio.sleep(0.1)
        assert len(ids(consumer)) == 1100

    assert [len(request.payload.queues) for request in broker.sent(Op.ACQUIRE)] == [1024, 76]
    assert [len(request.payload.leases) for request in broker.sent(Op.LEAVE)] == [1024]


async def test_locks_behind_a_request_that_failed_are_asked_for_with_it_again(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 1000)
    broker.create("u", 100)
    broker.refuse[Op.ACQUIRE] = [RequestTimeout("no answer")]
    consumer = make(topics={"t": "*", "u": "*"})

    async with consumer:
        await asyncio.sleep(4)
        assert len(ids(consumer)) == 1100


async def test_two_members_share_and_the_one_that_stays_takes_all(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 4)
    first, second = make(topics={"t": "*"}), make(topics={"t": "*"})

    async with first:
        await asyncio.sleep(1)
        async with second:
            await asyncio.sleep(1)
            assert (ids(first), ids(second)) == ([0, 1], [2, 3])
        await asyncio.sleep(0.2)
        assert ids(first) == [0, 1, 2, 3]


async def test_what_is_dropped_is_unlocked_before_others_are_asked_for(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 4)
    broker.set_members("g", "a", "z")

    async with make(topics={"t": "*"}):  # member-0 is the second of three: queue 2
        await asyncio.sleep(1)
        broker.set_members("g", "a")  # now the second of two: queues 2 and 3
        await asyncio.sleep(1)
        broker.set_members("g", "z")  # now the first: queues 0 and 1
        await asyncio.sleep(1)

    moves = [request for request in broker.requests if request.op in (Op.ACQUIRE, Op.RELEASE)]
    assert [request.op for request in moves] == [Op.ACQUIRE, Op.ACQUIRE, Op.RELEASE, Op.RELEASE, Op.ACQUIRE]
    assert [queue.queue_id for queue in moves[-1].payload.queues] == [0, 1]


async def test_notices_are_gathered_for_100_ms(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 4)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        for members in (["a"], ["a", "b"], ["a", "b", "c"], ["z"]):
            broker.set_members("g", *members)
            await asyncio.sleep(0.02)
        assert broker.sent(Op.RELEASE) == []
        await asyncio.sleep(0.05)
        assert ids(consumer) == [0, 1]

    # Only the last list counted: nothing was dropped on the way and asked for again.
    assert len(broker.sent(Op.ACQUIRE)) == 1


async def test_a_list_without_ourselves_is_ignored(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 4)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        broker.connections[0].push(1, ["g", ["a", "b"]])  # type: ignore[arg-type]
        broker.connections[0].push(1, ["other", []])  # type: ignore[arg-type]
        await asyncio.sleep(25)
        assert ids(consumer) == [0, 1, 2, 3]


async def test_a_list_pushed_while_joining_is_not_overwritten_by_the_older_answer(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 4)
    hold = broker.hold_reply(Op.JOIN)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await hold.reached.wait()
        broker.set_members("g", "a")
        hold.let_go.set()
        await asyncio.sleep(1)
        assert ids(consumer) == [2, 3]


async def test_a_list_from_before_a_stop_does_not_overwrite_the_newer_answer(broker: FakeBroker, make: Make) -> None:
    """What was pushed while a process was stopped is read after it has asked to join again, and before the answer."""
    broker.create("t", 4)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        broker.set_members("g", "a", "b", "c")
        hold = broker.hold_reply(Op.JOIN)
        consumer.subscribe("t", "*")
        await hold.reached.wait()
        me = broker.connections[0].member
        broker.connections[0].push(Push.MEMBERS_CHANGED, ["g", ["a", me], broker.members_version - 1])
        hold.let_go.set()
        await asyncio.sleep(1)
        assert ids(consumer) == [3]


async def test_the_group_hears_of_us_every_30_s(broker: FakeBroker, make: Make) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(65)

    assert broker.times(Op.JOIN) == [0.0, 0.0, 30.0, 60.0]  # the second as a queue came to us


async def test_a_refused_lock_is_tried_again_every_3_s_and_at_once_when_it_is_free(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.give("g", QUEUE, "other")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(7)
        assert broker.times(Op.ACQUIRE) == [0.0, 3.0, 6.0]
        assert broker.sent(Op.PULL) == []
        broker.free("g", QUEUE)
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert consumer.assignment == [QUEUE]
        assert broker.times(Op.ACQUIRE)[-1] == 7.0
        await asyncio.sleep(10)

    assert len(broker.sent(Op.ACQUIRE)) == 4


async def test_a_lock_that_becomes_free_before_its_refusal_is_read_is_asked_for_again_at_once(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.give("g", QUEUE, "other")
    hold = broker.hold_reply(Op.ACQUIRE)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await hold.reached.wait()  # refused, and the answer is on its way
        broker.free("g", QUEUE)
        hold.let_go.set()
        await asyncio.sleep(0.1)
        assert consumer.assignment == [QUEUE]

    assert broker.times(Op.ACQUIRE) == [0.0, 0.0]


async def test_a_free_lease_that_is_not_ours_to_have_is_left_alone(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.set_members("g", "a")
    broker.give("g", QUEUE, "a")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.free("g", QUEUE)
        await asyncio.sleep(1)

    assert broker.sent(Op.ACQUIRE) == []


async def test_the_running_call_ends_before_its_queue_is_released_with_its_progress(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b", b"c")
    listener = Recorder(takes_s=10.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(12)
        broker.set_members("g", "a")
        await asyncio.sleep(7)
        assert broker.holder("g", QUEUE) == "member-0"
        await asyncio.sleep(2)
        assert broker.holder("g", QUEUE) is None

    assert listener.offsets == [0, 1]
    (release,) = broker.sent(Op.RELEASE)
    assert (round(release.at, 6), release.payload.leases[0].queue_offset) == (20.0, 2)
    assert broker.offsets["g", QUEUE] == 2


async def test_a_failed_call_of_a_dropped_queue_is_counted_before_the_release(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    listener, hold = Recorder(SUSPEND, takes_s=1.0), broker.hold_reply(Op.ATTEMPT)

    async with make(listener, topics={"t": "*"}):
        await hold.reached.wait()
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        assert broker.sent(Op.RELEASE) == []
        hold.let_go.set()
        await asyncio.sleep(0.1)
        assert len(broker.sent(Op.RELEASE)) == 1

    assert broker.attempts["g", QUEUE] == (0, 1)


async def test_a_queue_that_comes_back_during_its_last_call_is_taken_again_right_after(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a", b"b")
    listener = Recorder(takes_s=10.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(2)
        broker.set_members("g", "a")
        await asyncio.sleep(2)
        broker.set_members("g")
        await asyncio.sleep(20)

    assert broker.times(Op.RELEASE) == [10.0]
    assert broker.times(Op.ACQUIRE) == [0.0, 10.0]
    assert listener.times == [0.0, 10.0]
    assert listener.offsets == [0, 1]


async def test_a_release_of_a_queue_that_was_lost_meanwhile_changes_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")

    async with make(Recorder(takes_s=10.0), topics={"t": "*"}):
        await asyncio.sleep(2)
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        broker.leases.clear()
        broker.give("g", QUEUE, "a")
        await asyncio.sleep(20)  # the call ends at 10 s, before the renewal at 21 s would tell

    assert len(broker.sent(Op.RELEASE)) == 1
    assert broker.holder("g", QUEUE) == "a"
    assert broker.offsets["g", QUEUE] == 0


async def test_a_release_without_an_answer_is_sent_again(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.refuse[Op.RELEASE] = [RequestTimeout("x"), ConnectionLost("x")]

    async with make(topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        assert broker.holder("g", QUEUE) is None

    assert len(broker.sent(Op.RELEASE)) == 3


async def test_locks_whose_answer_was_lost_are_asked_for_again(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.ACQUIRE)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await hold.reached.wait()
        await asyncio.sleep(4)
        assert consumer.assignment == []
        await asyncio.sleep(3)
        assert consumer.assignment == [QUEUE]
        assert broker.leases["g", QUEUE].epoch == 2
        hold.let_go.set()


async def test_a_lock_whose_answer_was_lost_is_given_back_if_it_is_not_ours_any_more(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.ACQUIRE)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await hold.reached.wait()
        broker.set_members("g", "a")
        await asyncio.sleep(10)
        assert consumer.assignment == []
        assert broker.holder("g", QUEUE) is None
        hold.let_go.set()

    assert broker.sent(Op.PULL) == []


@pytest.mark.parametrize("error", [NotAMember("join first"), Internal("log id")])
async def test_a_refused_request_for_locks_is_made_again(broker: FakeBroker, make: Make, error: Exception) -> None:
    broker.create("t")
    broker.refuse[Op.ACQUIRE] = [error]
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(2)
        assert consumer.assignment == [QUEUE]

    assert len(broker.sent(Op.JOIN)) == (3 if isinstance(error, NotAMember) else 2)


@pytest.mark.parametrize("error", [Internal("log id"), RequestTimeout("x")])
async def test_a_join_that_fails_is_made_again_within_a_second(
    broker: FakeBroker, make: Make, error: Exception
) -> None:
    broker.create("t")
    broker.refuse[Op.JOIN] = [error]
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1.1)
        assert consumer.assignment == [QUEUE]


async def test_another_mode_of_the_group_ends_the_consumer_with_the_brokers_sentence(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.refuse[Op.JOIN] = [GroupMismatch("group 'g' is concurrent, this member asked for ordered")]
    consumer = make(topics={"t": "*"})

    with pytest.raises(GroupMismatch, match="is concurrent"):
        await consumer.run()


async def test_a_topic_that_is_made_later_is_consumed_at_once(broker: FakeBroker, make: Make) -> None:
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(33)
        broker.create("t")
        broker.send("t", 0, b"a")
        await asyncio.sleep(1)

    assert listener.times == [33.0]


async def test_a_topic_that_grows_gives_its_new_queues(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 1)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        broker.create("t", 3)
        await asyncio.sleep(1)
        assert ids(consumer) == [0, 1, 2]


async def test_unsubscribing_hands_the_queues_over(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.create("u")
    consumer = make(topics={"t": "*", "u": "*"})

    async with consumer:
        await asyncio.sleep(1)
        consumer.unsubscribe("u")
        await asyncio.sleep(0.1)
        assert consumer.assignment == [QUEUE]
        assert broker.holder("g", MessageQueue("u", 0)) is None


async def test_every_20_s_what_is_missing_is_looked_for(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.give("g", QUEUE, "other")
    broker.expiry_s = 1000.0

    async with make(topics={"t": "*"}, lock_retry_s=100.0, heartbeat_s=100.0):
        await asyncio.sleep(41)

    assert broker.times(Op.ACQUIRE) == [0.0, 20.0, 40.0]


async def test_hand_overs_of_several_queues_wait_for_their_calls_side_by_side(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    broker.send("t", 0, b"a")
    broker.send("t", 1, b"a")
    took: dict[int, float] = {0: 5.0, 1: 9.0}

    async def listener(messages: Any, context: Any) -> Any:
        await asyncio.sleep(took[context.queue.queue_id])
        return SUSPEND

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.set_members("g", "a", "b")
        await asyncio.sleep(10)

    assert broker.times(Op.RELEASE) == [5.0, 9.0]


QUEUES = [MessageQueue("t", i) for i in range(4)]


def held(queue: MessageQueue, **marks: Any) -> Assignment:
    assignment = Assignment(LeaseBelief(queue, 1, 0.0), ProcessQueue(0), on_lost=lambda assignment, reason: None)
    assignment.pulled_at = 0.0
    for name, value in marks.items():
        setattr(assignment, name, value)
    return assignment


def test_what_is_not_ours_leaves_what_is_stays_and_what_we_lack_is_missing() -> None:
    assignments = {queue: held(queue) for queue in QUEUES[:2]}

    result = compare(assignments, {QUEUES[1], QUEUES[3], QUEUES[2]}, now=1.0, pull_expiry_s=120.0)

    assert result == ([assignments[QUEUES[0]]], [], [QUEUES[2], QUEUES[3]])


def test_what_was_dropped_before_is_neither_dropped_again_nor_missing_until_it_is_gone() -> None:
    assignments = {QUEUES[0]: held(QUEUES[0], dropped=True), QUEUES[1]: held(QUEUES[1], dropped=True)}

    assert compare(assignments, {QUEUES[0]}, now=500.0, pull_expiry_s=120.0) == ([], [], [])


@pytest.mark.parametrize(("now", "expired"), [(119.999, False), (120.0, False), (120.001, True)])
def test_a_queue_expires_when_it_was_not_pulled_for_longer_than_120_s(now: float, expired: bool) -> None:
    """RocketMQ's PULL_MAX_IDLE_TIME, which is strict."""
    assert is_pull_expired(held(QUEUES[0]), now=now, pull_expiry_s=120.0) is expired


def test_an_expired_queue_that_is_not_ours_leaves_and_is_not_taken_anew() -> None:
    assignments = {QUEUES[0]: held(QUEUES[0]), QUEUES[1]: held(QUEUES[1])}

    result = compare(assignments, {QUEUES[1]}, now=121.0, pull_expiry_s=120.0)

    assert (result.leaving, result.expired) == ([assignments[QUEUES[0]]], [assignments[QUEUES[1]]])


@pytest.mark.parametrize(
    "marks",
    [
        {"paused": True},
        {"crash_loop": "a message ended 5 processes"},
        {"stopped": Stopped(LogGap(MessagesLost.code, 0, 1))},
        {"pulled_at": float("-inf")},
    ],
)
def test_a_queue_that_stands_still_for_a_known_reason_never_expires(marks: dict[str, Any]) -> None:
    assert not is_pull_expired(held(QUEUES[0], **marks), now=1000.0, pull_expiry_s=120.0)
