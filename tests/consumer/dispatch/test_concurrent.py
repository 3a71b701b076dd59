"""Many calls at a time: what is done, what is given back, what is tried again here, and whose turn it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rmq.consumer import CallInfo, ConcurrentContext, ConsumeStatus, ResultType
from rmq.wire.errors import ConnectionLost, Internal, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Op

from ..fake_broker import FakeBroker
from ..recorder import COMMIT, QUEUE, ROLLBACK, SUCCESS, SUSPEND, Make, Messages, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

RETRY = ConsumeStatus.RETRY


@pytest.fixture
def start(make: Make) -> Make:
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


def given_back(broker: FakeBroker) -> list[tuple[int, int, int]]:
    """Offset, attempt and level of what was given back."""
    return [(offset, attempt, level) for _, offset, attempt, level in broker.given_back]


# Calls


async def test_ten_messages_with_a_batch_of_four_are_three_calls_at_the_same_time(
    broker: FakeBroker, start: Make
) -> None:
    fill(broker, 10)
    listener = Recorder(takes_s=1.0)

    async with start(listener, batch=4):
        await asyncio.sleep(2)

    assert [offsets for _, _, offsets in listener.calls] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (listener.most, set(listener.times)) == (3, {0.0})
    assert broker.offsets["g", QUEUE] == 10


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (7, 7), (20, 20)])
async def test_no_more_calls_run_than_there_are_slots(broker: FakeBroker, start: Make, slots: int, most: int) -> None:
    fill(broker, 50)
    listener = Recorder(takes_s=0.1)

    async with start(listener, slots=slots):
        await asyncio.sleep(10)

    assert (listener.most, sorted(listener.offsets)) == (most, list(range(50)))


async def test_queues_have_their_calls_in_turn(broker: FakeBroker, start: Make) -> None:
    fill(broker, 6, 6, 0, 6)
    listener = Recorder(takes_s=1.0)

    async with start(listener, slots=3):
        await asyncio.sleep(10)

    assert [sorted(queue for at, queue, _ in listener.calls if at == second) for second in range(1, 6)] == [
        [0, 1, 3]
    ] * 5


async def test_a_slow_message_keeps_the_progress_and_nothing_else(broker: FakeBroker, start: Make) -> None:
    fill(broker, 10)
    slow = asyncio.Event()

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        if messages[0].queue_offset == 2:
            await slow.wait()
        return SUCCESS

    async with start(listener) as consumer:
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 2
        (info,) = consumer.running_info()["queues"]
        assert (info["head_offset"], info["in_flight"], info["cached_messages"]) == (2, 1, 1)
        assert info["called_for_s"] == pytest.approx(1.0, abs=0.01)
        slow.set()
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 10


async def test_a_plain_function_runs_in_threads_beside_each_other(broker: FakeBroker, start: Make) -> None:
    fill(broker, 4)
    together, seen = threading.Barrier(4, timeout=10), []

    def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        together.wait()
        seen.append(messages[0].queue_offset)
        return SUCCESS

    async with start(listener, slots=4):
        await asyncio.sleep(1)

    assert sorted(seen) == [0, 1, 2, 3]
    assert broker.offsets["g", QUEUE] == 4


async def test_a_listener_that_never_suspends_gives_the_loop_back(broker: FakeBroker, start: Make) -> None:
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

    async with start(listener):
        while not listener_calls:
            await asyncio.sleep(0)
        await tick()

    assert ticks >= 150  # half a millisecond a call: the loop has its turn every fifth call or so


# Results


@pytest.mark.parametrize("answer", [RETRY, SUSPEND, ROLLBACK, None, 7, ValueError("no")])
async def test_whatever_is_no_success_gives_the_whole_chunk_back(broker: FakeBroker, start: Make, answer: Any) -> None:
    """RocketMQ: null, an exception and RECONSUME_LATER are the same."""
    fill(broker, 3)
    listener = Recorder(answer)

    async with start(listener, batch=3) as consumer:
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 3
        statistics = consumer.statistics()["t@g"]

    assert given_back(broker) == [(0, 1, 3), (1, 1, 3), (2, 1, 3)]
    assert len(listener.calls) == 1
    assert (statistics.consumed_failed.total, statistics.consumed_ok.total) == (3, 0)
    kinds = {None: ResultType.RETURNED_NULL}.get(
        answer, ResultType.EXCEPTION if isinstance(answer, ValueError) else ResultType.FAILED
    )
    assert {kind: count for kind, count in statistics.results.items() if count} == {kinds: 1}


async def test_a_commit_is_a_success(broker: FakeBroker, start: Make, caplog: pytest.LogCaptureFixture) -> None:
    fill(broker, 2)

    async with start(Recorder(COMMIT, COMMIT)):
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 2

    assert given_back(broker) == []
    assert caplog.text.count("listener.returned_ordered_status") == 1


@pytest.mark.parametrize(
    ("ack_index", "back"),
    [(1, [2, 3]), (3, []), (99, []), (0, [1, 2, 3]), (-1, [0, 1, 2, 3]), (-7, [0, 1, 2, 3]), ("1", [0, 1, 2, 3])],
)
async def test_messages_behind_the_ack_index_are_given_back(
    broker: FakeBroker, start: Make, ack_index: Any, back: list[int]
) -> None:
    fill(broker, 4)

    async with start(Recorder(with_context(SUCCESS, ack_index=ack_index)), batch=4) as consumer:
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 4
        statistics = consumer.statistics()["t@g"]

    assert [offset for offset, _, _ in given_back(broker)] == back
    assert (statistics.consumed_ok.total, statistics.consumed_failed.total) == (4 - len(back), len(back))


@pytest.mark.parametrize(("asked", "level"), [(0, 3), (7, 7), (-1, -1), (-5, -1), ("3", 3), (True, 3)])
async def test_the_level_of_a_failed_message_is_the_listeners_or_goes_by_its_attempts(
    broker: FakeBroker, start: Make, asked: Any, level: int
) -> None:
    fill(broker, 1)

    async with start(Recorder(with_context(RETRY, delay_level=asked))):
        await asyncio.sleep(1)

    assert given_back(broker) == [(0, 1, level)]


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
    broker: FakeBroker, start: Make
) -> None:
    fill(broker, 3)

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        if messages[0].queue_offset == 1:
            context.leave()
        return RETRY if messages[0].queue_offset == 1 else SUCCESS

    async with start(listener):
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 1
    assert (broker.offsets["g", QUEUE], given_back(broker)) == (1, [])
    second = Recorder()
    async with start(second):
        await asyncio.sleep(1)

    assert (second.offsets, second.attempts) == ([1, 2], [1, 1])


async def test_hooks_see_each_call(broker: FakeBroker, start: Make) -> None:
    fill(broker, 3)
    infos: list[CallInfo] = []

    class Hook:
        def after(self, info: CallInfo) -> None:
            infos.append(info)

    consumer = start(Recorder(SUCCESS, RETRY, takes_s=0.5), batch=2)
    consumer.add_hook(Hook())
    async with consumer:
        await asyncio.sleep(1)

    told = [(len(info.messages), info.status, info.result, info.success) for info in infos]
    assert told == [(2, SUCCESS, ResultType.SUCCESS, True), (1, RETRY, ResultType.FAILED, False)]
    assert {(info.queue, info.elapsed_s) for info in infos} == {(QUEUE, 0.5)}


# Where giving back fails


async def test_a_refused_message_is_tried_again_here_after_5_s_and_keeps_the_progress(
    broker: FakeBroker, start: Make
) -> None:
    """RocketMQ: the chunk is resubmitted after 5 s with one more attempt."""
    fill(broker, 4)
    broker.refuse[Op.SEND_BACK] = [Internal("disk"), Internal("disk")]
    listener = Recorder(SUCCESS, RETRY, SUCCESS, SUCCESS, RETRY)

    async with start(listener) as consumer:
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
    assert given_back(broker) == []


@pytest.mark.parametrize("error", [RequestTimeout("late"), ConnectionLost("cut")])
async def test_what_nobody_knows_the_outcome_of_is_asked_for_again_and_not_delivered_here(
    broker: FakeBroker, start: Make, error: Exception
) -> None:
    """The broker may have taken it: another delivery here would be one too many."""
    fill(broker, 2)
    broker.refuse[Op.SEND_BACK] = [error]
    listener = Recorder(with_context(RETRY, delay_level=5))

    async with start(listener):
        await asyncio.sleep(4)
        assert broker.offsets["g", QUEUE] == 0
        await asyncio.sleep(2)
        assert broker.offsets["g", QUEUE] == 2

    assert listener.offsets == [0, 1]
    assert given_back(broker) == [(0, 1, 5)]
    assert broker.times(Op.SEND_BACK) == [0.0, 5.0]


async def test_a_request_that_arrived_without_an_answer_is_not_done_twice(broker: FakeBroker, start: Make) -> None:
    fill(broker, 1)
    hold = broker.hold_reply(Op.SEND_BACK)
    listener = Recorder(RETRY)

    async with start(listener):
        await asyncio.sleep(7)
        hold.let_go.set()
        await asyncio.sleep(2)

    assert (listener.offsets, given_back(broker)) == ([0], [(0, 1, 3)])
    assert broker.offsets["g", QUEUE] == 1


async def test_the_progress_goes_with_the_request_that_gives_back(broker: FakeBroker, start: Make) -> None:
    fill(broker, 4)
    listener = Recorder(with_context(SUCCESS, ack_index=1))

    async with start(listener, batch=3):
        await asyncio.sleep(0.05)
        (request,) = broker.sent(Op.SEND_BACK)

    assert (request.payload.queue_offsets, request.payload.commit_offset) == ([2], 3)
    assert "asked for it again" in request.payload.reason


# Pauses


async def test_a_paused_queue_starts_no_call_and_goes_on_when_it_is_resumed(broker: FakeBroker, start: Make) -> None:
    fill(broker, 10, 10)
    listener = Recorder(takes_s=1.0)

    async with start(listener, slots=2) as consumer:
        await asyncio.sleep(1.5)
        consumer.pause(MessageQueue("t", 0))
        before = len([1 for _, queue, _ in listener.calls if queue == 0])
        await asyncio.sleep(20)
        assert len([1 for _, queue, _ in listener.calls if queue == 0]) == before
        assert broker.offsets["g", MessageQueue("t", 1)] == 10
        consumer.resume()
        await asyncio.sleep(10)

    assert broker.offsets["g", QUEUE] == 10


async def test_a_message_that_falls_due_while_its_queue_is_paused_waits(broker: FakeBroker, start: Make) -> None:
    fill(broker, 1)
    broker.refuse[Op.SEND_BACK] = [Internal("disk")]
    listener = Recorder(RETRY)

    async with start(listener) as consumer:
        await asyncio.sleep(1)
        consumer.pause()
        await asyncio.sleep(9)
        assert len(listener.calls) == 1
        consumer.resume("t")
        await asyncio.sleep(0.1)

    assert [round(at) for at in listener.times] == [0, 10]
