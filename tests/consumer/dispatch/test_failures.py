"""
Messages the listener failed at: each with its own count, given again or buried, and nothing starts anew.

Failed messages of a broadcasting member that does not consume in order: told, and passed.

Failed messages on their way back to the broker: what is asked for, and what each answer means.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq.consumer import ConsumeContext, ConsumeStatus
from rmq.consumer.config import ConsumerConfig
from rmq.consumer.dispatch.failures import Fate, SendBacks, SkipFailures
from rmq.consumer.fetch.concurrent_queue import ConcurrentQueue
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.assignment import Assignment, LeaseBelief
from rmq.wire.errors import BadDelay, ConnectionLost, Fenced, Internal, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.hello import AttemptRun
from rmq.wire.protocol.ops.core import NO_OFFSET, Op
from rmq.wire.protocol.ops.redelivery import DEAD

from ..fake_broker import FakeBroker
from ..fetch.test_process_queue import made_plain
from ..recorder import COMMIT, QUEUE, ROLLBACK, SUCCESS, SUSPEND, Make, Messages, Recorder, now, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


class Picky:
    """A listener that fails at batches which hold any of some offsets; notes offsets and attempts of each call."""

    def __init__(self, *bad: int, auto_commit: bool = True) -> None:
        self.bad = bad
        self.auto_commit = auto_commit
        self.calls: list[list[tuple[int, int]]] = []
        self.times: list[float] = []

    async def __call__(self, messages: Messages, context: ConsumeContext) -> ConsumeStatus:
        context.auto_commit = self.auto_commit
        self.times.append(round(now(), 6))
        self.calls.append([(message.queue_offset, message.attempt) for message in messages])
        return SUSPEND if any(message.queue_offset in self.bad for message in messages) else SUCCESS


def dead(broker: FakeBroker) -> list[int]:
    return [offset for _, offset, _ in broker.dead]


# Attempts, message by message
async def test_a_failed_batch_is_recorded_for_each_of_its_messages(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b", b"c"])
    listener = Recorder(SUSPEND)

    async with make(listener, topics={"t": "*"}, batch=3):
        await asyncio.sleep(0.5)
        assert broker.runs["g", QUEUE] == {0: 1, 1: 1, 2: 1}

    assert broker.sent(Op.ATTEMPT)[0].payload.runs == [AttemptRun(0, 3, 1)]


async def test_one_message_that_failed_is_said_without_runs(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])

    await run_for(0.5, make(Recorder(SUSPEND), topics={"t": "*"}))

    assert broker.sent(Op.ATTEMPT)[0].payload[4:] == (0, 1, [])


async def test_after_a_take_over_every_message_of_a_batch_goes_on_counting(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 5)
    first = Picky(1)
    async with make(first, topics={"t": "*"}, batch=2):
        await asyncio.sleep(1.5)  # two failures: at 0 and 1 s

    second = Picky()
    await run_for(1, make(second, topics={"t": "*"}, batch=3))

    assert first.calls == [[(0, 1), (1, 1)], [(0, 2), (1, 2)]]
    assert second.calls == [[(0, 3), (1, 3), (2, 1)], [(3, 1), (4, 1)]]


async def test_attempts_of_a_batch_of_mixed_counts_are_recorded_as_runs(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    broker.runs["g", QUEUE] = {1: 4, 2: 4}

    await run_for(0.5, make(Recorder(SUSPEND), topics={"t": "*"}, batch=4))

    assert broker.sent(Op.ATTEMPT)[0].payload.runs == [AttemptRun(0, 1, 1), AttemptRun(1, 3, 5), AttemptRun(3, 4, 1)]
    assert broker.runs["g", QUEUE] == {0: 1, 1: 5, 2: 5, 3: 1}


async def test_a_commit_forgets_the_attempts_below_it_only(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    listener = Recorder(SUSPEND, SUCCESS, SUSPEND)

    async with make(listener, topics={"t": "*"}, batch=2):
        await asyncio.sleep(1.5)
        assert broker.runs["g", QUEUE] == {2: 1, 3: 1}


# Dead letters
@pytest.mark.parametrize("most", [1, 2, 3, 16])
async def test_after_n_deliveries_a_message_is_a_dead_letter_and_the_next_is_delivered(
    broker: FakeBroker, make: Make, most: int
) -> None:
    """In RocketMQ ``max = 3`` makes four calls; here N deliveries are N calls of the listener."""
    broker.create("t", bodies=[b"a", b"b", b"c"])
    listener = Picky(1)

    async with make(listener, topics={"t": "*"}, max_attempts=most, suspend_s=0.01):
        await asyncio.sleep(300)
        assert broker.offsets["g", QUEUE] == 3

    attempts = [[(1, attempt)] for attempt in range(1, most + 1)]
    assert listener.calls == [[(0, 1)], *attempts, [(2, 1)]]
    assert dead(broker) == [1]
    # The progress goes with the copy, in one request; and the last failure is not an attempt to be tried again.
    assert broker.sent(Op.DEAD_LETTER)[0].payload.commit_offset == 2
    assert len(broker.sent(Op.ATTEMPT)) == most - 1


async def test_without_a_limit_nothing_becomes_a_dead_letter(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    listener = Picky(0)

    await run_for(1000, make(listener, topics={"t": "*"}, suspend_s=0.01))

    assert len(listener.calls) > 40
    assert broker.dead == []


async def test_there_is_no_pause_when_all_of_a_batch_are_dead_letters(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b", b"c"])
    listener = Picky(0)

    await run_for(5, make(listener, topics={"t": "*"}, batch=2, max_attempts=2))

    assert listener.calls == [[(0, 1), (1, 1)], [(0, 2), (1, 2)], [(2, 1)]]
    assert listener.times == [0.0, 1.0, 1.0]
    assert dead(broker) == [0, 1]
    assert len(broker.sent(Op.DEAD_LETTER)) == 1


@pytest.mark.parametrize(
    ("exhausted", "rest", "committed"),
    [(0, [(1, 2), (2, 2)], 1), (1, [(0, 2), (2, 2)], 0), (2, [(0, 2), (1, 2)], 0)],
)
async def test_of_a_batch_of_three_with_one_exhausted_only_the_rest_is_repeated(
    broker: FakeBroker, make: Make, exhausted: int, rest: list[tuple[int, int]], committed: int
) -> None:
    """RocketMQ repeats all three, and sends the exhausted one out again."""
    broker.create("t", bodies=[b"a", b"b", b"c"])
    broker.runs["g", QUEUE] = {exhausted: 2}
    listener = Recorder(SUSPEND)
    seen: list[list[tuple[int, int]]] = []

    async def note(messages: Messages, context: ConsumeContext) -> Any:
        seen.append([(message.queue_offset, message.attempt) for message in messages])
        return await listener(messages, context)

    async with make(note, topics={"t": "*"}, batch=3, max_attempts=3):
        await asyncio.sleep(0.5)
        assert broker.offsets.get(("g", QUEUE), 0) == committed
        assert dead(broker) == [exhausted]
        await asyncio.sleep(5)
        assert broker.offsets["g", QUEUE] == 3

    assert seen[1:] == [rest]
    assert listener.times == [0.0, 1.0]


async def test_a_dead_letter_the_broker_refuses_blocks_the_queue_counts_on_and_is_offered_again(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    broker.refuse[Op.DEAD_LETTER] = [Internal("log id 7")] * 2
    listener = Picky(0)

    await run_for(60, make(listener, topics={"t": "*"}, max_attempts=2))

    assert listener.calls == [[(0, 1)], [(0, 2)], [(0, 3)], [(0, 4)], [(1, 1)]]
    assert listener.times == [0.0, 1.0, 3.0, 7.0, 7.0]  # pauses of 1, 2 and 4 s
    assert dead(broker) == [0]
    assert broker.offsets["g", QUEUE] == 2


@pytest.mark.parametrize("error", [ConnectionLost("x"), RequestTimeout("x")])
async def test_a_dead_letter_whose_answer_is_lost_is_asked_for_again_without_another_call(
    broker: FakeBroker, make: Make, error: Exception
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    broker.refuse[Op.DEAD_LETTER] = [error]
    listener = Picky(0)

    await run_for(10, make(listener, topics={"t": "*"}, max_attempts=1))

    assert broker.times(Op.DEAD_LETTER) == [0.0, 3.0]
    assert listener.calls == [[(0, 1)], [(1, 1)]]
    assert dead(broker) == [0]


async def test_a_dead_letter_that_was_stored_and_is_asked_for_again_is_stored_once(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    hold = broker.hold_reply(Op.DEAD_LETTER)
    listener = Picky(0)

    async with make(listener, topics={"t": "*"}, max_attempts=1, request_timeout_s=1.0):
        await hold.reached.wait()
        await asyncio.sleep(10)
        hold.let_go.set()

    assert len(broker.sent(Op.DEAD_LETTER)) == 2
    assert dead(broker) == [0]
    assert listener.calls == [[(0, 1)], [(1, 1)]]


async def test_a_fenced_dead_letter_drops_the_assignment(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    broker.refuse[Op.DEAD_LETTER] = [Fenced("stale")]
    listener = Picky(0)

    await run_for(5, make(listener, topics={"t": "*"}, max_attempts=1))

    assert len(broker.sent(Op.ACQUIRE)) == 2
    assert listener.times == [0.0, 0.0]
    assert dead(broker) == [0]  # under the new epoch


async def test_a_dead_letter_counts_as_done_and_commits_nothing_that_the_listener_has_not_committed(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"x"] * 4)
    listener = Picky(1, auto_commit=False)

    async with make(listener, topics={"t": "*"}, max_attempts=2):
        await asyncio.sleep(5)
        assert listener.calls == [[(0, 1)], [(1, 1)], [(1, 2)], [(2, 1)], [(3, 1)]]
        assert dead(broker) == [1]
        assert broker.sent(Op.DEAD_LETTER)[0].payload.commit_offset == -1
        assert broker.offsets["g", QUEUE] == 0
    assert broker.offsets["g", QUEUE] == 0


async def test_a_commit_behind_a_dead_letter_passes_it(broker: FakeBroker, make: Make) -> None:
    def manual(status: ConsumeStatus) -> Any:
        def answer(context: ConsumeContext) -> ConsumeStatus:
            context.auto_commit = False
            return status

        return answer

    broker.create("t", bodies=[b"x"] * 3)
    listener = Recorder(manual(SUCCESS), manual(SUSPEND), manual(COMMIT))

    await run_for(5, make(listener, topics={"t": "*"}, max_attempts=1))

    assert listener.offsets == [0, 1, 2]
    assert broker.offsets["g", QUEUE] == 3


async def test_a_rollback_buries_what_is_exhausted_and_gives_the_rest_again(broker: FakeBroker, make: Make) -> None:
    def rolled(context: ConsumeContext) -> ConsumeStatus:
        context.auto_commit = False
        return ROLLBACK

    def kept(context: ConsumeContext) -> ConsumeStatus:
        context.auto_commit = False
        return SUCCESS

    broker.create("t", bodies=[b"x"] * 3)
    broker.runs["g", QUEUE] = {0: 1}
    listener = Recorder(kept, rolled)

    await run_for(5, make(listener, topics={"t": "*"}, max_attempts=2))

    assert listener.offsets == [0, 1, 1, 2]
    assert dead(broker) == [0]


async def test_the_reason_of_a_dead_letter_tells_what_the_listener_raised(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b"])
    listener = Recorder(ValueError("no such order " + "x" * 999), SUSPEND)

    await run_for(5, make(listener, topics={"t": "*"}, max_attempts=1))

    (_, _, raised), (_, _, suspended) = broker.dead
    assert raised.startswith("delivery 1 failed: ValueError: no such order xxx")
    assert len(raised) == 200
    assert suspended == "delivery 1 failed: the listener asked for it again"


async def test_a_dead_letter_counts_the_delivery_that_failed_last(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a", b"b"])

    await run_for(10, make(Recorder(SUSPEND, SUSPEND, SUSPEND), topics={"t": "*"}, max_attempts=3))

    (asked,) = broker.sent(Op.DEAD_LETTER)
    assert (asked.payload.queue_offsets, asked.payload.attempts) == ([0], [3])


async def test_nothing_is_buried_after_the_log_has_lost_it(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"a"])
    broker.send("t", 0, b"b")
    hold = broker.hold_request(Op.DEAD_LETTER)
    listener = Picky(1)

    async with make(listener, topics={"t": "*"}, max_attempts=1, request_timeout_s=1.0):
        await hold.reached.wait()
        broker.crash(QUEUE, 1)  # offset 1 is lost,
        broker.send("t", 0, b"another")  # and given to another
        broker.come_up()
        listener.bad = ()
        await asyncio.sleep(10)
        hold.let_go.set()

    assert dead(broker) == []
    assert listener.calls[-1] == [(1, 1)]
    assert broker.offsets["g", QUEUE] == 2


async def test_a_drop_while_a_dead_letter_is_asked_for_waits_for_the_answer_and_no_longer(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a"])
    hold = broker.hold_reply(Op.DEAD_LETTER)
    consumer = make(Picky(0), topics={"t": "*"}, max_attempts=1)

    async with consumer:
        await hold.reached.wait()
        stopping = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(1)
        assert not stopping.done()
        hold.let_go.set()
        await stopping

    assert broker.offsets["g", QUEUE] == 1
    assert [request.op for request in broker.requests][-1] is Op.LEAVE


async def test_a_lease_lost_while_a_dead_letter_is_asked_for_leaves_it_to_the_next_owner(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a"])
    hold = broker.hold_request(Op.DEAD_LETTER)
    listener = Picky(0)

    async with make(listener, topics={"t": "*"}, max_attempts=1, request_timeout_s=1.0):
        await hold.reached.wait()
        broker.free("g", QUEUE)  # lost: the request that is on its way carries a stale epoch
        hold.let_go.set()
        await asyncio.sleep(5)

    assert [request.payload.epoch for request in broker.sent(Op.DEAD_LETTER)] == [1, 2]
    assert listener.calls == [[(0, 1)], [(0, 1)]]
    assert dead(broker) == [0]


async def test_no_attempt_is_counted_for_a_message_that_got_the_offset_of_a_lost_one(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t", bodies=[b"a"])
    broker.send("t", 0, b"b")
    hold = broker.hold_request(Op.ATTEMPT)
    listener = Picky(1)

    async with make(listener, topics={"t": "*"}, request_timeout_s=1.0):
        await hold.reached.wait()
        broker.crash(QUEUE, 1)
        broker.send("t", 0, b"another")
        broker.come_up()
        listener.bad = ()
        await asyncio.sleep(10)
        hold.let_go.set()

    assert listener.calls[-1] == [(1, 1)]
    assert broker.runs["g", QUEUE] == {}
    assert len(broker.sent(Op.ATTEMPT)) == 1


def held(count: int) -> Assignment:
    cache = ProcessQueue(4)
    cache.put(made_plain(4, count))
    return Assignment(LeaseBelief(MessageQueue("t", 0), 0, 0.0), cache, on_lost=lambda *_: None)


async def test_failed_messages_are_told_in_one_line_and_passed(caplog: pytest.LogCaptureFixture) -> None:
    assignment = held(2)
    messages = assignment.cache.take(2)  # type: ignore[attr-defined]

    fate = await SkipFailures().give_back(assignment, messages, progress=lambda: 6, delay_level=-1, reason="odd price")

    assert fate is Fate.GIVEN_BACK
    (line,) = [record.getMessage() for record in caplog.records]
    assert "message.skipped" in line
    assert "queue_offset=4 count=2 attempts=1 reason='odd price'" in line


async def test_messages_of_a_queue_whose_stay_ended_are_not_passed(caplog: pytest.LogCaptureFixture) -> None:
    assignment = held(1)
    messages = assignment.cache.take(1)  # type: ignore[attr-defined]
    assignment.lose("the topic was deleted")

    assert await SkipFailures().give_back(assignment, messages, progress=lambda: 5) is Fate.LOST

    assert "message.skipped" not in caplog.text


class Broker:
    """Answers SEND_BACK with fates, or raises; keeps what was asked for."""

    log_epoch = 7

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    async def send_back(self, *given: Any, **named: Any) -> list[int]:
        self.asked.append((*given, named))
        if isinstance(self.answer, Exception):
            raise self.answer
        fates: list[int] = self.answer
        return fates


def held_send_backs(*, agreed: int = 7) -> tuple[Assignment, list[Any]]:
    """An assignment with two messages, the second of which was delivered four times before, both taken."""
    queue = ConcurrentQueue(5)
    queue.put(made_plain(5, 2, attempts=[0, 4]))
    taken = queue.take_chunk(2)
    assert taken is not None
    return Assignment(LeaseBelief(QUEUE, 3, 0.0), queue, on_lost=lambda *_: None, agreed=agreed), taken[1]


async def give_back(broker: Broker, assignment: Assignment, messages: list[Any], progress: int = 7) -> Fate:
    backs = SendBacks(ConsumerConfig(max_attempts=9), broker)  # type: ignore[arg-type]
    return await backs.give_back(assignment, messages, progress=lambda: progress, delay_level=4, reason="r" * 300)


@pytest.mark.parametrize(("progress", "stored"), [(7, 7), (5, NO_OFFSET)])
async def test_a_request_names_each_message_its_deliveries_and_the_progress_if_that_is_new(
    progress: int, stored: int
) -> None:
    broker, (assignment, messages) = Broker([3, DEAD]), held_send_backs()

    assert await give_back(broker, assignment, messages, progress) is Fate.GIVEN_BACK

    assert broker.asked == [
        (QUEUE, 3, [5, 6], [1, 5], {
            "delay_level": 4, "max_attempts": 9, "commit_offset": stored, "reason": "r" * 200,
        })
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (BadDelay("level 99"), Fate.REFUSED),
        (RequestTimeout("late"), Fate.UNKNOWN),
        (ConnectionLost("cut"), Fate.UNKNOWN),
        (Fenced("gone"), Fate.LOST),
    ],
)
async def test_an_error_says_whether_the_messages_are_still_ours(error: Exception, fate: Fate) -> None:
    assignment, messages = held_send_backs()

    assert await give_back(Broker(error), assignment, messages) is fate

    assert assignment.lease.lost is (fate is Fate.LOST)


async def test_nothing_is_asked_of_a_broker_that_may_have_lost_the_messages() -> None:
    """It may have given their offsets to others, which must not be taken for these."""
    broker, (assignment, messages) = Broker([3, 3]), held_send_backs(agreed=6)

    assert await give_back(broker, assignment, messages) is Fate.UNKNOWN
    assert broker.asked == []


async def test_nothing_is_asked_under_a_lease_that_is_lost() -> None:
    broker, (assignment, messages) = Broker([3, 3]), held_send_backs()
    assignment.lose("reset")

    assert await give_back(broker, assignment, messages) is Fate.LOST
    assert broker.asked == []


async def test_dead_letters_are_told_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rmq.consumer")
    assignment, messages = held_send_backs()

    await give_back(Broker([3, DEAD]), assignment, messages)

    assert "message.dead_lettered" in caplog.text
    assert "message.sent_back" in caplog.text
    assert "queue_offset=6" in caplog.text
