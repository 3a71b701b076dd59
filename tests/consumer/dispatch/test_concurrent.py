"""
Many calls at a time: what is done, what is given back, what is tried again here, and whose turn it is.

Queues that go while their messages are with the listener, or on their way back: each order of events by itself.

What is known of a queue with many calls: since when the oldest runs, and when something is tried again.

Calls that take too long: messages at the head are given up, and what is said of them later counts for nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rmq.consumer import CallInfo, ConcurrentContext, Consumer, ConsumeStatus, ResultType
from rmq.consumer.dispatch.concurrent import ActiveQueue, Call, Calls
from rmq.consumer.fetch.concurrent_queue import Chunk, ConcurrentQueue
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import Assignment, LeaseBelief
from rmq.consumer.introspection import TopicMeter
from rmq.wire.errors import ConnectionLost, Internal, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..fetch.test_process_queue import made_plain
from ..recorder import COMMIT, QUEUE, ROLLBACK, SUCCESS, SUSPEND, Make, Messages, Recorder, now

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

RETRY = ConsumeStatus.RETRY


@pytest.fixture
def start_plain(make: Make) -> Make:
    """Makes concurrent consumers of ``t``."""
    return partial(make, orderly=False, topics={"t": "*"})


def fill(broker: FakeBroker, *counts: int) -> None:
    """A topic with so many messages in each of its queues."""
    broker.create("t", len(counts))
    for queue_id, count in enumerate(counts):
        if count:
            broker.send("t", queue_id, *[b"x"] * count)


def with_context(status: Any, **values: Any) -> Callable[[Any], Any]:
    """An answer that sets fields of the context."""

    def answer(context: Any) -> Any:
        for name, value in values.items():
            setattr(context, name, value)
        return status

    return answer


def given_back_plain(broker: FakeBroker) -> list[tuple[int, int, int]]:
    """Offset, attempt and level of what was given back."""
    return [(offset, attempt, level) for _, offset, attempt, level in broker.given_back]


# Calls
async def test_ten_messages_with_a_batch_of_four_are_three_calls_at_the_same_time(
    broker: FakeBroker, start_plain: Make
) -> None:
    fill(broker, 10)
    listener = Recorder(takes_s=1.0)

    async with start_plain(listener, batch=4):
        await asyncio.sleep(2)

    assert [offsets for _, _, offsets in listener.calls] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (listener.most, set(listener.times)) == (3, {0.0})
    assert broker.offsets["g", QUEUE] == 10


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (7, 7), (20, 20)])
async def test_no_more_calls_run_than_there_are_slots(
    broker: FakeBroker, start_plain: Make, slots: int, most: int
) -> None:
    fill(broker, 50)
    listener = Recorder(takes_s=0.1)

    async with start_plain(listener, slots=slots):
        await asyncio.sleep(10)

    assert (listener.most, sorted(listener.offsets)) == (most, list(range(50)))


async def test_queues_have_their_calls_in_turn(broker: FakeBroker, start_plain: Make) -> None:
    fill(broker, 6, 6, 0, 6)
    listener = Recorder(takes_s=1.0)

    async with start_plain(listener, slots=3):
        await asyncio.sleep(10)

    assert [sorted(queue for at, queue, _ in listener.calls if at == second) for second in range(1, 6)] == [
        [0, 1, 3]
    ] * 5


async def test_a_slow_message_keeps_the_progress_and_nothing_else(broker: FakeBroker, start_plain: Make) -> None:
    fill(broker, 10)
    slow = asyncio.Event()

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        if messages[0].queue_offset == 2:
            await slow.wait()
        return SUCCESS

    async with start_plain(listener) as consumer:
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 2
        (info,) = consumer.running_info()["queues"]
        assert (info["head_offset"], info["in_flight"], info["cached_messages"]) == (2, 1, 1)
        assert info["called_for_s"] == pytest.approx(1.0, abs=0.01)
        slow.set()
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 10


async def test_a_plain_function_runs_in_threads_beside_each_other(broker: FakeBroker, start_plain: Make) -> None:
    fill(broker, 4)
    together, seen = threading.Barrier(4, timeout=10), []

    def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        together.wait()
        seen.append(messages[0].queue_offset)
        return SUCCESS

    async with start_plain(listener, slots=4):
        await asyncio.sleep(1)

    assert sorted(seen) == [0, 1, 2, 3]
    assert broker.offsets["g", QUEUE] == 4


async def test_a_listener_that_never_suspends_gives_the_loop_back(broker: FakeBroker, start_plain: Make) -> None:
    fill(broker, 500, 500)
    loop: Any = asyncio.get_running_loop()
    ticks = 0
    listener_calls = 0

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        nonlocal listener_calls
        listener_calls += 1
        loop.now += 0.0005
        return SUCCESS

    async def tick() -> None:
        nonlocal ticks
        while listener_calls < 1000:
            ticks += 1
            await asyncio.sleep(0)

    async with start_plain(listener):
        while not listener_calls:
            await asyncio.sleep(0)
        await tick()

    assert ticks >= 150  # half a millisecond a call: the loop has its turn every fifth call or so


# Results
@pytest.mark.parametrize("answer", [RETRY, SUSPEND, ROLLBACK, None, 7, ValueError("no")])
async def test_whatever_is_no_success_gives_the_whole_chunk_back(
    broker: FakeBroker, start_plain: Make, answer: Any
) -> None:
    """RocketMQ: null, an exception and RECONSUME_LATER are the same."""
    fill(broker, 3)
    listener = Recorder(answer)

    async with start_plain(listener, batch=3) as consumer:
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 3
        statistics = consumer.statistics()["t@g"]

    assert given_back_plain(broker) == [(0, 1, 3), (1, 1, 3), (2, 1, 3)]
    assert len(listener.calls) == 1
    assert (statistics.consumed_failed.total, statistics.consumed_ok.total) == (3, 0)
    kinds = {None: ResultType.RETURNED_NULL}.get(
        answer, ResultType.EXCEPTION if isinstance(answer, ValueError) else ResultType.FAILED
    )
    assert {kind: count for kind, count in statistics.results.items() if count} == {kinds: 1}


async def test_a_commit_is_a_success(broker: FakeBroker, start_plain: Make, caplog: pytest.LogCaptureFixture) -> None:
    fill(broker, 2)

    async with start_plain(Recorder(COMMIT, COMMIT)):
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 2

    assert given_back_plain(broker) == []
    assert caplog.text.count("listener.returned_ordered_status") == 1


@pytest.mark.parametrize(
    ("ack_index", "back"),
    [(1, [2, 3]), (3, []), (99, []), (0, [1, 2, 3]), (-1, [0, 1, 2, 3]), (-7, [0, 1, 2, 3]), ("1", [0, 1, 2, 3])],
)
async def test_messages_behind_the_ack_index_are_given_back(
    broker: FakeBroker, start_plain: Make, ack_index: Any, back: list[int]
) -> None:
    fill(broker, 4)

    async with start_plain(Recorder(with_context(SUCCESS, ack_index=ack_index)), batch=4) as consumer:
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 4
        statistics = consumer.statistics()["t@g"]

    assert [offset for offset, _, _ in given_back_plain(broker)] == back
    assert (statistics.consumed_ok.total, statistics.consumed_failed.total) == (4 - len(back), len(back))


@pytest.mark.parametrize(("asked", "level"), [(0, 3), (7, 7), (-1, -1), (-5, -1), ("3", 3), (True, 3)])
async def test_the_level_of_a_failed_message_is_the_listeners_or_goes_by_its_attempts(
    broker: FakeBroker, start_plain: Make, asked: Any, level: int
) -> None:
    fill(broker, 1)

    async with start_plain(Recorder(with_context(RETRY, delay_level=asked))):
        await asyncio.sleep(1)

    assert given_back_plain(broker) == [(0, 1, level)]


async def test_an_ordered_context_has_no_ack_index_and_a_concurrent_one_no_auto_commit(
    broker: FakeBroker, make: Make
) -> None:
    fill(broker, 1)
    seen: list[set[str]] = []

    async def listener(messages: Messages, context: Any) -> ConsumeStatus:
        names = {"ack_index", "delay_level", "auto_commit", "suspend_s", "leave", "queue", "epoch", "lost"}
        seen.append({name for name in names if hasattr(context, name)})
        for name in ("ack_index", "auto_commit"):
            if name not in seen[-1]:
                with pytest.raises(AttributeError):
                    setattr(context, name, 1)
        return SUCCESS

    for orderly in (False, True):
        async with make(listener, topics={"t": "*"}, group=f"g{orderly}", orderly=orderly):
            await asyncio.sleep(1)

    shared = {"leave", "queue", "epoch", "lost"}
    assert seen == [shared | {"ack_index", "delay_level"}, shared | {"auto_commit", "suspend_s"}]


async def test_what_is_left_is_neither_done_nor_failed_and_a_first_delivery_for_the_next(
    broker: FakeBroker, start_plain: Make
) -> None:
    fill(broker, 3)

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        if messages[0].queue_offset == 1:
            context.leave()
        return RETRY if messages[0].queue_offset == 1 else SUCCESS

    async with start_plain(listener):
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 1
    assert (broker.offsets["g", QUEUE], given_back_plain(broker)) == (1, [])
    second = Recorder()
    async with start_plain(second):
        await asyncio.sleep(1)

    assert (second.offsets, second.attempts) == ([1, 2], [1, 1])


async def test_hooks_see_each_call(broker: FakeBroker, start_plain: Make) -> None:
    fill(broker, 3)
    infos: list[CallInfo] = []

    class Hook:
        def after(self, info: CallInfo) -> None:
            infos.append(info)

    consumer = start_plain(Recorder(SUCCESS, RETRY, takes_s=0.5), batch=2)
    consumer.add_hook(Hook())
    async with consumer:
        await asyncio.sleep(1)

    told = [(len(info.messages), info.status, info.result, info.success) for info in infos]
    assert told == [(2, SUCCESS, ResultType.SUCCESS, True), (1, RETRY, ResultType.FAILED, False)]
    assert {(info.queue, info.elapsed_s) for info in infos} == {(QUEUE, 0.5)}


# Where giving back fails
async def test_a_refused_message_is_tried_again_here_after_5_s_and_keeps_the_progress(
    broker: FakeBroker, start_plain: Make
) -> None:
    """RocketMQ: the chunk is resubmitted after 5 s with one more attempt."""
    fill(broker, 4)
    broker.refuse[Op.SEND_BACK] = [Internal("disk"), Internal("disk")]
    listener = Recorder(SUCCESS, RETRY, SUCCESS, SUCCESS, RETRY)

    async with start_plain(listener) as consumer:
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 1
        (info,) = consumer.running_info()["queues"]
        assert (info["head_offset"], info["attempt"], info["retry_in_s"]) == (1, 2, pytest.approx(4.0, abs=0.01))
        await asyncio.sleep(8)
        assert broker.offsets["g", QUEUE] == 1
        await asyncio.sleep(2)
        assert broker.offsets["g", QUEUE] == 4
        (info,) = consumer.running_info()["queues"]
        assert info["retry_in_s"] is None

    assert listener.offsets == [0, 1, 2, 3, 1, 1]
    assert [round(at, 3) for at in listener.times[4:]] == [5.0, 10.0]
    assert listener.attempts[4:] == [2, 3]
    assert given_back_plain(broker) == []


@pytest.mark.parametrize("error", [RequestTimeout("late"), ConnectionLost("cut")])
async def test_what_nobody_knows_the_outcome_of_is_asked_for_again_and_not_delivered_here(
    broker: FakeBroker, start_plain: Make, error: Exception
) -> None:
    """The broker may have taken it: another delivery here would be one too many."""
    fill(broker, 2)
    broker.refuse[Op.SEND_BACK] = [error]
    listener = Recorder(with_context(RETRY, delay_level=5))

    async with start_plain(listener):
        await asyncio.sleep(4)
        assert broker.offsets["g", QUEUE] == 0
        await asyncio.sleep(2)
        assert broker.offsets["g", QUEUE] == 2

    assert listener.offsets == [0, 1]
    assert given_back_plain(broker) == [(0, 1, 5)]
    assert broker.times(Op.SEND_BACK) == [0.0, 5.0]


async def test_a_request_that_arrived_without_an_answer_is_not_done_twice(
    broker: FakeBroker, start_plain: Make
) -> None:
    fill(broker, 1)
    hold = broker.hold_reply(Op.SEND_BACK)
    listener = Recorder(RETRY)

    async with start_plain(listener):
        await asyncio.sleep(7)
        hold.let_go.set()
        await asyncio.sleep(2)

    assert (listener.offsets, given_back_plain(broker)) == ([0], [(0, 1, 3)])
    assert broker.offsets["g", QUEUE] == 1


async def test_the_progress_goes_with_the_request_that_gives_back(broker: FakeBroker, start_plain: Make) -> None:
    fill(broker, 4)
    listener = Recorder(with_context(SUCCESS, ack_index=1))

    async with start_plain(listener, batch=3):
        await asyncio.sleep(0.05)
        (request,) = broker.sent(Op.SEND_BACK)

    assert (request.payload.queue_offsets, request.payload.commit_offset) == ([2], 3)
    assert "asked for it again" in request.payload.reason


# Pauses
async def test_a_paused_queue_starts_no_call_and_goes_on_when_it_is_resumed(
    broker: FakeBroker, start_plain: Make
) -> None:
    fill(broker, 10, 10)
    listener = Recorder(takes_s=1.0)

    async with start_plain(listener, slots=2) as consumer:
        await asyncio.sleep(1.5)
        consumer.pause(MessageQueue("t", 0))
        before = len([1 for _, queue, _ in listener.calls if queue == 0])
        await asyncio.sleep(20)
        assert len([1 for _, queue, _ in listener.calls if queue == 0]) == before
        assert broker.offsets["g", MessageQueue("t", 1)] == 10
        consumer.resume()
        await asyncio.sleep(10)

    assert broker.offsets["g", QUEUE] == 10


async def test_a_message_that_falls_due_while_its_queue_is_paused_waits(broker: FakeBroker, start_plain: Make) -> None:
    fill(broker, 1)
    broker.refuse[Op.SEND_BACK] = [Internal("disk")]
    listener = Recorder(RETRY)

    async with start_plain(listener) as consumer:
        await asyncio.sleep(1)
        consumer.pause()
        await asyncio.sleep(9)
        assert len(listener.calls) == 1
        consumer.resume("t")
        await asyncio.sleep(0.1)

    assert [round(at) for at in listener.times] == [0, 10]


@pytest.fixture
def start_transitions(make: Make) -> Make:
    """Makes concurrent consumers of ``t``."""
    return partial(make, orderly=False, topics={"t": "*"})


class HeldTransitions:
    """A listener that notes its calls and answers when it is let go."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.let_go = asyncio.Event()
        self.offsets: list[int] = []
        self.lost: list[bool] = []
        self.cancelled = 0

    async def __call__(self, messages: Messages, context: ConcurrentContext) -> Any:
        self.offsets += [message.queue_offset for message in messages]
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.lost.append(bool(context.lost))
        answer = self.answers.pop(0) if self.answers else SUCCESS
        return answer(context) if callable(answer) else answer


def away(broker: FakeBroker) -> None:
    """All queues fall to another member, whose name sorts before ours."""
    broker.set_members("g", *[f"a{i}" for i in range(9)])


# Dropped
async def test_a_queue_that_is_dropped_waits_for_its_calls_and_takes_what_they_did_along(
    broker: FakeBroker, start_transitions: Make
) -> None:
    """RocketMQ ignores what ends after a drop, so that it is delivered again; here it is recorded first."""
    fill(broker, 10)
    listener = HeldTransitions(SUCCESS, SUCCESS, SUCCESS, RETRY)

    async with start_transitions(listener, slots=4):
        await asyncio.sleep(1)
        away(broker)
        await asyncio.sleep(5)
        assert broker.holder("g", QUEUE) == "member-0"
        listener.let_go.set()
        await asyncio.sleep(0.5)
        assert broker.holder("g", QUEUE) is None

    assert listener.offsets == [0, 1, 2, 3]  # none starts after the drop
    assert given_back_plain(broker) == [(3, 1, 3)]
    assert broker.offsets["g", QUEUE] == 4


async def test_a_message_on_its_way_back_when_its_queue_is_dropped_arrives_before_the_lease_goes(
    broker: FakeBroker, start_transitions: Make
) -> None:
    fill(broker, 2)
    hold = broker.hold_request(Op.SEND_BACK)

    async with start_transitions(Recorder(RETRY), batch=2):
        await hold.reached.wait()
        away(broker)
        await asyncio.sleep(1)
        assert broker.holder("g", QUEUE) == "member-0"
        hold.let_go.set()
        await asyncio.sleep(0.5)
        assert broker.holder("g", QUEUE) is None

    assert given_back_plain(broker) == [(0, 1, 3), (1, 1, 3)]
    assert broker.offsets["g", QUEUE] == 2


async def test_what_cannot_be_given_back_by_a_queue_that_is_dropped_is_left_to_the_next_owner(
    broker: FakeBroker, start_transitions: Make
) -> None:
    fill(broker, 3)
    hold = broker.hold_request(Op.SEND_BACK)
    broker.refuse[Op.SEND_BACK] = [Internal("disk")]

    async with start_transitions(Recorder(SUCCESS, RETRY, SUCCESS)):
        await hold.reached.wait()
        away(broker)
        hold.let_go.set()
        await asyncio.sleep(0.5)
        assert broker.holder("g", QUEUE) is None

    assert broker.offsets["g", QUEUE] == 1


async def test_a_stop_during_the_pause_before_a_retry_waits_for_nothing_and_leaves_the_message(
    broker: FakeBroker, start_transitions: Make
) -> None:
    fill(broker, 3)
    broker.refuse[Op.SEND_BACK] = [Internal("disk")]
    listener = Recorder(RETRY)
    consumer = start_transitions(listener)

    async with consumer:
        await asyncio.sleep(1)
        began = now()
    assert now() - began < 0.1
    await asyncio.sleep(10)

    assert (listener.offsets, broker.offsets.get(("g", QUEUE), 0)) == ([0, 1, 2], 0)


# LeaseLost
async def test_a_call_that_outlives_its_lease_commits_and_gives_back_nothing(
    broker: FakeBroker, start_transitions: Make
) -> None:
    fill(broker, 4)
    listener = HeldTransitions(SUCCESS, RETRY, with_context(SUCCESS, ack_index=-1), SUCCESS)

    async with start_transitions(listener):
        await asyncio.sleep(1)
        broker.give("g", QUEUE)
        await asyncio.sleep(2)
        listener.let_go.set()
        await asyncio.sleep(1)

    assert listener.lost == [True] * 4
    assert given_back_plain(broker) == []
    assert broker.offsets["g", QUEUE] == 0


async def test_a_lease_lost_while_a_message_is_on_its_way_back_gives_back_nothing(
    broker: FakeBroker, start_transitions: Make
) -> None:
    fill(broker, 2)
    hold = broker.hold_request(Op.SEND_BACK)
    listener = Recorder(RETRY)

    async with start_transitions(listener) as consumer:
        await hold.reached.wait()
        broker.give("g", QUEUE)
        hold.let_go.set()
        await asyncio.sleep(1)
        assert consumer.assignment == []

    assert (given_back_plain(broker), listener.offsets) == ([], [0, 1])


@pytest.mark.parametrize("cancel_on_loss", [True, False])
async def test_calls_are_cancelled_by_a_loss_only_if_that_is_wished(
    broker: FakeBroker, start_transitions: Make, cancel_on_loss: bool
) -> None:
    fill(broker, 3)
    listener = HeldTransitions()

    async with start_transitions(listener, cancel_on_loss=cancel_on_loss):
        await asyncio.sleep(1)
        broker.give("g", QUEUE)
        await asyncio.sleep(2)
        assert listener.cancelled == (3 if cancel_on_loss else 0)
        listener.let_go.set()

    assert given_back_plain(broker) == []


async def test_calls_cancelled_for_a_lease_that_was_only_doubted_are_made_again_as_the_same_delivery(
    broker: FakeBroker, start_transitions: Make
) -> None:
    fill(broker, 3)
    listener, attempts = HeldTransitions(), []

    async def counting(messages: Messages, context: ConcurrentContext) -> Any:
        attempts.append(messages[0].attempt)
        return await listener(messages, context)

    async with start_transitions(counting, cancel_on_loss=True, lock_ttl_s=2.0, relock_every_s=1.9) as consumer:
        await asyncio.sleep(1.5)
        hold = broker.hold_request(Op.RENEW)
        await hold.reached.wait()
        while listener.cancelled < 3:
            await asyncio.sleep(0.1)
        hold.let_go.set()
        listener.let_go.set()
        await asyncio.sleep(5)
        assert len(consumer.assignment) == 1

    assert (sorted(listener.offsets), attempts) == ([0, 0, 1, 1, 2, 2], [1] * 6)
    assert broker.offsets["g", QUEUE] == 3


async def test_no_call_starts_under_a_lease_that_is_not_proven(broker: FakeBroker, start_transitions: Make) -> None:
    fill(broker, 40)
    listener = Recorder(takes_s=1.0)

    async with start_transitions(listener, slots=2):
        await asyncio.sleep(2.5)
        broker.go_down()
        await asyncio.sleep(7)  # the grace of 5 s, less its margin, has passed since the last answer
        started = len(listener.calls)
        await asyncio.sleep(10)
        assert len(listener.calls) == started
        broker.come_up()
        await asyncio.sleep(20)

    assert broker.offsets["g", QUEUE] == 40
    assert max(second - first for first, second in zip(listener.times, listener.times[1:], strict=False)) > 10


async def test_a_log_that_lost_what_a_call_has_ends_the_lease_and_the_call_counts_for_nothing(
    broker: FakeBroker, start_transitions: Make
) -> None:
    broker.create("t", bodies=[b"a"])
    broker.send("t", 0, b"b")
    listener = HeldTransitions(SUCCESS, RETRY)

    async with start_transitions(listener):
        await asyncio.sleep(1)
        broker.crash(QUEUE, 1)
        broker.send("t", 0, b"other")
        broker.come_up()
        await asyncio.sleep(1)
        assert given_back_plain(broker) == []
        listener.let_go.set()
        await asyncio.sleep(1)

    assert given_back_plain(broker) == []
    assert listener.offsets.count(1) == 2  # the first was about the message that is gone
    assert broker.offsets["g", QUEUE] == 2


# The end
async def test_a_stop_lets_running_calls_end_and_records_them(broker: FakeBroker, start_transitions: Make) -> None:
    fill(broker, 30)
    listener = Recorder(takes_s=5.0)
    consumer = start_transitions(listener, slots=10)

    async with consumer:
        await asyncio.sleep(1)

    assert now() == pytest.approx(5.0, abs=0.01)
    assert len(listener.calls) == 10
    assert broker.offsets["g", QUEUE] == 10
    assert len(broker.sent(Op.LEAVE)) == 1


async def test_calls_that_do_not_end_in_time_are_cancelled_and_not_recorded(
    broker: FakeBroker, start_transitions: Make
) -> None:
    fill(broker, 3)
    listener = HeldTransitions()

    async with start_transitions(listener, drain_s=2.0):
        await asyncio.sleep(1)

    assert now() == pytest.approx(3.0, abs=0.01)
    assert (listener.cancelled, given_back_plain(broker)) == (3, [])
    assert broker.offsets.get(("g", QUEUE), 0) == 0


async def test_a_listener_may_stop_its_consumer(broker: FakeBroker, start_transitions: Make) -> None:
    fill(broker, 3)
    consumer: Consumer

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        await consumer.stop()
        return SUCCESS

    consumer = start_transitions(listener)
    await asyncio.wait_for(consumer.run(), 10)

    assert broker.offsets["g", QUEUE] == 1  # no call starts after that


async def test_threads_are_waited_for_at_the_end(broker: FakeBroker, start_transitions: Make) -> None:
    fill(broker, 2)
    go_on, started = threading.Event(), []

    def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        started.append(messages[0].queue_offset)
        go_on.wait(10)
        return SUCCESS

    consumer = start_transitions(listener)
    consumer.start()
    while len(started) < 2:
        await asyncio.sleep(0)
    stop = asyncio.create_task(consumer.stop())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not stop.done()
    go_on.set()
    await stop

    assert broker.offsets["g", QUEUE] == 2


# Misuse
async def test_a_listener_that_cancels_its_task_ends_no_worker(
    broker: FakeBroker, start_transitions: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, 6)
    calls: list[int] = []

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        offset = messages[0].queue_offset
        calls.append(offset)
        task = asyncio.current_task()
        assert task is not None
        if offset < 4:
            task.cancel()
        if offset == 1:
            await asyncio.sleep(1)  # raises
        return RETRY if offset == 2 else SUCCESS

    async with start_transitions(listener, slots=1):
        await asyncio.sleep(1)

    assert calls == [0, 1, 2, 3, 4, 5]
    assert [offset for offset, _, _ in given_back_plain(broker)] == [1, 2]
    assert broker.offsets["g", QUEUE] == 6
    assert caplog.text.count("listener.cancelled_its_task") == 1


async def test_what_is_no_exception_of_a_listener_ends_the_consumer(
    broker: FakeBroker, start_transitions: Make
) -> None:
    fill(broker, 1)

    class Fatal(BaseException):
        pass

    consumer = start_transitions(Recorder(Fatal("no more")))
    with pytest.raises(Fatal):
        await asyncio.wait_for(consumer.run(), 100)
    assert ("g", MessageQueue("t", 0)) not in broker.leases


async def test_no_call_starts_while_the_loop_is_behind(broker: FakeBroker, start_transitions: Make) -> None:
    fill(broker, 6)
    loop: Any = asyncio.get_running_loop()
    times: list[float] = []

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        times.append(round(now(), 2))
        if len(times) == 2:
            loop.now += 3.0  # nothing else runs meanwhile
        return SUCCESS

    async with start_transitions(listener, slots=1, stall_limit_s=1.0):
        await asyncio.sleep(10)

    assert len(times) == 6
    assert times[2] > times[1] + 3.0


async def test_after_a_crash_everything_behind_a_message_that_was_not_done_comes_again(
    broker: FakeBroker, start_transitions: Make
) -> None:
    """RocketMQ: a low offset that is stuck has all behind it delivered again; so listeners have to be idempotent."""
    fill(broker, 10)
    stuck, second = asyncio.Event(), Recorder()

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        if messages[0].queue_offset == 2:
            await stuck.wait()
        return SUCCESS

    async with start_transitions(listener, drain_s=0.0, request_timeout_s=0.1):
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 2
        (crashed,) = broker.connections
        crashed.cut()
        broker.end_session(crashed.session)
        async with start_transitions(second):
            await asyncio.sleep(1)

    assert (second.offsets, set(second.attempts)) == (list(range(2, 10)), {1})
    assert broker.offsets["g", QUEUE] == 10


def call(began_at: float) -> Call:
    task: Any = asyncio.current_task()
    return Call(Chunk(0, 1), task, began_at)


def active(cache: Any = None) -> ActiveQueue:
    assignment = Assignment(
        LeaseBelief(MessageQueue("t", 0), 1, 0.0), cache or ConcurrentQueue(0), on_lost=lambda *_: None
    )
    return ActiveQueue(assignment, TopicMeter())


async def test_calls_are_held_since_the_oldest_that_runs_until_the_last_has_ended() -> None:
    calls, first, second = Calls(), call(1.0), call(2.0)
    free = asyncio.create_task(calls.free())
    await free  # nothing runs

    calls.began(first)
    calls.began(second)
    assert (calls.busy, calls.since, calls.running()) == (True, 1.0, [first, second])
    free = asyncio.create_task(calls.free())
    calls.ended(first)
    await asyncio.sleep(0)
    assert (calls.busy, calls.since, free.done()) == (True, 2.0, False)
    calls.ended(second)
    await free
    assert (calls.busy, calls.since) == (False, None)


async def test_a_chunk_that_is_held_falls_due_after_its_pause_and_the_first_of_them_is_told() -> None:
    one = active()
    one.cache.put(made_plain(0, 2))
    chunks = [taken[0] for _ in range(2) if (taken := one.cache.take_chunk(1)) is not None]

    one.retry_later(chunks[0], 5.0, now())
    one.retry_later(chunks[1], 3.0, now())
    assert one.assignment.retry_at == 3.0
    await asyncio.sleep(2.999)
    assert not one.cache.ready
    await asyncio.sleep(0.002)
    assert one.cache.ready
    assert one.assignment.retry_at == 5.0
    assert await one.assignment.work()

    one.cancel_retries()
    await asyncio.sleep(5)
    assert one.assignment.retry_at is None
    assert [one.cache.take_chunk(1) is None for _ in range(2)] == [False, True]


async def test_only_a_call_that_runs_is_interrupted_and_only_once() -> None:
    task = asyncio.create_task(asyncio.sleep(1))
    running = Call(Chunk(0, 1), task, 0.0)  # type: ignore[arg-type]

    running.interrupt()  # its result is being recorded
    assert task.cancelling() == 0
    running.chunk.called_at = 0.0
    running.interrupt()
    running.interrupt()
    assert task.cancelling() == 1
    await asyncio.wait([task])


async def test_calls_are_counted_together_and_counted_at_the_end_of_the_work_or_every_2_ms() -> None:
    meter = TopicMeter()
    one = active()
    one._meter = meter

    one.offer()
    one.count(1.0, 2, 0.1)
    told = [meter.ok.calls]
    one.count(1.001, 2, 0.1)
    told.append(meter.ok.calls)
    one.count(1.0021, 2, 0.1)
    told.append(meter.ok.calls)
    one.withdraw()
    one.count(1.0022, 2, 0.1)
    told.append(meter.ok.calls)

    assert told == [1, 1, 3, 4]
    assert (meter.ok.total, meter.ok.rate(1.1).mean_s) == (8, pytest.approx(0.1))


async def test_the_cache_of_another_service_is_refused() -> None:
    with pytest.raises(AssertionError, match="another service"):
        active(ProcessQueue(0))


LIMIT_S = 100.0


@pytest.fixture
def start_sweep(make: Make) -> Make:
    """Makes concurrent consumers of ``t`` whose calls may take 100 s."""
    return partial(make, orderly=False, topics={"t": "*"}, consume_timeout_s=LIMIT_S)


async def test_up_to_16_heads_that_take_too_long_are_given_back_with_level_3_and_passed(
    broker: FakeBroker, start_sweep: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ: cleanExpired, 16 messages a round, a round every 15 minutes."""
    fill(broker, 20)
    listener = HeldTransitions()

    async with start_sweep(listener):
        await asyncio.sleep(2 * LIMIT_S - 1)
        assert (given_back_plain(broker), broker.offsets["g", QUEUE]) == (
            [],
            0,
        )  # at exactly the limit it is not too long
        await asyncio.sleep(2)
        assert given_back_plain(broker) == [(offset, 1, 3) for offset in range(16)]
        assert broker.offsets["g", QUEUE] == 16
        await asyncio.sleep(LIMIT_S)
        assert given_back_plain(broker) == [(offset, 1, 3) for offset in range(20)]
        listener.let_go.set()
        await asyncio.sleep(1)

    assert broker.offsets["g", QUEUE] == 20
    assert len(listener.offsets) == 20
    assert caplog.text.count("message.expired") == 20


@pytest.mark.parametrize("answer", [SUCCESS, RETRY, None, with_context(SUCCESS, ack_index=-1)])
async def test_what_a_call_says_of_messages_that_were_given_up_counts_for_nothing(
    broker: FakeBroker, start_sweep: Make, answer: Any
) -> None:
    fill(broker, 3)
    listener = HeldTransitions(answer)

    async with start_sweep(listener, batch=3):
        await asyncio.sleep(2 * LIMIT_S + 1)
        before = list(given_back_plain(broker))
        listener.let_go.set()
        await asyncio.sleep(10)

    assert given_back_plain(broker) == before == [(0, 1, 3), (1, 1, 3), (2, 1, 3)]
    assert broker.offsets["g", QUEUE] == 3


async def test_a_call_with_more_messages_than_a_round_takes_decides_about_the_others(
    broker: FakeBroker, start_sweep: Make
) -> None:
    fill(broker, 20)
    listener = HeldTransitions(with_context(SUCCESS, ack_index=17))

    async with start_sweep(listener, batch=20):
        await asyncio.sleep(2 * LIMIT_S + 1)
        assert broker.offsets["g", QUEUE] == 16
        listener.let_go.set()
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 20

    assert given_back_plain(broker) == [*((offset, 1, 3) for offset in range(16)), (18, 1, 3), (19, 1, 3)]


async def test_a_young_head_keeps_the_old_ones_behind_it(broker: FakeBroker, start_sweep: Make) -> None:
    fill(broker, 3)
    broker.refuse[Op.SEND_BACK] = [Internal("disk")]
    listener = HeldTransitions()

    async def first_comes_late(messages: Any, context: Any) -> Any:
        if messages[0].queue_offset == 0 and messages[0].attempt == 1:
            await asyncio.sleep(1.5 * LIMIT_S)
            return RETRY  # and cannot be given back: its second call begins later
        return await listener(messages, context)

    async with start_sweep(first_comes_late):
        await asyncio.sleep(2 * LIMIT_S + 1)
        assert given_back_plain(broker) == []
        await asyncio.sleep(LIMIT_S)
        assert [offset for offset, _, _ in given_back_plain(broker)] == [0, 1, 2]
        listener.let_go.set()


async def test_a_message_that_cannot_be_given_up_stays_with_its_call(broker: FakeBroker, start_sweep: Make) -> None:
    fill(broker, 3)
    broker.refuse[Op.SEND_BACK] = [Internal("disk")]
    listener = HeldTransitions()

    async with start_sweep(listener):
        await asyncio.sleep(2 * LIMIT_S + 1)
        assert len(broker.sent(Op.SEND_BACK)) == 1  # the others behind it could not be passed
        assert broker.offsets["g", QUEUE] == 0
        listener.let_go.set()
        await asyncio.sleep(1)

    assert (given_back_plain(broker), broker.offsets["g", QUEUE]) == ([], 3)


@pytest.mark.parametrize(("refused", "back"), [(False, [(0, 1, 3)]), (True, [])])
async def test_a_call_that_returns_while_it_is_given_up_waits_for_what_comes_of_that(
    broker: FakeBroker, start_sweep: Make, refused: bool, back: list[tuple[int, int, int]]
) -> None:
    fill(broker, 1)
    listener = HeldTransitions()

    async with start_sweep(listener) as consumer:
        await asyncio.sleep(LIMIT_S + 1)
        hold = broker.hold_request(Op.SEND_BACK)
        broker.refuse[Op.SEND_BACK] = [Internal("disk")] if refused else []
        await hold.reached.wait()
        listener.let_go.set()
        await asyncio.sleep(1)
        assert consumer.running_info()["turns"] == 1
        hold.let_go.set()
        await asyncio.sleep(1)
        assert consumer.running_info()["turns"] == 0

    # If it was given up, the success is one that came too late; if not, it is a success.
    assert given_back_plain(broker) == back
    assert broker.offsets["g", QUEUE] == 1


async def test_a_lost_queue_is_not_swept(broker: FakeBroker, start_sweep: Make) -> None:
    fill(broker, 1)
    listener = HeldTransitions()

    async with start_sweep(listener):
        await asyncio.sleep(1)
        broker.give("g", QUEUE)
        await asyncio.sleep(3 * LIMIT_S)
        assert broker.sent(Op.SEND_BACK) == []
        listener.let_go.set()
