"""Queues whose owners were lost one after the other: message by message, announced, and a verdict at the limit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import ConsumeContext, ConsumeStatus, MessageQueue
from rmq.consumer.group.assignment import Suspicion
from rmq.wire.errors import Fenced, Internal, RequestTimeout
from rmq.wire.protocol.ops.core import NO_OFFSET, Op

from ..fake_broker import FakeBroker
from ..recorder import QUEUE, SUCCESS, SUSPEND, Make, Messages, Recorder, now, run_for
from .test_orderly import Harness

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


def suspect(broker: FakeBroker, abandoned: int, offset: int = 0, until: int = 3, queue: MessageQueue = QUEUE) -> None:
    """Owners were lost; the last of them had fetched up to ``until``."""
    broker.suspicions["g", queue] = (abandoned, offset, until)


async def test_one_lost_owner_changes_nothing(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    suspect(broker, 1, until=NO_OFFSET)
    listener = Recorder()

    await run_for(1, make(listener, topics={"t": "*"}, batch=4))

    assert [offsets for _, _, offsets in listener.calls] == [[0, 1, 2, 3]]
    assert broker.announced == []


async def test_after_two_lost_owners_each_message_is_announced_with_the_progress_until_all_they_had_is_done(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"x"] * 6)
    suspect(broker, 2, until=3)
    listener = Recorder(takes_s=0.1)

    await run_for(2, make(listener, topics={"t": "*"}, batch=4))

    assert [offsets for _, _, offsets in listener.calls] == [[0], [1], [2], [3, 4, 5]]
    assert broker.announced == [(0, 0), (1, 1), (2, 2)]
    assert broker.offsets["g", QUEUE] == 6


async def test_care_goes_on_when_the_suspect_is_done_until_all_that_was_fetched_with_it_is(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    suspect(broker, 0, offset=NO_OFFSET, until=2)
    listener = Recorder()

    await run_for(1, make(listener, topics={"t": "*"}, batch=4))

    assert [offsets for _, _, offsets in listener.calls] == [[0], [1], [2, 3]]


async def test_a_call_waits_for_its_announcement_to_be_answered(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    suspect(broker, 2)
    hold, listener = broker.hold_reply(Op.STARTING), Recorder()

    async with make(listener, topics={"t": "*"}, request_timeout_s=30.0):
        await hold.reached.wait()
        await asyncio.sleep(1)
        assert listener.calls == []
        hold.let_go.set()
        await asyncio.sleep(1)

    assert listener.times == [1.0]


async def test_dropped_while_it_is_announced_a_message_is_not_given_to_the_listener(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a"])
    suspect(broker, 2)
    hold, listener = broker.hold_reply(Op.STARTING), Recorder()

    consumer = make(listener, topics={"t": "*"}, request_timeout_s=30.0)
    async with consumer:
        await hold.reached.wait()
        stopping = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(0.5)
        hold.let_go.set()
        await stopping

    assert listener.calls == []
    assert broker.offsets["g", QUEUE] == 0


async def test_a_lease_that_runs_out_while_a_message_is_announced_is_proven_before_the_call(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a"])
    suspect(broker, 2)
    broker.refuse[Op.RENEW] = [RequestTimeout("x")] * 3  # at 1, 21 and 41 s
    hold, listener = broker.hold_reply(Op.STARTING), Recorder()

    async with make(listener, topics={"t": "*"}, request_timeout_s=50.0):
        await hold.reached.wait()
        await asyncio.sleep(45)  # not believed in since 30 s
        hold.let_go.set()
        await asyncio.sleep(5)

    assert broker.times(Op.RENEW) == [1.0, 21.0, 41.0, 45.01]
    # Announced once more, since that is what the broker has to know last.
    assert broker.announced == [(0, 0), (0, 0)]
    assert listener.times == [45.01]


@pytest.mark.parametrize("error", [RequestTimeout("x"), Internal("log id 7")])
async def test_without_an_announcement_nothing_is_given_to_the_listener(
    broker: FakeBroker, make: Make, error: Exception
) -> None:
    broker.create("t", bodies=[b"a"])
    suspect(broker, 2)
    broker.refuse[Op.STARTING] = [error, error]
    listener = Recorder()

    await run_for(10, make(listener, topics={"t": "*"}))

    assert broker.times(Op.STARTING) == [0.0, 3.0, 6.0]
    assert listener.times == [6.0]


async def test_a_fenced_announcement_drops_the_assignment(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    suspect(broker, 2)
    broker.refuse[Op.STARTING] = [Fenced("stale")]
    listener = Recorder()

    await run_for(2, make(listener, topics={"t": "*"}))

    assert len(broker.sent(Op.ACQUIRE)) == 2
    assert listener.offsets == [0]


async def test_one_careful_call_at_a_time_and_the_other_queues_go_on(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 3)
    for queue_id in range(3):
        broker.send("t", queue_id, *[b"x"] * 3)
    for queue_id in (0, 1):
        suspect(broker, 2, queue=MessageQueue("t", queue_id))
    listener = Recorder(takes_s=1.0)

    await run_for(10, make(listener, topics={"t": "*"}, slots=2))

    careful = [(at, queue_id) for at, queue_id, _ in listener.calls if queue_id < 2]
    assert [round(at) for at, _ in careful] == [0, 1, 2, 3, 4, 5]
    assert [queue_id for _, queue_id in careful] == [0, 1, 0, 1, 0, 1]
    # Those that wait for one another do not keep a slot from the third.
    assert [at for at, queue_id, _ in listener.calls if queue_id == 2] == [0.0, 1.0, 2.0]


async def test_a_careful_call_that_fails_is_counted_and_announced_again(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    suspect(broker, 2)
    listener = Recorder(SUSPEND, ValueError("no"))

    await run_for(10, make(listener, topics={"t": "*"}))

    assert listener.attempts == [1, 2, 3, 1]
    assert broker.announced == [(0, 0), (0, 0), (0, 0), (1, 1)]
    assert listener.times == [0.0, 1.0, 3.0, 3.0]


# The verdict


async def test_a_queue_whose_message_ended_five_owners_stops_with_its_lock_and_says_so(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t", 2, bodies=[b"a"])
    broker.send("t", 1, b"b")
    suspect(broker, 5)
    listener = Recorder()

    consumer = make(listener, topics={"t": "*"})
    async with consumer:
        await asyncio.sleep(700)
        assert consumer.stopped_queues == {QUEUE: "CRASH_LOOP: 5 owners in a row were lost while processing offset 0"}
        assert QUEUE in consumer.assignment
        assert broker.holder("g", QUEUE) is not None
        assert caplog.text.count("queue.stopped") == 3  # at once, and every 300 s

    assert listener.calls == [(0.0, 1, [0])]
    assert all(request.payload.queues[0].queue_id == 1 for request in broker.sent(Op.PULL))
    assert "reason=CRASH_LOOP" in caplog.text
    assert "advice=" in caplog.text


@pytest.mark.parametrize(("abandoned", "stops"), [(2, False), (3, True), (4, True)])
async def test_the_limit_is_a_setting(broker: FakeBroker, make: Make, abandoned: int, stops: bool) -> None:
    broker.create("t", bodies=[b"a"])
    suspect(broker, abandoned)
    listener = Recorder()

    await run_for(1, make(listener, topics={"t": "*"}, crash_limit=3))

    assert bool(listener.calls) is not stops


async def test_a_stopped_queue_goes_on_when_somebody_has_reset_it(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    suspect(broker, 5)
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)
        broker.suspicions.clear()
        broker.offsets["g", QUEUE] = 1
        broker.free("g", QUEUE)  # a reset ends the lease, and the broker says so
        await asyncio.sleep(20)

    assert listener.calls == [(5.0, 0, [1])]


async def test_with_a_limit_of_attempts_the_message_becomes_a_dead_letter_and_the_queue_goes_on(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"x"] * 5)
    broker.offsets["g", QUEUE] = 1
    suspect(broker, 5, offset=1, until=4)
    listener = Recorder()

    consumer = make(listener, topics={"t": "*"}, max_attempts=16)
    async with consumer:
        await asyncio.sleep(1)
        assert consumer.stopped_queues == {}

    assert [(offset, reason) for _, offset, reason in broker.dead] == [
        (1, "CRASH_LOOP: 5 owners in a row were lost while processing offset 1")
    ]
    assert broker.sent(Op.DEAD_LETTER)[0].payload.commit_offset == 2
    assert listener.offsets == [2, 3, 4]
    assert broker.announced == [(2, 2), (3, 3)]


async def test_what_comes_before_the_suspect_is_delivered_first(broker: FakeBroker, make: Make) -> None:
    """A listener that keeps its progress leaves messages before the one that ended the process."""
    broker.create("t", bodies=[b"x"] * 4)
    suspect(broker, 5, offset=2, until=4)
    listener = Recorder()

    await run_for(1, make(listener, topics={"t": "*"}, max_attempts=16))

    assert listener.offsets == [0, 1, 3]
    assert [offset for _, offset, _ in broker.dead] == [2]
    assert broker.offsets["g", QUEUE] == 4


async def test_ends_of_processes_count_as_deliveries(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    broker.runs["g", QUEUE] = {0: 3}
    suspect(broker, 4)
    listener = Recorder()

    await run_for(1, make(listener, topics={"t": "*"}, max_attempts=3))

    assert listener.offsets == [1]
    assert [offset for _, offset, _ in broker.dead] == [0]


async def test_a_verdict_the_broker_does_not_carry_out_keeps_the_queue_blocked(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    broker.refuse[Op.DEAD_LETTER] = [Internal("log id 7")]
    suspect(broker, 5)
    listener = Recorder()

    async with make(listener, topics={"t": "*"}, max_attempts=3):
        await asyncio.sleep(0.5)
        assert listener.calls == []
        await asyncio.sleep(5)

    assert broker.times(Op.DEAD_LETTER) == [0.0, 1.0]
    assert listener.offsets == [1]


async def test_a_listener_that_keeps_its_progress_is_announced_with_that(broker: FakeBroker, make: Make) -> None:
    async def listener(messages: Messages, context: ConsumeContext) -> Any:
        context.auto_commit = False
        return SUCCESS if messages[0].queue_offset < 2 else ConsumeStatus.COMMIT

    broker.create("t", bodies=[b"x"] * 4)
    suspect(broker, 2, until=4)

    await run_for(1, make(listener, topics={"t": "*"}))

    assert broker.announced == [(0, 0), (1, 0), (2, 0), (3, 3)]
    assert now() >= 1.0


class SlowBroker(Harness):
    """A scheduler whose every request takes a while."""

    async def starting(self, *args: Any) -> None:
        await asyncio.sleep(0.5)

    async def dead_letter(self, *args: Any, **settings: Any) -> None:
        await asyncio.sleep(0.5)

    async def attempt(self, *args: Any) -> None:
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("steps", range(1, 16))
@pytest.mark.parametrize("abandoned", [2, 5])
async def test_cancelled_at_any_step_a_careful_owner_leaves_nothing_behind(steps: int, abandoned: int) -> None:
    listener = Recorder(SUSPEND, takes_s=0.5)
    harness = SlowBroker(listener, slots=1, max_attempts=2)
    assignment = harness.assignment(3)
    assignment.suspicion = Suspicion(abandoned, 0, 3)
    harness.scheduler.start(assignment)
    await asyncio.sleep(steps * 0.25)

    assert assignment.owner is not None
    assignment.owner.cancel()
    await asyncio.wait([assignment.owner])

    assert not assignment.guard.busy
    assert not assignment.guard.recording
    assert listener.running == 0
    again = harness.assignment(1)
    again.suspicion = Suspicion(2, 0, 1)
    harness.scheduler.start(again)
    await asyncio.sleep(5)
    assert again.cache.messages == 0  # it got the lock of careful calls, the slot and the gate
    await harness.end(assignment, again)
