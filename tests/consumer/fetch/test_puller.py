"""Pulling: from the right place, never too much, and with the progress on board."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq.consumer import ConsumeContext, Consumer, ConsumeStatus, StoredMessage
from rmq.consumer.fetch.puller import FEW
from rmq.wire.errors import Damaged, Fenced, Internal, OffsetOutOfRange, RequestTimeout
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import NO_OFFSET, Op, PullResult

from ..fake_broker import FakeBroker
from ..recorder import Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]

Make = Callable[..., Consumer]
QUEUE = MessageQueue("t", 0)


def asked(broker: FakeBroker) -> list[int]:
    return [request.payload.queues[0].queue_offset for request in broker.sent(Op.PULL)]


async def test_the_lock_comes_before_the_first_pull_which_begins_at_the_committed_offset(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 10)
    broker.offsets["g", QUEUE] = 7
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(1)

    kinds = [request.op for request in broker.requests]
    assert kinds.index(Op.ACQUIRE) < kinds.index(Op.PULL)
    assert asked(broker)[0] == 7
    assert broker.sent(Op.PULL)[0].payload.queues[0].epoch == 1
    assert listener.offsets == [7, 8, 9]


async def test_an_empty_queue_is_held_15_s_at_a_time(broker: FakeBroker, make: Make) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(46)

    assert broker.times(Op.PULL) == [0.0, 15.0, 30.0, 45.0]


async def test_a_pull_without_an_answer_is_asked_again_after_30_s(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    hold = broker.hold_request(Op.PULL)

    async with make(topics={"t": "*"}):
        await asyncio.sleep(31)
        assert broker.times(Op.PULL) == [0.0, 30.0]
        hold.let_go.set()


async def test_pulls_that_found_something_are_followed_by_the_interval_and_others_are_not(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    for _ in range(3):
        broker.send("t", 0, b"x")
    listener = Recorder()

    async with make(listener, topics={"t": "*"}, pull_interval_s=2.0, pull_bytes=1):
        await asyncio.sleep(40)

    assert broker.times(Op.PULL) == [0.0, 2.0, 4.0, 6.0, 21.0, 36.0]
    assert listener.times == [0.0, 2.0, 4.0]


async def test_pulls_that_found_something_are_counted_with_their_response_time(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    consumer = make(topics={"t": "*"})

    async with consumer:
        await asyncio.sleep(2)
        broker.send("t", 0, b"a", b"b", b"c")
        await asyncio.sleep(1)
        broker.send("t", 0, b"d")
        await asyncio.sleep(20)  # and one comes back empty
        assert consumer._running is not None
        pulled = consumer._running.statistics.read(23.0)["t@g"].pulled

    assert (pulled.total, pulled.calls) == (4, 2)
    assert pulled.mean_s == pytest.approx((2 + 1) / 2)


async def test_a_message_is_delivered_when_it_arrives(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(7)
        broker.send("t", 0, b"a")
        await asyncio.sleep(1)

    assert listener.times == [7.0]


@pytest.mark.parametrize(("count", "listener_first"), [(1, True), (FEW, True), (FEW + 1, False)])
async def test_a_listener_that_was_idle_has_few_messages_before_more_are_asked_for(
    broker: FakeBroker, make: Make, count: int, listener_first: bool
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


async def test_progress_rides_on_pulls_and_within_200_ms_where_none_goes(broker: FakeBroker, make: Make) -> None:
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


async def test_idle_consumers_send_nothing_but_pulls_and_heartbeats(broker: FakeBroker, make: Make) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(5)
        before = len(broker.requests)
        await asyncio.sleep(60)

    kinds = [request.op for request in broker.requests[before:-1]]
    assert set(kinds) == {Op.PULL, Op.JOIN, Op.RENEW}
    assert len(kinds) == 4 + 2 + 3


async def test_the_first_pull_of_a_new_lease_begins_where_the_owner_before_has_committed_meanwhile(
    broker: FakeBroker, make: Make
) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 10)
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
    broker: FakeBroker, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t")

    async with make(topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.set_members("g", "a-other")  # it comes first in the list: the queue is theirs
        await asyncio.sleep(100)

    assert broker.times(Op.PULL) == [0.0]
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_fenced_pull_drops_the_generation(broker: FakeBroker, make: Make) -> None:
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
    broker: FakeBroker, make: Make, refused: bool
) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
    broker.refuse[Op.PULL] = [Internal("x") if refused else Fenced("x")]
    listener = Recorder()

    async with make(listener, topics={"t": "*"}):
        await asyncio.sleep(5)

    assert listener.times == [3.0 if refused else 0.0]
    assert len(broker.sent(Op.ACQUIRE)) == (1 if refused else 2)


async def test_an_offset_behind_the_log_goes_on_at_its_end(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, *[b"x"] * 5)
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
async def test_odd_answers(make: Make, answer: Any, delivered: list[int], at: float) -> None:
    broker = Scripted(answer)
    broker.create("t")
    broker.send("t", 0, b"a", b"b", b"c", b"d")
    listener = Recorder()
    consumer = Consumer(
        "fake:1", group="g", listener=listener, topics={"t": "*"}, connect=broker.connect,
        now=asyncio.get_running_loop().time,
    )  # fmt: skip

    async with consumer:
        await asyncio.sleep(5)

    assert listener.offsets == delivered
    assert listener.times[0] == at


async def test_progress_of_a_pull_that_failed_is_sent_again(broker: FakeBroker, make: Make) -> None:
    broker.create("t")
    broker.send("t", 0, b"a")
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


async def test_no_progress_is_sent_while_the_lease_is_not_believed_in(broker: FakeBroker, make: Make) -> None:
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
    make: Make, foreign: str, caplog: pytest.LogCaptureFixture
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
