"""Answers of a broker that filters: what it left out is passed, in its turn, and nothing else is."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from rmq.consumer import Consumer
from rmq.consumer.config import ConsumerConfig
from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.fetch.puller import Asked, Intake
from rmq.consumer.group.assignment import Gap, Generation, Lease
from rmq.wire.batch.tags import ALL
from rmq.wire.errors import OtherHistory
from rmq.wire.protocol.ops.core import EMPTY, Op, PullResult

from ..filtering_broker import FilteringBroker
from ..recorder import QUEUE, Recorder

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


@pytest_asyncio.fixture
async def broker() -> FilteringBroker:
    broker = FilteringBroker()
    broker.create("t")
    return broker


def consume(broker: FilteringBroker, listener: Any, expression: str = "a", **settings: Any) -> Consumer:
    return Consumer(
        "fake:1", group="g", listener=listener, topics={"t": expression}, connect=broker.connect,
        now=asyncio.get_running_loop().time, **settings,
    )  # fmt: skip


def send(broker: FilteringBroker, *tags: str) -> None:
    """One batch for each word, with a message for each letter, which is its tag."""
    for word in tags:
        broker.send("t", 0, *[b"x"] * len(word), tags=list(word))


def asked(broker: FilteringBroker) -> list[int]:
    return [request.payload.queues[0].queue_offset for request in broker.sent(Op.PULL)]


def carried(broker: FilteringBroker) -> list[int]:
    return [request.payload.queues[0].commit_offset for request in broker.sent(Op.PULL)]


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
    broker: FilteringBroker, batches: list[str], wanted: list[int]
) -> None:
    send(broker, *batches)
    listener = Recorder()

    async with consume(broker, listener):
        await asyncio.sleep(16)
        assert broker.offsets["g", QUEUE] == broker.max_offset(QUEUE)

    assert listener.offsets == wanted


async def test_progress_passes_what_was_left_out_only_when_all_before_it_is_done(broker: FilteringBroker) -> None:
    send(broker, "a", "bbb", "a", "bb")
    listener = Recorder(takes_s=5.0)

    async with consume(broker, listener):
        await asyncio.sleep(4.9)
        assert broker.offsets["g", QUEUE] == 0
        await asyncio.sleep(0.4)
        assert broker.offsets["g", QUEUE] == 4
        await asyncio.sleep(5)
        assert broker.offsets["g", QUEUE] == 7

    assert listener.times == [0.0, 5.0]


async def test_however_far_apart_the_messages_lie_an_ordered_queue_is_pulled_further(broker: FilteringBroker) -> None:
    """RocketMQ: a span of more than 2000 stops pulls of the concurrent mode only."""
    send(broker, "a", "b" * 3000, "a")

    async with consume(broker, Recorder(takes_s=100.0), drain_s=0.0):
        await asyncio.sleep(1)
        assert asked(broker) == [0, 3002]


async def test_an_empty_answer_that_moves_on_is_progress_that_rides_on_the_next_pull(broker: FilteringBroker) -> None:
    """RocketMQ: NO_NEW and NO_MATCHED with an empty process queue advance the stored offset."""
    async with consume(broker, Recorder()):
        await asyncio.sleep(1)
        send(broker, "b", "bb")  # which does not wake the parked pull
        await asyncio.sleep(13.9)
        assert broker.times(Op.PULL) == [0.0]
        await asyncio.sleep(0.2)

        assert broker.times(Op.PULL) == [0.0, 15.0]
        assert (asked(broker)[-1], carried(broker)[-1]) == (3, 3)
        assert broker.offsets["g", QUEUE] == 3


async def test_an_empty_answer_that_moves_on_is_no_progress_over_messages_that_are_not_done(
    broker: FilteringBroker,
) -> None:
    send(broker, "a")

    async with consume(broker, Recorder(takes_s=100.0), drain_s=0.0):
        await asyncio.sleep(1)
        send(broker, "b", "bb")
        await asyncio.sleep(20)

        assert asked(broker)[-1] == 4
        assert broker.offsets["g", QUEUE] == 0


class Scripted(FilteringBroker):
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
    broker = Scripted(PullResult(0, status, next_offset, 0, 5, b""))
    send(broker, "aaaaa")
    listener = Recorder()

    async with consume(broker, listener, expression):
        await asyncio.sleep(4)

    assert (listener.times[0], asked(broker)[1]) == (at, first)
    assert listener.offsets == list(range(first, 5))


async def test_a_batch_behind_the_end_of_its_answer_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    broker = Scripted()
    send(broker, "a", "bb", "a")
    broker.answers = [PullResult(0, 0, 2, 0, 4, broker.logs[QUEUE][2].data)]
    listener = Recorder()

    async with consume(broker, listener):
        await asyncio.sleep(4)

    assert listener.offsets == [0, 3]
    assert "pull.bad_batch" in caplog.text


async def test_tags_that_the_broker_cannot_tell_apart_are_told_apart_here(broker: FilteringBroker) -> None:
    """RocketMQ filters by the hash of a tag: messages of another tag with the same hash arrive."""
    broker.colliding = {"c"}
    send(broker, "c", "a", "cc", "ac", "c")
    listener = Recorder()

    async with consume(broker, listener):
        await asyncio.sleep(1)
        assert broker.offsets["g", QUEUE] == 7

    assert listener.offsets == [1, 4]


@pytest.mark.parametrize("seed", range(40))
async def test_any_log_is_delivered_exactly_and_leaves_no_lag(broker: FilteringBroker, seed: int) -> None:
    chance = Random(seed)
    wanted = chance.choice(["a", "a || b", "*"])
    broker.colliding = {"c"} if chance.random() < 0.5 else set()
    tags = ""

    def grow() -> None:
        nonlocal tags
        for _ in range(chance.randrange(12)):
            word = "".join(chance.choices("abcd", [chance.random() for _ in "abcd"], k=chance.randint(1, 6)))
            send(broker, word)
            tags += word

    grow()
    listener = Recorder(takes_s=chance.choice([0.0, 0.01]))
    settings = {"pull_bytes": chance.choice([1, 400, 1 << 20]), "cache_messages": chance.choice([1, 5, 1000])}
    settings |= {"batch": chance.choice([1, 3, 32]), "pull_when_drained": chance.random() < 0.3}
    async with consume(broker, listener, wanted, **settings):
        for _ in range(3):
            await asyncio.sleep(chance.choice([0.0, 0.05, 16.0]))
            grow()
            if chance.random() < 0.3:
                broker.crash(QUEUE, batches=len(broker.logs[QUEUE]))  # and nothing is lost
                broker.come_up()
        await asyncio.sleep(40)
        assert broker.offsets.get(("g", QUEUE), 0) == len(tags)

    assert listener.offsets == [i for i, tag in enumerate(tags) if wanted == "*" or tag in wanted]


# A subscription that changes while a pull is under way


@pytest.mark.parametrize(("expression", "wanted"), [("b", [0, 1, 2]), ("*", [0, 1, 2]), ("a", [])])
async def test_what_was_left_out_for_another_subscription_is_asked_for_again(
    broker: FilteringBroker, expression: str, wanted: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    listener = Recorder()
    consumer = consume(broker, listener)

    async with consumer:
        await asyncio.sleep(1)
        send(broker, "b", "bb")
        hold = broker.hold_reply(Op.PULL)
        await hold.reached.wait()  # at 15 s: nothing for "a"
        consumer.subscribe("t", expression)
        await asyncio.sleep(0.5)
        hold.let_go.set()
        await asyncio.sleep(0.5)

    assert listener.offsets == wanted
    assert "pull.bad_batch" not in caplog.text


async def test_an_answer_that_held_nothing_for_another_subscription_is_no_reason_to_wait() -> None:
    broker, listener = Scripted(PullResult(0, 0, 3, 0, 3, b"")), Recorder()
    send(broker, "bbb")
    consumer, hold = consume(broker, listener), broker.hold_reply(Op.PULL)

    async with consumer:
        await hold.reached.wait()
        consumer.subscribe("t", "b")
        await asyncio.sleep(0.5)
        hold.let_go.set()
        await asyncio.sleep(0.5)

    assert listener.times == [0.5] * 3


async def test_batches_up_to_the_first_hole_are_used_when_the_subscription_changed(broker: FilteringBroker) -> None:
    send(broker, "ab", "b", "a")
    listener = Recorder()
    consumer = consume(broker, listener)
    hold = broker.hold_reply(Op.PULL)

    async with consumer:
        await hold.reached.wait()
        consumer.subscribe("t", "*")
        await asyncio.sleep(0.5)
        hold.let_go.set()
        await asyncio.sleep(0.5)

    assert listener.offsets == [0, 1, 2, 3]
    assert asked(broker)[:2] == [0, 2]


# A log that lost what was passed


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_broker_that_lost_what_was_passed_over_delivers_what_took_its_place(
    broker: FilteringBroker, lost: int
) -> None:
    send(broker, "a", "b", "b")
    listener = Recorder()

    async with consume(broker, listener):
        await asyncio.sleep(16)
        assert asked(broker)[-1] == 3
        broker.crash(QUEUE, batches=3 - lost)
        send(broker, *["a"] * (lost + 1))
        broker.come_up()
        await asyncio.sleep(1)

    assert listener.offsets == [0, *range(3 - lost, 4)]


async def test_a_broker_that_lost_nothing_of_what_was_passed_over_goes_on(broker: FilteringBroker) -> None:
    send(broker, "a", "b", "b")
    listener = Recorder()

    async with consume(broker, listener):
        await asyncio.sleep(16)
        broker.crash(QUEUE, batches=3)
        send(broker, "a")
        broker.come_up()
        await asyncio.sleep(1)

    assert listener.offsets == [0, 3]


@pytest.mark.parametrize(
    ("batches", "selected", "left_out"),
    [([], 0, 0), (["bb", "b"], 0, 3), (["bb", "a", "b"], 1, 3), (["ab"], 2, 0)],
    ids=["nothing was sent", "no match", "one match", "a batch that came counts whole"],
)
async def test_what_a_filter_selects_and_leaves_out_is_counted(
    broker: FilteringBroker, batches: list[str], selected: int, left_out: int
) -> None:
    send(broker, *batches)
    async with consume(broker, Recorder()) as consumer:
        await asyncio.sleep(20)
        (queue,) = consumer.running_info()["queues"]

    assert (queue["selected"], queue["left_out"]) == (selected, left_out)


async def test_another_filter_counts_anew_and_without_one_nothing_is_counted(broker: FilteringBroker) -> None:
    send(broker, "bb")
    async with consume(broker, Recorder()) as consumer:
        await asyncio.sleep(20)
        consumer.subscribe("t", "c")
        await asyncio.sleep(40)
        send(broker, "b")
        await asyncio.sleep(40)
        (queue,) = consumer.running_info()["queues"]
        assert (queue["selected"], queue["left_out"]) == (0, 1)

    async with consume(broker, Recorder(), "*") as consumer:
        await asyncio.sleep(20)
        (queue,) = consumer.running_info()["queues"]
        assert (queue["selected"], queue["left_out"]) == (0, 0)


async def test_a_member_that_skips_gaps_stops_at_messages_of_another_history() -> None:
    generation = Generation(Lease(QUEUE, 0, 0.0), ProcessQueue(15), on_lost=lambda *_: None, topic_generation=1)
    unused: Any = None
    broker: Any = SimpleNamespace(now=lambda: 0.0)
    config = ConsumerConfig(group="g", on_gap="skip")
    intake = Intake(config, broker, topics=unused, progressed=unused, room=unused)

    await intake.take_in(generation, PullResult(0, OtherHistory.code, 5, 0, 30, b""), Asked(1, ALL))

    assert generation.stopped is not None and generation.stopped.gap == Gap(OtherHistory.code, 5, 15)
