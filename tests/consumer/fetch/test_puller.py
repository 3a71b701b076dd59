"""
Pulling: from the right place, never too much, and with the progress on board.

Answers of a broker that filters: what it left out is passed, in its turn, and nothing else is.

Compressed batches are consumed as others are, and take no more memory than others do.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from rmq.client import Producer
from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus, StoredMessage
from rmq.consumer.config import ConsumerConfig
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.fetch.puller import FEW, Intake, PullContext
from rmq.consumer.group.assignment import Assignment, LeaseBelief, LogGap, Stopped, gap_of
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch.compression import CODECS
from rmq.wire.batch.tags import ALL
from rmq.wire.errors import (
    Damaged,
    Fenced,
    Internal,
    LogTruncated,
    MessagesLost,
    OffsetOutOfRange,
    OtherHistory,
    RequestTimeout,
)
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, Op, PullQueue, PullResult

from ..fake_broker import FakeBroker
from ..filtering_broker import FilteringBroker
from ..recorder import COMMIT, QUEUE, SUCCESS, SUSPEND, Make, Messages, Recorder, run_for
from rigs.batches import every_codec

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


Make_plain = Callable[..., Consumer]


def asked(broker: FakeBroker) -> list[int]:
    return [request.payload.queues[0].queue_offset for request in broker.sent(Op.PULL)]


async def test_the_lock_comes_before_the_first_pull_which_begins_at_the_committed_offset(
    broker: FakeBroker, make: Make_plain
) -> None:
    broker.create("t", bodies=[b"x"] * 10)
    broker.offsets["g", QUEUE] = 7
    listener = Recorder()

    await run_for(1, make(listener, topics={"t": "*"}))

    kinds = [request.op for request in broker.requests]
    assert kinds.index(Op.ACQUIRE) < kinds.index(Op.PULL)
    assert asked(broker)[0] == 7
    assert broker.sent(Op.PULL)[0].payload.queues[0].epoch == 1
    assert listener.offsets == [7, 8, 9]


async def test_an_empty_queue_is_held_15_s_at_a_time(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t")

    await run_for(46, make(topics={"t": "*"}))

    assert broker.times(Op.PULL) == [0.0, 15.0, 30.0, 45.0]


async def test_a_pull_without_an_answer_is_asked_again_after_30_s(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t")
    hold = broker.hold_request(Op.PULL)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(31)
        assert broker.times(Op.PULL) == [0.0, 30.0]
        hold.let_go.set()


async def test_pulls_that_found_something_are_followed_by_the_interval_and_others_are_not(
    broker: FakeBroker, make: Make_plain
) -> None:
    broker.create("t")
    for _ in range(3):
        broker.send("t", 0, b"x")
    listener = Recorder()

    await run_for(40, make(listener, topics={"t": "*"}, pull_interval_s=2.0, pull_bytes=1))

    assert broker.times(Op.PULL) == [0.0, 2.0, 4.0, 6.0, 21.0, 36.0]
    assert listener.times == [0.0, 2.0, 4.0]


async def test_pulls_that_found_something_are_counted_with_their_response_time(
    broker: FakeBroker, make: Make_plain
) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(2)
        broker.send("t", 0, b"a", b"b", b"c")
        await asyncio.sleep(1)
        broker.send("t", 0, b"d")
        await asyncio.sleep(20)  # and one comes back empty
        assert consumer._runtime is not None
        pulled = consumer._runtime.statistics.read(23.0)["t@g"].pulled

    assert (pulled.total, pulled.calls) == (4, 2)
    assert pulled.mean_s == pytest.approx((2 + 1) / 2)


async def test_a_message_is_delivered_when_it_arrives(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t")
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(7)
        broker.send("t", 0, b"a")
        await asyncio.sleep(1)

    assert listener.times == [7.0]


@pytest.mark.parametrize(("count", "listener_first"), [(1, True), (FEW, True), (FEW + 1, False)])
async def test_a_listener_that_was_idle_has_few_messages_before_more_are_asked_for(
    broker: FakeBroker, make: Make_plain, count: int, listener_first: bool
) -> None:
    broker.create("t")
    pulls_at_call: list[int] = []

    async def listener(messages: list[StoredMessage], context: ConsumeContext) -> ConsumeStatus:
        pulls_at_call.append(len(broker.sent(Op.PULL)))
        return ConsumeStatus.SUCCESS

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.send("t", 0, *[b"x"] * count)
        await asyncio.sleep(1)

    assert pulls_at_call[0] == (1 if listener_first else 2)


async def test_progress_rides_on_pulls_and_within_200_ms_where_none_goes(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t")
    listener = Recorder(takes_s=0.5)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.send("t", 0, b"a")
        await asyncio.sleep(0.75)
        assert broker.offsets["g", QUEUE] == 1
        broker.send("t", 0, b"b")
        await asyncio.sleep(1)
        broker.send("t", 0, b"c")
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 3

    # Where it began rode on the first pull; the rest came while a pull was parked.
    assert broker.sent(Op.PULL)[0].payload.queues[0].commit_offset == 0
    commits = [request.payload.entries[0].queue_offset for request in broker.sent(Op.COMMIT)]
    assert commits == [1, 2, 3]
    done = [1.5, 2.25, 3.25]
    assert all(0 < at - end <= 0.2 for at, end in zip(broker.times(Op.COMMIT), done, strict=True))


async def test_idle_consumers_send_nothing_but_pulls_and_heartbeats(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(5)
        before = len(broker.requests)
        await asyncio.sleep(60)

    kinds = [request.op for request in broker.requests[before:-1]]
    assert set(kinds) == {Op.PULL, Op.JOIN, Op.RENEW}
    assert len(kinds) == 4 + 2 + 3


async def test_the_first_pull_of_a_new_lease_begins_where_the_owner_before_has_committed_meanwhile(
    broker: FakeBroker, make: Make_plain
) -> None:
    broker.create("t", bodies=[b"x"] * 10)
    broker.offsets["g", QUEUE] = 2
    broker.give("g", QUEUE, "owner")
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)  # asked for the lock in vain
        assert broker.sent(Op.PULL) == []
        broker.offsets["g", QUEUE] = 6
        broker.free("g", QUEUE)
        await asyncio.sleep(1)

    assert asked(broker)[0] == 6
    assert listener.offsets == [6, 7, 8, 9]


async def test_a_queue_that_is_given_away_is_not_pulled_any_more_and_nobody_is_told(
    broker: FakeBroker, make: Make_plain, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.set_members("g", "a-other")  # it comes first in the list: the queue is theirs
        await asyncio.sleep(100)

    assert broker.times(Op.PULL) == [0.0]
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_fenced_pull_drops_the_assignment(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(1)
        broker.give("g", QUEUE, "thief")  # which answers the parked pull
        await asyncio.sleep(0.5)
        assert consumer.assignment == []
        broker.free("g", QUEUE)
        await asyncio.sleep(0.5)
        assert consumer.assignment == [QUEUE]


@pytest.mark.parametrize("refused", [True, False])
async def test_a_pull_refused_as_a_whole_is_tried_again_or_fenced(
    broker: FakeBroker, make: Make_plain, refused: bool
) -> None:
    broker.create("t", bodies=[b"a"])
    broker.refuse[Op.PULL] = [Internal("x") if refused else Fenced("x")]
    listener = Recorder()

    await run_for(5, make(listener, topics={"t": "*"}))

    assert listener.times == [3.0 if refused else 0.0]
    assert len(broker.sent(Op.ACQUIRE)) == (1 if refused else 2)


async def test_an_offset_behind_the_log_goes_on_at_its_end(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t", bodies=[b"x"] * 5)
    broker.offsets["g", QUEUE] = 9
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.send("t", 0, b"a")
        await asyncio.sleep(1)

        # The queue has recovered by itself, and the group was not rewound.
        assert broker.offsets["g", QUEUE] >= 6

    assert asked(broker)[:2] == [9, 5]
    assert listener.offsets == [5]


class Scripted(FakeBroker):
    """A broker whose first pulls are answered from a script."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = list(answers)

    async def _pull(self, connection: Any, pull: Any) -> Any:
        if self.answers:
            answer = self.answers.pop(0)
            return [] if answer is None else [answer]
        return await super()._pull(connection, pull)


@pytest.mark.parametrize(
    ("answer", "delivered", "at"),
    [
        (PullResult(0, Damaged.code, 0, 0, 4, b"", "rot"), [0, 1, 2, 3], 3.0),
        (PullResult(0, OffsetOutOfRange.code, 0, 2, 4, b"", "gone"), [2, 3], 0.0),
        (PullResult(0, Internal.code, 0, 0, 4, b"", "log id"), [0, 1, 2, 3], 3.0),
        (PullResult(0, 0, 4, 0, 4, b"garbage"), [0, 1, 2, 3], 3.0),
        (PullResult(0, 0, 0, 0, 4, b""), [0, 1, 2, 3], 3.0),
        (None, [0, 1, 2, 3], 0.0),
    ],
    ids=["damaged here", "out of range", "internal", "bad batch", "nothing", "no result"],
)
async def test_odd_answers(make: Make_plain, answer: Any, delivered: list[int], at: float) -> None:
    broker = Scripted(answer)
    broker.create("t", bodies=[b"a", b"b", b"c", b"d"])
    listener = Recorder()
    consumer = Consumer(
        "fake:1", group="g", listener=listener, topics={"t": "*"}, connect=broker.connect,
        now=asyncio.get_running_loop().time,
    )  # fmt: skip

    async with consumer:
        await asyncio.sleep(5)

    assert listener.offsets == delivered
    assert listener.times[0] == at


async def test_progress_of_a_pull_that_failed_is_sent_again(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t", bodies=[b"a"])
    listener = Recorder(takes_s=0.1)

    async with make(listener, topics={"t": "*"}, pull_wait_s=0.15, commit_every_s=5):
        await asyncio.sleep(0.05)
        broker.refuse[Op.PULL] = []
        await asyncio.sleep(0.06)
        broker.refuse[Op.PULL] = [RequestTimeout("x")]  # the one that carries offset 1
        await asyncio.sleep(0.2)
        carried = [request.payload.queues[0].commit_offset for request in broker.sent(Op.PULL)]
        assert carried.count(1) == 2
        assert NO_OFFSET in carried
        assert broker.offsets["g", QUEUE] == 1


async def test_no_progress_is_sent_while_the_lease_is_not_believed_in(broker: FakeBroker, make: Make_plain) -> None:
    broker.create("t")
    broker.refuse[Op.RENEW] = [RequestTimeout("x")] * 3
    listener = Recorder(takes_s=5.0)

    async with make(listener, topics={"t": "*"}, pull_wait_s=0.5):
        await asyncio.sleep(28.5)
        broker.send("t", 0, b"a")
        await asyncio.sleep(7.9)
        # The belief ended at 30 s, the call at 33.5; the renewals asked for at 33.51 and before came to nothing.
        assert len(listener.ended) == 1
        assert broker.offsets["g", QUEUE] == 0
        await asyncio.sleep(0.6)
        assert broker.offsets["g", QUEUE] == 1


@pytest.mark.parametrize("foreign", ["hole", "topic", "queue"])
async def test_a_batch_that_is_not_what_was_asked_for_is_refused_and_asked_for_again(
    make: Make_plain, foreign: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Scripted()
    for topic in ("t", "u"):
        broker.create(topic, 2)
        for queue_id in (0, 1):
            broker.send(topic, queue_id, b"a")
            broker.send(topic, queue_id, b"b")
    log, index = {"hole": (QUEUE, 1), "topic": (MessageQueue("u", 0), 0), "queue": (MessageQueue("t", 1), 0)}[foreign]
    broker.answers = [PullResult(0, 0, 2, 0, 2, broker.logs[log][index].data)]
    broker.topics = {"t": 1}
    listener = Recorder()
    consumer = Consumer(
        "fake:1", group="g", listener=listener, topics={"t": "*"}, connect=broker.connect,
        now=asyncio.get_running_loop().time,
    )  # fmt: skip

    async with consumer:
        await asyncio.sleep(5)

    assert listener.offsets == [0, 1]
    assert listener.times[0] == 3.0
    assert "pull.bad_batch" in caplog.text


@pytest_asyncio.fixture
async def broker_intake() -> FilteringBroker:
    broker_intake = FilteringBroker()
    broker_intake.create("t")
    return broker_intake


def consume(broker_intake: FilteringBroker, listener: Any, expression: str = "a", **settings: Any) -> Consumer:
    return Consumer(
        "fake:1", group="g", listener=listener, topics={"t": expression}, connect=broker_intake.connect,
        now=asyncio.get_running_loop().time, **settings,
    )  # fmt: skip


def send(broker_intake: FilteringBroker, *tags: str) -> None:
    """One batch for each word, with a message for each letter, which is its tag."""
    for word in tags:
        broker_intake.send("t", 0, *[b"x"] * len(word), tags=list(word))


def asked_intake(broker_intake: FilteringBroker) -> list[int]:
    return [request.payload.queues[0].queue_offset for request in broker_intake.sent(Op.PULL)]


def carried(broker_intake: FilteringBroker) -> list[int]:
    return [request.payload.queues[0].commit_offset for request in broker_intake.sent(Op.PULL)]


@pytest.mark.parametrize(
    ("batches", "wanted"),
    [
        (["bb", "a"], [2]),
        (["a", "bb", "a"], [0, 3]),
        (["a", "bb"], [0]),
        (["bb", "ab", "b", "ba", "bbb"], [2, 6]),
        (["bb", "b"], []),
        (["b"] * 50, []),
    ],
    ids=["before", "between", "behind", "everywhere", "only", "many"],
)
async def test_what_the_broker_left_out_is_passed_and_the_lag_goes_to_0(
    broker_intake: FilteringBroker, batches: list[str], wanted: list[int]
) -> None:
    send(broker_intake, *batches)
    listener = Recorder()

    async with consume(broker_intake, listener):
        await asyncio.sleep(16)
        assert broker_intake.offsets["g", QUEUE] == broker_intake.max_offset(QUEUE)

    assert listener.offsets == wanted


async def test_progress_passes_what_was_left_out_only_when_all_before_it_is_done(
    broker_intake: FilteringBroker,
) -> None:
    send(broker_intake, "a", "bbb", "a", "bb")
    listener = Recorder(takes_s=5.0)

    async with consume(broker_intake, listener):
        await asyncio.sleep(4.9)
        assert broker_intake.offsets["g", QUEUE] == 0
        await asyncio.sleep(0.4)
        assert broker_intake.offsets["g", QUEUE] == 4
        await asyncio.sleep(5)
        assert broker_intake.offsets["g", QUEUE] == 7

    assert listener.times == [0.0, 5.0]


async def test_however_far_apart_the_messages_lie_an_ordered_queue_is_pulled_further(
    broker_intake: FilteringBroker,
) -> None:
    """RocketMQ: a span of more than 2000 stops pulls of the concurrent mode only."""
    send(broker_intake, "a", "b" * 3000, "a")

    async with consume(broker_intake, Recorder(takes_s=100.0), drain_s=0.0):
        await asyncio.sleep(1)
        assert asked_intake(broker_intake) == [0, 3002]


async def test_an_empty_answer_that_moves_on_is_progress_that_rides_on_the_next_pull(
    broker_intake: FilteringBroker,
) -> None:
    """RocketMQ: NO_NEW and NO_MATCHED with an empty process queue advance the stored offset."""
    async with consume(broker_intake, Recorder()):
        await asyncio.sleep(1)
        send(broker_intake, "b", "bb")  # which does not wake the parked pull
        await asyncio.sleep(13.9)
        assert broker_intake.times(Op.PULL) == [0.0]
        await asyncio.sleep(0.2)

        assert broker_intake.times(Op.PULL) == [0.0, 15.0]
        assert (asked_intake(broker_intake)[-1], carried(broker_intake)[-1]) == (3, 3)
        assert broker_intake.offsets["g", QUEUE] == 3


async def test_an_empty_answer_that_moves_on_is_no_progress_over_messages_that_are_not_done(
    broker_intake: FilteringBroker,
) -> None:
    send(broker_intake, "a")

    async with consume(broker_intake, Recorder(takes_s=100.0), drain_s=0.0):
        await asyncio.sleep(1)
        send(broker_intake, "b", "bb")
        await asyncio.sleep(20)

        assert asked_intake(broker_intake)[-1] == 4
        assert broker_intake.offsets["g", QUEUE] == 0


class ScriptedIntake(FilteringBroker):
    """A broker whose first pulls are answered from a script."""

    def __init__(self, *answers: PullResult) -> None:
        super().__init__()
        self.answers = list(answers)
        self.create("t")

    async def _pull(self, connection: Any, pull: Any) -> Any:
        return [self.answers.pop(0)] if self.answers else await super()._pull(connection, pull)


@pytest.mark.parametrize(
    ("expression", "status", "next_offset", "at", "first"),
    [
        ("a", 0, 3, 0.0, 3),  # filtered
        ("a", EMPTY, 3, 0.0, 3),
        ("a", 0, 0, 3.0, 0),  # nothing at all: not asked for again at once
        ("a", 0, 6, 3.0, 0),  # behind the end of the queue: not believed
        ("a", EMPTY, 6, 0.0, 0),
        ("*", 0, 3, 3.0, 0),  # every message is wanted: nothing can be filtered
        ("*", EMPTY, 3, 0.0, 0),
    ],
)
async def test_an_answer_without_batches_moves_on_only_with_a_filter_and_then_without_a_pause(
    expression: str, status: int, next_offset: int, at: float, first: int
) -> None:
    broker_intake = ScriptedIntake(PullResult(0, status, next_offset, 0, 5, b""))
    send(broker_intake, "aaaaa")
    listener = Recorder()

    async with consume(broker_intake, listener, expression):
        await asyncio.sleep(4)

    assert (listener.times[0], asked_intake(broker_intake)[1]) == (at, first)
    assert listener.offsets == list(range(first, 5))


async def test_a_batch_behind_the_end_of_its_answer_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    broker_intake = ScriptedIntake()
    send(broker_intake, "a", "bb", "a")
    broker_intake.answers = [PullResult(0, 0, 2, 0, 4, broker_intake.logs[QUEUE][2].data)]
    listener = Recorder()

    async with consume(broker_intake, listener):
        await asyncio.sleep(4)

    assert listener.offsets == [0, 3]
    assert "pull.bad_batch" in caplog.text


async def test_tags_that_the_broker_cannot_tell_apart_are_told_apart_here(broker_intake: FilteringBroker) -> None:
    """RocketMQ filters by the hash of a tag: messages of another tag with the same hash arrive."""
    broker_intake.colliding = {"c"}
    send(broker_intake, "c", "a", "cc", "ac", "c")
    listener = Recorder()

    async with consume(broker_intake, listener):
        await asyncio.sleep(1)
        assert broker_intake.offsets["g", QUEUE] == 7

    assert listener.offsets == [1, 4]


@pytest.mark.parametrize("seed", range(40))
async def test_any_log_is_delivered_exactly_and_leaves_no_lag(broker_intake: FilteringBroker, seed: int) -> None:
    chance = Random(seed)
    wanted = chance.choice(["a", "a || b", "*"])
    broker_intake.colliding = {"c"} if chance.random() < 0.5 else set()
    tags = ""

    def grow() -> None:
        nonlocal tags
        for _ in range(chance.randrange(12)):
            word = "".join(chance.choices("abcd", [chance.random() for _ in "abcd"], k=chance.randint(1, 6)))
            send(broker_intake, word)
            tags += word

    grow()
    listener = Recorder(takes_s=chance.choice([0.0, 0.01]))
    settings = {"pull_bytes": chance.choice([1, 400, 1 << 20]), "cache_messages": chance.choice([1, 5, 1000])}
    settings |= {"batch": chance.choice([1, 3, 32]), "pull_when_drained": chance.random() < 0.3}
    async with consume(broker_intake, listener, wanted, **settings):
        for _ in range(3):
            await asyncio.sleep(chance.choice([0.0, 0.05, 16.0]))
            grow()
            if chance.random() < 0.3:
                broker_intake.crash(QUEUE, batches=len(broker_intake.logs[QUEUE]))  # and nothing is lost
                broker_intake.come_up()
        await asyncio.sleep(40)
        assert broker_intake.offsets.get(("g", QUEUE), 0) == len(tags)

    assert listener.offsets == [i for i, tag in enumerate(tags) if wanted == "*" or tag in wanted]


# A subscription that changes while a pull is under way
@pytest.mark.parametrize(("expression", "wanted"), [("b", [0, 1, 2]), ("*", [0, 1, 2]), ("a", [])])
async def test_what_was_left_out_for_another_subscription_is_asked_for_again(
    broker_intake: FilteringBroker, expression: str, wanted: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    listener = Recorder()
    consumer = consume(broker_intake, listener)

    async with consumer:
        await asyncio.sleep(1)
        send(broker_intake, "b", "bb")
        hold = broker_intake.hold_reply(Op.PULL)
        await hold.reached.wait()  # at 15 s: nothing for "a"
        consumer.subscribe("t", expression)
        await asyncio.sleep(0.5)
        hold.let_go.set()
        await asyncio.sleep(0.5)

    assert listener.offsets == wanted
    assert "pull.bad_batch" not in caplog.text


async def test_an_answer_that_held_nothing_for_another_subscription_is_no_reason_to_wait() -> None:
    broker_intake, listener = ScriptedIntake(PullResult(0, 0, 3, 0, 3, b"")), Recorder()
    send(broker_intake, "bbb")
    consumer, hold = consume(broker_intake, listener), broker_intake.hold_reply(Op.PULL)

    async with consumer:
        await hold.reached.wait()
        consumer.subscribe("t", "b")
        await asyncio.sleep(0.5)
        hold.let_go.set()
        await asyncio.sleep(0.5)

    assert listener.times == [0.5] * 3


async def test_batches_up_to_the_first_hole_are_used_when_the_subscription_changed(
    broker_intake: FilteringBroker,
) -> None:
    send(broker_intake, "ab", "b", "a")
    listener = Recorder()
    consumer = consume(broker_intake, listener)
    hold = broker_intake.hold_reply(Op.PULL)

    async with consumer:
        await hold.reached.wait()
        consumer.subscribe("t", "*")
        await asyncio.sleep(0.5)
        hold.let_go.set()
        await asyncio.sleep(0.5)

    assert listener.offsets == [0, 1, 2, 3]
    assert asked_intake(broker_intake)[:2] == [0, 2]


# A log that lost what was passed
@pytest.mark.parametrize("lost", [1, 2])
async def test_a_broker_that_lost_what_was_passed_over_delivers_what_took_its_place(
    broker_intake: FilteringBroker, lost: int
) -> None:
    send(broker_intake, "a", "b", "b")
    listener = Recorder()

    async with consume(broker_intake, listener):
        await asyncio.sleep(16)
        assert asked_intake(broker_intake)[-1] == 3
        broker_intake.crash(QUEUE, batches=3 - lost)
        send(broker_intake, *["a"] * (lost + 1))
        broker_intake.come_up()
        await asyncio.sleep(1)

    assert listener.offsets == [0, *range(3 - lost, 4)]


async def test_a_broker_that_lost_nothing_of_what_was_passed_over_goes_on(broker_intake: FilteringBroker) -> None:
    send(broker_intake, "a", "b", "b")
    listener = Recorder()

    async with consume(broker_intake, listener):
        await asyncio.sleep(16)
        broker_intake.crash(QUEUE, batches=3)
        send(broker_intake, "a")
        broker_intake.come_up()
        await asyncio.sleep(1)

    assert listener.offsets == [0, 3]


@pytest.mark.parametrize(
    ("batches", "selected", "left_out"),
    [([], 0, 0), (["bb", "b"], 0, 3), (["bb", "a", "b"], 1, 3), (["ab"], 2, 0)],
    ids=["nothing was sent", "no match", "one match", "a batch that came counts whole"],
)
async def test_what_a_filter_selects_and_leaves_out_is_counted(
    broker_intake: FilteringBroker, batches: list[str], selected: int, left_out: int
) -> None:
    send(broker_intake, *batches)
    async with consume(broker_intake, Recorder()) as consumer:
        await asyncio.sleep(20)
        (queue,) = consumer.running_info()["queues"]

    assert (queue["selected"], queue["left_out"]) == (selected, left_out)


async def test_another_filter_counts_anew_and_without_one_nothing_is_counted(broker_intake: FilteringBroker) -> None:
    send(broker_intake, "bb")
    async with consume(broker_intake, Recorder()) as consumer:
        await asyncio.sleep(20)
        consumer.subscribe("t", "c")
        await asyncio.sleep(40)
        send(broker_intake, "b")
        await asyncio.sleep(40)
        (queue,) = consumer.running_info()["queues"]
        assert (queue["selected"], queue["left_out"]) == (0, 1)

    async with consume(broker_intake, Recorder(), "*") as consumer:
        await asyncio.sleep(20)
        (queue,) = consumer.running_info()["queues"]
        assert (queue["selected"], queue["left_out"]) == (0, 0)


async def test_a_member_that_skips_gaps_stops_at_messages_of_another_history() -> None:
    assignment = Assignment(LeaseBelief(QUEUE, 0, 0.0), ProcessQueue(15), on_lost=lambda *_: None, topic_generation=1)
    unused: Any = None
    broker_intake: Any = SimpleNamespace(now=lambda: 0.0)
    config = ConsumerConfig(group="g", on_gap="skip")
    intake = Intake(config, broker_intake, topics=unused, progressed=unused, room=unused)

    await intake.take_in(assignment, PullResult(0, OtherHistory.code, 5, 0, 30, b""), PullContext(1, ALL))

    assert assignment.stopped is not None and assignment.stopped.gap == LogGap(OtherHistory.code, 5, 15)


MIB = 1 << 20


ZLIB = CODECS.by_name("zlib")


@every_codec
async def test_messages_of_a_producer_that_compresses_are_delivered_in_order(name: str) -> None:
    bodies = [b"%d " % i * 50 for i in range(3000)]
    seen: list[bytes] = []

    async def listener(messages: Messages, context: Any) -> ConsumeStatus:
        seen.extend(message.body for message in messages)
        return ConsumeStatus.SUCCESS

    async with InMemoryBroker(min_free_bytes=0) as broker:
        async with Producer(broker.address, compression=name) as producer:
            await producer.send_bodies("orders", bodies, queue_id=0)
        now = asyncio.get_running_loop().time
        async with Consumer(
            broker.address, group="g", listener=listener, topics={"orders": "*"}, now=now, orderly=True
        ):
            await asyncio.sleep(2)

    assert seen == bodies


async def test_what_was_pulled_is_unpacked_only_as_there_is_room(broker: FakeBroker, make: Make) -> None:
    """One pull may hold a thousand times the bytes that were asked for."""
    broker.create("t")
    for _ in range(60):
        broker.send("t", 0, bytes(MIB), codec=ZLIB)
    listener = Recorder(takes_s=0.1)

    tracemalloc.start()
    try:
        async with make(listener, topics={"t": "*"}, cache_bytes=3 * MIB):
            await asyncio.sleep(20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert listener.offsets == list(range(60))
    assert listener.times[-1] == pytest.approx(listener.times[0] + 5.9, abs=0.2), "never left waiting for messages"
    asked = [request.payload.queues[0].queue_offset for request in broker.sent(Op.PULL)]
    assert asked == [0, 60], "all of the first answer was used"
    assert peak < 10 * MIB


async def test_a_listener_that_commits_late_gets_more_than_there_is_room_for(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    for _ in range(12):
        broker.send("t", 0, bytes(10_000), codec=ZLIB)
    calls = 0

    async def listener(messages: Messages, context: Any) -> ConsumeStatus:
        nonlocal calls
        calls += 1
        context.auto_commit = False
        return ConsumeStatus.SUCCESS if calls < 12 else ConsumeStatus.COMMIT

    async with make(listener, topics={"t": "*"}, cache_bytes=20_000):
        await asyncio.sleep(1)
        assert calls == 12


async def test_a_stop_does_not_wait_for_what_is_still_packed(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    for _ in range(20):
        broker.send("t", 0, bytes(10_000), codec=ZLIB)
    listener = Recorder(takes_s=1.0)

    await run_for(2.5, make(listener, topics={"t": "*"}, cache_bytes=20_000))

    assert listener.offsets == [0, 1, 2]


# A broker that lost the end of its log: go back to what both have, never beyond, and pass no message by progres


class Bodies(Recorder):
    """A recorder that also keeps what it was given, and whether each call was told that its queue is lost."""

    def __init__(self, *script: Any, takes_s: float = 0.0) -> None:
        super().__init__(*script, takes_s=takes_s)
        self.got: list[tuple[int, bytes]] = []
        self.epochs: list[int] = []
        self.lost: list[bool] = []

    async def __call__(self, messages: Messages, context: ConsumeContext) -> Any:
        self.got += [(message.queue_offset, message.body) for message in messages]
        self.epochs.append(context.epoch)
        try:
            return await super().__call__(messages, context)
        finally:
            self.lost.append(bool(context.lost))


def fill(broker: FakeBroker, count: int, body: bytes = b"old") -> None:
    for _ in range(count):
        broker.send("t", 0, body)


def pulls(broker: FakeBroker, since: float = 0.0) -> list[PullQueue]:
    return [request.payload.queues[0] for request in broker.sent(Op.PULL) if request.at >= since]


def progress(broker: FakeBroker, since: float) -> list[int]:
    """Every progress that was sent from some time on, however it travelled."""
    sent = []
    for request in broker.requests:
        if request.at < since:
            continue
        if request.op is Op.PULL:
            sent += [queue.commit_offset for queue in request.payload.queues]
        elif request.op is Op.COMMIT:
            sent += [entry.queue_offset for entry in request.payload.entries]
        elif request.op in (Op.RELEASE, Op.LEAVE):
            sent += [lease.queue_offset for lease in request.payload.leases]
    return [offset for offset in sent if offset != NO_OFFSET]


async def test_pulls_name_the_log_epoch_of_the_last_message_that_was_fetched(broker: FakeBroker, make: Make) -> None:
    broker.log_epoch = 7
    broker.create("t")
    fill(broker, 2)
    broker.log_epoch = 8

    async with make(topics={"t": "*"}, pull_bytes=1):
        await asyncio.sleep(1)
        broker.send("t", 0, b"x")
        await asyncio.sleep(1)

    assert [pull.log_epoch for pull in pulls(broker)] == [0, 7, 7, 8]


async def test_what_is_cached_and_lost_is_discarded_and_the_call_that_runs_before_it_counts(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")
    fill(broker, 10)
    listener = Bodies(takes_s=1.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(2.5)  # the third call runs
        broker.crash(QUEUE, 4)
        broker.come_up()
        await asyncio.sleep(3)
        assert listener.offsets == [0, 1, 2, 3]
        fill(broker, 1, b"new")
        await asyncio.sleep(2)

    assert listener.got[3:] == [(3, b"old"), (4, b"new")]
    assert not any(listener.lost)
    assert len(broker.sent(Op.ACQUIRE)) == 1
    assert broker.offsets["g", QUEUE] == 5
    assert "log.truncated queue=t/0 from_offset=4 to_offset=9 count=6 delivered=0" in caplog.text


@pytest.mark.parametrize("regrown", [0, 3, 20], ids=["shorter", "shorter than we were", "longer than we were"])
async def test_progress_of_lost_messages_never_passes_those_that_get_their_offsets(
    broker: FakeBroker, make: Make, regrown: int
) -> None:
    broker.create("t")
    fill(broker, 10)
    listener = Bodies()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)
        assert broker.offsets["g", QUEUE] == 10
        broker.crash(QUEUE, 4)
        fill(broker, regrown, b"new")
        broker.come_up()
        await asyncio.sleep(1)
        fill(broker, 30 - regrown, b"new")
        await asyncio.sleep(1)

    assert listener.got == [(i, b"old") for i in range(10)] + [(i, b"new") for i in range(4, 34)]
    assert broker.offsets["g", QUEUE] == 34
    sent = progress(broker, since=5.0)
    assert sent == sorted(sent)
    assert sent[0] == 4


async def test_nothing_is_reported_to_a_broker_that_started_again_before_a_pull_has_shown_that_both_agree(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    fill(broker, 10)
    listener = Bodies(takes_s=1.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5.9)
        broker.crash(QUEUE, 10)
        broker.offsets["g", QUEUE] = 3  # what it knew last was lost
        broker.come_up()
        hold = broker.hold_request(Op.PULL)
        await asyncio.sleep(2)
        assert progress(broker, since=5.9) == []
        hold.let_go.set()
        await asyncio.sleep(0.3)
        assert broker.offsets["g", QUEUE] == 8
        await asyncio.sleep(3)

    assert listener.offsets == list(range(10))
    asked = broker.sent(Op.PULL)[1:3]
    assert [request.payload.wait_ms for request in asked] == [15_000, 0]


async def test_a_stop_before_both_are_known_to_agree_gives_the_queue_back_without_progress(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    fill(broker, 4)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(5)
        broker.crash(QUEUE, 2)
        fill(broker, 10, b"new")
        broker.come_up()
        broker.hold_request(Op.PULL)
        await asyncio.sleep(0.1)

    assert progress(broker, since=5.0) == []
    assert broker.offsets["g", QUEUE] == 2
    assert broker.holder("g", QUEUE) is None


@pytest.mark.parametrize("answer", [SUCCESS, SUSPEND, ValueError("x")])
async def test_a_call_for_a_lost_message_is_told_and_whatever_it_answers_counts_for_nothing(
    broker: FakeBroker, make: Make, answer: Any
) -> None:
    broker.create("t")
    fill(broker, 10)
    listener = Bodies(*[SUCCESS] * 5, answer, takes_s=1.0)

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5.5)  # the sixth call runs
        broker.crash(QUEUE, 4)
        fill(broker, 2, b"new")
        broker.come_up()
        await asyncio.sleep(4)

    assert listener.got[5:] == [(5, b"old"), (4, b"new"), (5, b"new")]
    assert listener.lost == [False] * 5 + [True, False, False]
    assert listener.epochs == [1] * 6 + [2, 2]
    assert listener.most == 1
    assert listener.attempts == [1] * 8
    assert broker.sent(Op.ATTEMPT) == []
    assert broker.offsets["g", QUEUE] == 6


async def test_lost_messages_that_the_listener_has_not_committed_are_given_again_from_the_committed_offset(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    fill(broker, 6)
    got: list[tuple[int, bytes]] = []

    async def listener(messages: Messages, context: ConsumeContext) -> Any:
        context.auto_commit = False
        got.extend((message.queue_offset, message.body) for message in messages)
        return COMMIT if messages[-1].queue_offset == 1 or messages[-1].body == b"new" else SUCCESS

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)
        assert broker.offsets["g", QUEUE] == 2
        broker.crash(QUEUE, 4)
        fill(broker, 1, b"new")
        broker.come_up()
        await asyncio.sleep(2)

    assert got[6:] == [(2, b"old"), (3, b"old"), (4, b"new")]
    assert broker.offsets["g", QUEUE] == 5


async def test_a_lost_message_that_waits_to_be_tried_again_is_let_go_of(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    fill(broker, 3)
    listener = Bodies(SUCCESS, SUCCESS, SUSPEND, SUSPEND)

    async with make(listener, topics={"t": "*"}, suspend_s=2.0):
        await asyncio.sleep(5)
        broker.crash(QUEUE, 2)
        fill(broker, 1, b"new")
        broker.come_up()
        await asyncio.sleep(5)

    assert listener.got[-1] == (2, b"new")
    assert listener.got.count((2, b"old")) == 2
    assert broker.offsets["g", QUEUE] == 3
    assert listener.attempts[-1] == 1


async def test_a_reader_that_saw_several_starts_goes_back_as_far_as_it_takes(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    fill(broker, 4)
    listener = Bodies()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.crash(QUEUE, 4)
        broker.come_up()
        fill(broker, 4, b"second")
        await asyncio.sleep(1)
        broker.crash(QUEUE, 2)  # the second start and a part of the first are gone
        fill(broker, 8, b"third")
        broker.come_up()
        await asyncio.sleep(1)

    assert listener.got[8:] == [(i, b"third") for i in range(2, 10)]
    assert broker.offsets["g", QUEUE] == 10


async def test_a_full_cache_does_not_keep_a_consumer_from_asking_whether_both_agree(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    fill(broker, 10)
    listener = Bodies(takes_s=100.0)

    async with make(listener, topics={"t": "*"}, cache_messages=3, drain_s=0):
        await asyncio.sleep(5)
        before = len(broker.sent(Op.PULL))
        broker.crash(QUEUE, 2)
        broker.come_up()
        await asyncio.sleep(1)
        asked = broker.sent(Op.PULL)[before:]
        assert [(r.payload.wait_ms, r.payload.max_bytes, r.payload.queues[0].queue_offset) for r in asked][:2] == [
            (0, 1, 10),
            (0, 1 << 20, 2),
        ]


async def test_a_queue_that_waits_at_a_gap_asks_a_broker_that_started_again_at_once(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    fill(broker, 10)
    broker.damaged[QUEUE] = range(3, 6)
    listener = Bodies()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(40)  # it asks again at 65 s
        broker.crash(QUEUE, 2)
        del broker.damaged[QUEUE]
        fill(broker, 1, b"new")
        broker.come_up()
        await asyncio.sleep(1)

    assert listener.got[-1] == (2, b"new")
    assert listener.times[-1] == 40.0


async def test_progress_that_a_crash_took_from_the_broker_is_reported_again_also_by_a_queue_that_waits_at_a_gap(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    fill(broker, 10)
    broker.damaged[QUEUE] = range(3, 6)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(4)  # no pull is under way
        assert broker.offsets["g", QUEUE] == 3
        broker.crash(QUEUE, 10)
        broker.offsets["g", QUEUE] = 1
        broker.come_up()
        await asyncio.sleep(0.5)
        assert broker.offsets["g", QUEUE] == 3


async def test_an_answer_that_leads_nowhere_is_asked_for_again_after_a_pause() -> None:
    broker = Scripted(PullResult(0, LogTruncated.code, 3, 0, 4, b"", "truncated"))
    broker.create("t")
    fill(broker, 4)
    listener = Bodies()
    consumer = Consumer(
        "fake:1", group="g", listener=listener, topics={"t": "*"}, connect=broker.connect,
        now=asyncio.get_running_loop().time,
    )  # fmt: skip

    async with consumer:
        await asyncio.sleep(5)

    assert [pull.queue_offset for pull in pulls(broker)][:2] == [0, 0]
    assert listener.times == [3.0] * 4


@pytest.mark.parametrize("takes_s", [0.0, 3.0], ids=["all done", "some held"])
async def test_a_broker_that_only_says_where_its_queue_ends_has_it_asked_for_anew(
    broker: FakeBroker, make: Make, takes_s: float
) -> None:
    broker.compares = False
    broker.create("t")
    fill(broker, 10)
    broker.offsets["g", QUEUE] = 0
    listener = Bodies(takes_s=takes_s)
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(10)
        broker.crash(QUEUE, 2)
        broker.come_up()
        await asyncio.sleep(10)
        assert len(broker.sent(Op.ACQUIRE)) == 2
        called = len(listener.calls)
        broker.send("t", 0, b"new")
        await asyncio.sleep(10)
        assert listener.offsets[called:] == [2]
        assert consumer.assignment == [QUEUE]

    assert all(offset <= 3 for offset in progress(broker, since=10.0))
    assert broker.offsets["g", QUEUE] == 3


# Messages that the log lost before the group got them: the queue stops there, or goes on behind them if so told


def overtaken(broker: FakeBroker, *, committed: int = 2, least: int = 5) -> None:
    """Ten messages, of which retention has removed the first; the group was not done with those."""
    broker.create("t")
    for _ in range(10):
        broker.send("t", 0, b"x")
    broker.min_offsets[QUEUE] = least
    broker.offsets["g", QUEUE] = committed


# What an answer means
@pytest.mark.parametrize(
    ("result", "end"),
    [
        (PullResult(0, MessagesLost.code, 7, 7, 9, b""), 7),
        (PullResult(0, MessagesLost.code, 4, 7, 9, b""), 7),
        (PullResult(0, MessagesLost.code, 4, 4, 9, b""), None),
        (PullResult(0, OffsetOutOfRange.code, 4, 7, 9, b""), 7),
        (PullResult(0, OffsetOutOfRange.code, 4, 0, 3, b""), None),
        (PullResult(0, Damaged.code, 6, 0, 9, b""), 6),
        (PullResult(0, Damaged.code, 4, 0, 9, b""), None),
        (PullResult(0, EMPTY, 6, 0, 9, b""), None),
    ],
)
def test_a_gap_reaches_from_what_was_asked_for_to_what_can_be_read(result: PullResult, end: int | None) -> None:
    assert gap_of(4, result) == (None if end is None else LogGap(result.status, 4, end))


def test_a_gap_says_what_is_missing_why_and_what_to_do() -> None:
    lost, damaged = LogGap(OffsetOutOfRange.code, 4, 7), LogGap(Damaged.code, 4, 5)
    assert (str(lost), lost.count) == ("MESSAGES_LOST: offsets 4 to 6", 3)
    assert (str(damaged), damaged.count) == ("DAMAGED: offsets 4 to 4", 1)
    assert 'to go on at 7 without them, run with on_gap = "skip"' in lost.advice()
    assert "damaged" in damaged.advice()


def test_the_pauses_of_a_stopped_queue_grow_to_30_s_and_it_is_reported_every_5_minutes() -> None:
    stopped, pauses, told = Stopped(LogGap(Damaged.code, 0, 1)), [], []
    now = 0.0
    while now < 700:
        if stopped.found_again(now):
            told.append(now)
        pauses.append(stopped.pause_s)
        now += stopped.pause_s
    assert pauses[:5] == [5.0, 10.0, 20.0, 30.0, 30.0]
    assert told == [0.0, 305.0, 605.0]


# Stop
async def test_a_queue_stops_at_lost_messages_keeps_its_lease_and_asks_again_with_growing_pauses(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    overtaken(broker)
    listener = Recorder()
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(100)
        assert consumer.assignment == [QUEUE]
        assert consumer.stopped_queues == {QUEUE: "MESSAGES_LOST: offsets 2 to 4"}

    assert listener.calls == []
    assert broker.times(Op.PULL) == [0.0, 5.0, 15.0, 35.0, 65.0, 95.0]
    assert broker.times(Op.RENEW) == [1.0, 21.0, 41.0, 61.0, 81.0]
    assert broker.offsets["g", QUEUE] == 2
    assert caplog.text.count("queue.stopped") == 1
    assert "queue=t/0 reason=MESSAGES_LOST from_offset=2 to_offset=4 count=3 advice=" in caplog.text


async def test_only_the_queue_with_the_gap_stops(broker: FakeBroker, make: Make) -> None:
    overtaken(broker)
    broker.create("t", 2)
    broker.send("t", 1, b"x")
    listener = Recorder()

    await run_for(3, make(listener, topics={"t": "*"}))

    assert [(queue_id, offsets) for _, queue_id, offsets in listener.calls] == [(1, [0])]


async def test_what_was_cached_before_a_damaged_range_is_delivered_and_committed_then_the_queue_stops(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    for _ in range(10):
        broker.send("t", 0, b"x")
    broker.damaged[QUEUE] = range(3, 6)
    listener = Recorder(takes_s=1.0)
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(4)
        assert consumer.stopped_queues == {QUEUE: "DAMAGED: offsets 3 to 5"}
        assert listener.offsets == [0, 1, 2]
        assert broker.offsets["g", QUEUE] == 3


async def test_a_queue_whose_damage_was_repaired_goes_on_by_itself(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    broker.create("t")
    for _ in range(4):
        broker.send("t", 0, b"x")
    broker.damaged[QUEUE] = range(1, 3)
    listener = Recorder()
    consumer = make(listener, topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(7)
        del broker.damaged[QUEUE]
        await asyncio.sleep(10)
        assert consumer.stopped_queues == {}

    assert listener.offsets == [0, 1, 2, 3]
    assert listener.times == [0.0, 15.0, 15.0, 15.0]
    assert "queue.resumed" in caplog.text


async def test_a_gap_that_grew_is_reported_again_and_asked_for_soon_again(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    overtaken(broker)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(20)
        broker.min_offsets[QUEUE] = 7
        await asyncio.sleep(30)
        assert consumer.stopped_queues == {QUEUE: "MESSAGES_LOST: offsets 2 to 6"}

    assert broker.times(Op.PULL) == [0.0, 5.0, 15.0, 35.0, 40.0, 50.0]
    assert caplog.text.count("queue.stopped") == 2


async def test_a_reset_of_the_offset_ends_the_stop(broker: FakeBroker, make: Make) -> None:
    overtaken(broker)
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(2)
        broker.offsets["g", QUEUE] = 8  # which raises the epoch of the lease it touches
        broker.free("g", QUEUE)
        await asyncio.sleep(4)

    assert listener.offsets == [8, 9]


async def test_a_stopped_queue_is_handed_over_and_stopped_without_waiting_for_its_pause(
    broker: FakeBroker, make: Make
) -> None:
    overtaken(broker)
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(40)  # it asks again at 65 s
        broker.set_members("g", "a")
        await asyncio.sleep(0.2)
        assert consumer.assignment == []
        assert consumer.stopped_queues == {}
        assert broker.holder("g", QUEUE) is None
        broker.set_members("g")
        await asyncio.sleep(0.2)
        assert consumer.assignment == [QUEUE]
        before = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - before < 0.1
    assert broker.offsets["g", QUEUE] == 2


@pytest.mark.parametrize("on_gap", ["stop", "skip"])
async def test_an_answer_about_a_gap_that_comes_after_the_queue_was_dropped_changes_nothing(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture, on_gap: str
) -> None:
    overtaken(broker)
    hold = broker.hold_reply(Op.PULL)
    consumer = make(topics={"t": "*"}, on_gap=on_gap)

    async with consumer:
        await hold.reached.wait()
        broker.set_members("g", "a")
        await asyncio.sleep(0.2)
        hold.let_go.set()
        await asyncio.sleep(1)
        assert (consumer.assignment, consumer.stopped_queues) == ([], {})

    assert broker.offsets["g", QUEUE] == 2
    assert "queue.stopped" not in caplog.text
    assert "queue.gap_skipped" not in caplog.text


# Skip
async def test_a_consumer_that_is_told_to_skip_warns_and_goes_on_behind_the_gap(
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    overtaken(broker)
    listener = Recorder()

    await run_for(1, make(listener, topics={"t": "*"}, on_gap="skip"))

    assert asked(broker)[:2] == [2, 5]
    assert listener.offsets == [5, 6, 7, 8, 9]
    skipped = "queue.gap_skipped queue=t/0 reason=MESSAGES_LOST from_offset=2 to_offset=4 count=3 goes_on_at=5"
    assert caplog.text.count(skipped) == 1


async def test_progress_gets_across_a_gap_at_the_end_of_the_queue_also_behind_cached_messages(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    for _ in range(6):
        broker.send("t", 0, b"x")
    broker.damaged[QUEUE] = range(3, 6)
    listener = Recorder(takes_s=1.0)

    async with make(listener, topics={"t": "*"}, on_gap="skip"):
        await asyncio.sleep(2.5)
        assert broker.offsets["g", QUEUE] == 2
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 6
        broker.send("t", 0, b"x")
        await asyncio.sleep(0.1)

    assert listener.offsets == [0, 1, 2, 6]


async def test_a_gap_with_nothing_cached_is_committed_at_once(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"])
    broker.damaged[QUEUE] = range(0, 1)

    async with make(topics={"t": "*"}, on_gap="skip"):
        await asyncio.sleep(0.3)
        assert broker.offsets["g", QUEUE] == 1


async def test_a_message_that_is_tried_again_before_a_gap_keeps_the_progress_before_it(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    for _ in range(4):
        broker.send("t", 0, b"x")
    broker.damaged[QUEUE] = range(1, 3)
    listener = Recorder(*[None] * 5)

    async with make(listener, topics={"t": "*"}, on_gap="skip", suspend_s=1.0):
        await asyncio.sleep(10)
        assert set(listener.offsets) == {0}
        assert broker.offsets["g", QUEUE] == 0
        await asyncio.sleep(30)
        assert listener.offsets[-2:] == [0, 3]
        assert broker.offsets["g", QUEUE] == 4


# Neither
async def test_retention_between_finding_the_first_message_and_asking_for_it_is_no_gap(
    broker: FakeBroker, make: Make
) -> None:
    overtaken(broker, least=3)
    del broker.offsets["g", QUEUE]
    hold = broker.hold_request(Op.PULL)
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await hold.reached.wait()
        broker.min_offsets[QUEUE] = 6
        hold.let_go.set()
        await asyncio.sleep(1)

    assert listener.offsets == [6, 7, 8, 9]


async def test_damage_without_an_end_is_asked_for_again_and_never_skipped(broker: FakeBroker, make: Make) -> None:
    broker.create("t", bodies=[b"x"])
    broker.refuse[Op.PULL] = [Damaged("rot"), Internal("x")]
    listener = Recorder()

    await run_for(7, make(listener, topics={"t": "*"}, on_gap="skip"))

    assert (listener.offsets, listener.times) == ([0], [6.0])


async def test_other_queues_are_not_named_as_stopped(broker: FakeBroker, make: Make) -> None:
    broker.create("t", 2)
    consumer: Any = make(topics={"t": "*"})
    assert consumer.stopped_queues == {}
    async with consumer:
        await asyncio.sleep(1)
        assert consumer.stopped_queues == {}
        assert consumer.assignment == [MessageQueue("t", 0), MessageQueue("t", 1)]
