"""
Who has which queue, and how it changes hands: dropped before locked, the running call first, nothing lost.

Drop, keep, add: what is held compared with what should be, and queues that nobody pulls.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import Consumer
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.allocation import Strategy, average
from rmq.consumer.group.assignment import Assignment, LeaseBelief, LogGap, Stopped
from rmq.consumer.group.rebalancer import is_pull_expired, to_drop
from rmq.wire.errors import ConnectionLost, GroupMismatch, Internal, MessagesLost, NotAMember, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op, Push

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, SUSPEND, Make, Recorder, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


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

    await run_for(65, make(topics={"t": "*"}))

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
    broker.create("t", bodies=[b"a", b"b", b"c"])
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
    broker.create("t", bodies=[b"a"])
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
    broker.create("t", bodies=[b"a", b"b"])
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
    broker.create("t", bodies=[b"a"])

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
        broker.create("t", bodies=[b"a"])
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

    await run_for(41, make(topics={"t": "*"}, lock_retry_s=100.0, heartbeat_s=100.0))

    assert broker.times(Op.ACQUIRE) == [0.0, 20.0, 40.0]


async def test_hand_overs_of_several_queues_wait_for_their_calls_side_by_side(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2, bodies=[b"a"])
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


def test_what_is_not_ours_leaves_and_what_is_ours_stays() -> None:
    assignments = {queue: held(queue) for queue in QUEUES[:2]}

    result = to_drop(assignments.values(), {QUEUES[1], QUEUES[3], QUEUES[2]}, now=1.0, pull_expiry_s=120.0)

    assert result == ([assignments[QUEUES[0]]], [])


def test_what_was_dropped_before_is_not_dropped_again() -> None:
    assignments = {QUEUES[0]: held(QUEUES[0], dropped=True), QUEUES[1]: held(QUEUES[1], dropped=True)}

    assert to_drop(assignments.values(), {QUEUES[0]}, now=500.0, pull_expiry_s=120.0) == ([], [])


@pytest.mark.parametrize(("now", "expired"), [(119.999, False), (120.0, False), (120.001, True)])
def test_a_queue_expires_when_it_was_not_pulled_for_longer_than_120_s(now: float, expired: bool) -> None:
    """RocketMQ's PULL_MAX_IDLE_TIME, which is strict."""
    assert is_pull_expired(held(QUEUES[0]), now=now, pull_expiry_s=120.0) is expired


def test_an_expired_queue_that_is_not_ours_leaves_and_is_not_taken_anew() -> None:
    assignments = {QUEUES[0]: held(QUEUES[0]), QUEUES[1]: held(QUEUES[1])}

    result = to_drop(assignments.values(), {QUEUES[1]}, now=121.0, pull_expiry_s=120.0)

    assert result == ([assignments[QUEUES[0]]], [assignments[QUEUES[1]]])


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


# Rebalance under trouble: late answers, expired pulls, failing strategies, words that come during a pass


def current(consumer: Any, queue: MessageQueue = QUEUE) -> Any:
    return consumer._runtime.assignments[queue]


# Locks
async def test_a_request_for_locks_has_1_s_and_one_that_is_answered_later_loses_no_grant(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a"])
    hold, listener = broker.hold_reply(Op.ACQUIRE), Recorder()
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await hold.reached.wait()  # granted, and the answer is on its way
        await asyncio.sleep(1.5)
        hold.let_go.set()  # too late: nobody waits for it any more
        await asyncio.sleep(2.4)
        assert consumer.assignment == []
        await asyncio.sleep(0.2)
        assert consumer.assignment == [QUEUE]

    assert broker.times(Op.ACQUIRE) == [0.0, 4.0]
    assert listener.offsets == [0]


async def test_a_broker_that_is_always_late_gets_more_time_until_it_is_heard(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async def late() -> None:
        while True:
            hold = broker.hold_reply(Op.ACQUIRE)
            await hold.reached.wait()
            asyncio.get_running_loop().call_later(1.5, hold.let_go.set)

    slow = asyncio.ensure_future(late())
    async with consumer:
        await asyncio.sleep(6)
        assert consumer.assignment == [QUEUE]
        slow.cancel()

    assert broker.times(Op.ACQUIRE) == [0.0, 4.0]


async def test_a_renewal_has_1_s_too(broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.RENEW)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(1.9)
        assert "lease.renewal_failed" not in caplog.text
        await asyncio.sleep(0.2)
        assert "lease.renewal_failed" in caplog.text
        hold.let_go.set()


async def test_a_refused_queue_is_neither_held_nor_pulled_and_does_not_block_the_others(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", 3)
    broker.give("g", MessageQueue("t", 1), "other")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        assert ids(consumer) == [0, 2]
        assert {request.payload.queues[0].queue_id for request in broker.sent(Op.PULL)} == {0, 2}


async def test_a_new_queue_is_locked_as_of_when_it_was_asked_for(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    hold = broker.hold_request(Op.ACQUIRE)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(0.5)
        hold.let_go.set()
        await asyncio.sleep(0.1)
        assert current(consumer).lease.lock_sent_at == 0.0


# What makes a pass
async def test_a_word_that_comes_during_a_pass_makes_one_more(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    hold = broker.hold_reply(Op.ACQUIRE)
    consumer = make(topics={"t": "*"}, rebalance_every_s=1000.0)

    async with consumer:
        await hold.reached.wait()
        broker.set_members("g", "a")  # the pass under way does not know of it
        hold.let_go.set()
        await asyncio.sleep(1)
        assert ids(consumer) == [1]


async def test_passes_never_overlap_so_that_a_queue_has_one_assignment_and_one_puller(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    hold = broker.hold_reply(Op.ACQUIRE)
    consumer = make(topics={"t": "*"}, lock_timeout_s=50.0)

    async with consumer:
        await hold.reached.wait()
        for _ in range(5):
            broker.set_members("g")
            broker.create("t")
            consumer.subscribe("t")
            await asyncio.sleep(5)
        assert len(broker.sent(Op.ACQUIRE)) == 1
        hold.let_go.set()
        await asyncio.sleep(1)
        assert broker.leases["g", QUEUE].epoch == 1
        assert len(broker.sent(Op.PULL)) == 1


async def test_after_a_change_of_its_queues_the_group_hears_of_a_member_at_once(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(5)
        broker.set_members("g", "a")
        await asyncio.sleep(5)
        broker.set_members("g", "a")  # nothing changes by it
        await asyncio.sleep(5)

    assert broker.times(Op.JOIN) == [0.0, 0.0, 5.1]


async def test_a_list_of_members_in_the_answer_to_that_makes_a_pass(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    consumer = make(topics={"t": "*"}, rebalance_every_s=1000.0)

    async with consumer:
        hold = broker.hold_request(Op.JOIN)
        await hold.reached.wait()  # the first one
        second = broker.hold_request(Op.JOIN)
        hold.let_go.set()
        await second.reached.wait()
        broker.members["g"][b"a"] = "a"  # and nobody is told
        second.let_go.set()
        await asyncio.sleep(0.1)
        assert ids(consumer) == [1]


# Queues that nobody pulls
@pytest.mark.parametrize(("ago", "epochs"), [(120.0, 1), (120.001, 2)])
async def test_a_queue_that_was_not_pulled_for_120_s_is_given_up_and_taken_anew_in_the_same_pass(
    broker: FakeBroker, make: Make, ago: float, epochs: int, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ: such a queue is dropped and re-created in one pass."""
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        current(consumer).pulled_at = 1.1 - ago
        broker.set_members("g")
        await asyncio.sleep(0.5)
        assert consumer.assignment == [QUEUE]
        assert broker.leases["g", QUEUE].epoch == epochs

    assert broker.times(Op.ACQUIRE) == [0.0, 1.1][:epochs]
    assert ("queue.pull_expired" in caplog.text) is (epochs == 2)


async def test_an_expired_queue_whose_call_runs_is_taken_anew_when_that_has_ended(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    listener = Recorder(takes_s=10.0)
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        current(consumer).pulled_at = -200.0
        broker.set_members("g")
        await asyncio.sleep(15)

    assert broker.times(Op.RELEASE) == [10.0]
    assert listener.calls == [(0.0, 0, [0]), (10.0, 0, [1])]


# Strategies
async def test_a_topic_whose_strategy_raises_stops_no_other_and_keeps_its_queues(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("bad", 2)
    broker.create("good", 2)
    fails: list[str] = []

    def moody(queues: Any, members: Any, member: Any) -> Any:
        if queues[0].topic in fails:
            raise RuntimeError("not today")
        return average(queues, members, member)

    consumer = make(topics={"bad": "*", "good": "*"}, strategy=Strategy("moody", moody))
    async with consumer:
        await asyncio.sleep(1)
        fails.append("bad")
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        assert consumer.assignment == [MessageQueue("bad", 0), MessageQueue("bad", 1), MessageQueue("good", 1)]
        fails.clear()
        await asyncio.sleep(20)
        assert consumer.assignment == [MessageQueue("bad", 1), MessageQueue("good", 1)]

    assert caplog.text.count("rebalance.failed") == 1
    assert {request.payload.strategy for request in broker.sent(Op.JOIN)} == {"moody"}


@pytest.mark.parametrize(
    ("strategy", "shares"),
    [
        ("average", [[0, 1], [2, 3]]),
        ("circle", [[0, 2], [1, 3]]),
        ("consistent_hash", None),
        ("machine_room:r1", [[0], [1]]),
        ("machine_room_nearby", [[0, 1], [2, 3]]),
    ],
)
async def test_two_members_share_by_the_configured_strategy(
    broker: FakeBroker, make: Make, strategy: str, shares: list[list[int]] | None
) -> None:
    for queue_id in range(4):
        broker.brokers[MessageQueue("t", queue_id)] = f"r{1 + queue_id // 2}@b"
    broker.create("t", 4)
    one, two = (make(topics={"t": "*"}, strategy=strategy, zone=zone) for zone in ("r1", "r2"))

    async with one, two:
        await asyncio.sleep(1)
        if shares is None:
            assert sorted(ids(one) + ids(two)) == [0, 1, 2, 3]
        else:
            assert [ids(one), ids(two)] == shares

    assert {request.payload.strategy for request in broker.sent(Op.JOIN)} == {strategy}


# Away and back
async def test_a_queue_that_bounces_away_and_back_keeps_its_new_lock(broker: FakeBroker, make: Make) -> None:
    """RocketMQ unlocks 20 s after the queue left, whoever has it by then."""
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        broker.set_members("g")
        await asyncio.sleep(60)
        assert broker.leases["g", QUEUE].epoch == 2

    assert len(broker.sent(Op.RELEASE)) == 1


async def test_a_stale_offset_is_never_used_after_a_bounce(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 10)
    listener = Recorder()
    consumer = make(listener, topics={"t": "*"}, batch=4)

    async with consumer:
        await asyncio.sleep(1)
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        broker.send("t", 0, *[b"y"] * 5)
        broker.offsets["g", QUEUE] = 15  # the member in between has done them
        broker.set_members("g")
        await asyncio.sleep(1)

    assert listener.offsets == list(range(10))


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_failed_read_of_the_progress_is_repeated_and_never_guessed(
    broker: FakeBroker, make: Make, attempts: int
) -> None:
    broker.create("t", bodies=[b"x"] * 10)
    broker.offsets["g", QUEUE] = 7
    broker.refuse[Op.ACQUIRE] = [RequestTimeout("x")] * attempts
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(3.0 * attempts - 0.1)
        assert broker.sent(Op.PULL) == []
        await asyncio.sleep(1)

    assert listener.offsets == [7, 8, 9]


# Paused
async def test_a_pause_moves_no_queue_and_a_paused_member_still_hands_over_what_falls_to_others(
    broker: FakeBroker, make: Make
) -> None:
    """RocketMQ's paused consumer does not rebalance: its peers would wait for their share until it is resumed."""
    broker.create("t", 2)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        for assignment in consumer._runtime.assignments.values():  # type: ignore[union-attr]
            assignment.paused, assignment.pulled_at = True, -1000.0
        await asyncio.sleep(100)
        assert ids(consumer) == [0, 1]
        assert broker.sent(Op.RELEASE) == []
        broker.set_members("g", "a")
        await asyncio.sleep(1)
        assert ids(consumer) == [1]
