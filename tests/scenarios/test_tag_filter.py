"""Consumers that want some tags, against the real broker over a real socket, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rmq.client import Admin, Message, Producer
from rmq.client.explain.wording import Reason
from rmq.consumer import Consumer
from rmq.engine.native.connection import Connection
from rmq.testing.broker import InMemoryBroker
from rmq.wire.batch import batch as batches
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.codec import decode_list
from rmq.wire.protocol.ops.core import EMPTY, Op, PullResult
from rmq.wire.stores import StoreIds

from rigs.fleet import Deliveries

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    async with InMemoryBroker() as running:
        async with Admin(running.address) as admin:
            await admin.create_topic("orders", 1)
        yield running


class Wire:
    """Makes connections, and keeps the answers to their pulls."""

    def __init__(self) -> None:
        self.answers: list[PullResult] = []

    def __call__(self, *args: Any, **settings: Any) -> Connection:
        answers = self.answers

        class Watched(Connection):
            async def request(self, op: Op, payload: Any, **options: Any) -> Any:
                answer = await super().request(op, payload, **options)
                if op == Op.PULL:
                    answers.extend(decode_list(PullResult, answer))
                return answer

        return Watched(*args, **settings)

    @property
    def tags(self) -> list[str | None]:
        """The tags of all messages that came."""
        found = [batch for answer in self.answers for batch in batches.read_all(answer.batches, stores=StoreIds(1))]
        return [message.tag for batch in found for message in batch.messages()]


Made = tuple[Consumer, Deliveries, Wire]


def consumer(broker: InMemoryBroker, expression: str, group: str = "g") -> Made:
    seen, wire = Deliveries(), Wire()
    now = asyncio.get_running_loop().time
    made = Consumer(
        broker.address, group=group, listener=seen, topics={"orders": expression}, now=now, connect=wire,
        start_from="first",
    )  # fmt: skip
    return made, seen, wire


async def send(broker: InMemoryBroker, *batches_of_tags: list[str | None]) -> list[bytes]:
    """Send each list as one batch; a body tells tag and place in the queue."""
    bodies: list[bytes] = []
    async with Producer(broker.address) as producer:
        for tags in batches_of_tags:
            some = [f"{tag}-{len(bodies) + i}".encode() for i, tag in enumerate(tags)]
            bodies += some
            messages = [Message("orders", body, tag=tag) for body, tag in zip(some, tags, strict=True)]
            await producer.send_many(messages, queue_id=0)
    return bodies


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it did not come true within a minute")


async def progress(broker: InMemoryBroker) -> int:
    async with Admin(broker.address) as admin:
        return (await admin.ranges([MessageQueue("orders", 0)], "g"))[0].committed


MIXED: list[list[str | None]] = [["a"], ["b"], ["c", "b"], [None], ["a", "b", None], ["b"], ["c"], ["b"], ["b"]]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("expression", ["a", "a || c", "b", "x", "*"])
async def test_the_wanted_messages_are_delivered_in_order_and_the_progress_reaches_the_end(
    broker: InMemoryBroker, expression: str, early: bool
) -> None:
    made, seen, wire = consumer(broker, expression)
    if not early:
        await send(broker, *MIXED)
    async with made:
        await asyncio.sleep(1.0)
        if early:
            await send(broker, *MIXED)
        await asyncio.sleep(40.0)  # a wait that ends with nothing tells how far nothing was wanted
        flat = [tag for tags in MIXED for tag in tags]
        names = {part.strip() for part in expression.split("||")}
        wanted = [f"{tag}-{i}".encode() for i, tag in enumerate(flat) if expression == "*" or tag in names]

        assert seen.bodies == wanted
        assert await progress(broker) == len(flat)
    assert all(names & set(tags) or expression == "*" for tags in sent_batches(wire))
    assert broker.broker._pulls.rescued == 0


def sent_batches(wire: Wire) -> list[list[str | None]]:
    found = [batch for answer in wire.answers for batch in batches.read_all(answer.batches, stores=StoreIds(1))]
    return [[message.tag for message in batch.messages()] for batch in found]


async def test_what_nobody_wants_wakes_nobody(broker: InMemoryBroker) -> None:
    made, seen, wire = consumer(broker, "a")
    async with made:
        await asyncio.sleep(1.0)
        before = len(wire.answers)
        for _ in range(20):
            await send(broker, ["b"])
            await asyncio.sleep(0.1)
        assert wire.answers[before:] == []

        sent_at = asyncio.get_running_loop().time()
        await send(broker, ["a"])
        await until(lambda: bool(seen.all))
        assert asyncio.get_running_loop().time() - sent_at < 0.2

    (answer,) = (answer for answer in wire.answers if answer.status != EMPTY)
    assert (wire.tags, answer.next_offset) == (["a"], 21)


async def test_a_tag_of_the_same_hash_is_not_delivered(broker: InMemoryBroker) -> None:
    """``Aa`` and ``BB`` have the same hash. A batch with both is sent as it is; the consumer picks by name."""
    made, seen, wire = consumer(broker, "Aa")
    async with made:
        await send(broker, ["BB"], ["Aa", "BB", "Aa"], ["BB"])
        await asyncio.sleep(40.0)
        assert await progress(broker) == 5

    assert [message.tag for message in seen.all] == ["Aa", "Aa"]
    assert wire.tags == ["Aa", "BB", "Aa"]


async def test_groups_of_different_tags_share_a_topic(broker: InMemoryBroker) -> None:
    (one, of_a, _), (two, of_b, _), (three, all_, _) = (
        consumer(broker, expression, group) for group, expression in (("g1", "a"), ("g2", "b"), ("g3", "*"))
    )
    async with one, two, three:
        await send(broker, *[["a"], ["b"], ["a", "b"], [None]] * 10)
        await until(lambda: len(all_.all) == 50)
        await until(lambda: len(of_a.all) == len(of_b.all) == 20)

    offsets = [message.offset for message in of_a.all + of_b.all]
    assert sorted(offsets) == [m.offset for m in all_.all if m.tag is not None]
    assert [m.offset for m in of_a.all] == sorted(m.offset for m in of_a.all)


async def test_a_restart_of_the_broker_loses_no_wanted_message(broker: InMemoryBroker) -> None:
    made, seen, _ = consumer(broker, "a")
    async with made:
        await send(broker, *[["b"], ["a"], ["b", "a"]] * 20)
        await until(lambda: len(seen.all) >= 10)
        await broker.restart()
        await send(broker, *[["b"], ["b", "a"], ["b"]] * 20)
        await until(lambda: len(seen.all) >= 60)

    assert len(seen.all) == 60
    assert [m.offset for m in seen.all] == sorted({m.offset for m in seen.all})


async def test_another_consumer_of_the_group_begins_behind_what_was_not_wanted(broker: InMemoryBroker) -> None:
    made, _, _ = consumer(broker, "a")
    async with made:
        await send(broker, ["a"], *[["b"]] * 50)
        await asyncio.sleep(40.0)

    heir, seen, wire = consumer(broker, "a")
    async with heir:
        await asyncio.sleep(1.0)
        await send(broker, ["a"])
        await until(lambda: bool(seen.all))

    assert [message.offset for message in seen.all] == [51]
    assert min(answer.next_offset for answer in wire.answers) >= 51


async def test_an_expression_that_changes_counts_from_where_the_consumer_is(broker: InMemoryBroker) -> None:
    made, seen, _ = consumer(broker, "a")
    async with made:
        await send(broker, ["a"])
        await until(lambda: bool(seen.all))
        made.subscribe("orders", "b")
        await asyncio.sleep(1.0)
        await send(broker, ["a"], ["b"], ["a", "b"])
        await until(lambda: len(seen.all) >= 3)
        made.subscribe("orders", "*")
        await asyncio.sleep(1.0)
        await send(broker, ["c"])
        await until(lambda: len(seen.all) >= 4)

    assert [(m.offset, m.tag) for m in seen.all] == [(0, "a"), (2, "b"), (4, "b"), (5, "c")]


@pytest.mark.parametrize("second", ["a", "b"])
@pytest.mark.parametrize("first", ["*", "c", "a"])
async def test_a_change_while_a_pull_is_parked_is_no_error_and_costs_no_pause(
    broker: InMemoryBroker, first: str, second: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, seen, _ = consumer(broker, first)
    async with made:
        await asyncio.sleep(1.0)
        made.subscribe("orders", second)
        await asyncio.sleep(0.5)
        sent_at = asyncio.get_running_loop().time()
        await send(broker, ["c"], ["b"], ["c"], ["a"], ["c"])
        await until(lambda: bool(seen.all))
        assert asyncio.get_running_loop().time() - sent_at < 0.2

    assert [message.tag for message in seen.all] == [second]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    ("earlier", "later", "reason"),
    [
        ([["a"] * 200], [["b"]], Reason.NO_NEW_MESSAGES),
        ([["b"] * 200], [["b"]], Reason.NO_NEW_MESSAGES),
        ([["a"] * 200], [["b"] * 100], Reason.FILTER_MATCHES_NOTHING),
        ([], [["b"]], Reason.FILTER_MATCHES_NOTHING),
        ([["b"]], [], Reason.NO_NEW_MESSAGES),
    ],
    ids=[
        "the filter matched before the restart", "a few messages prove nothing after a restart",
        "many without a match are worth a look", "the group is new", "nothing came since the restart",
    ],
)  # fmt: skip
async def test_a_filter_for_rare_tags_is_not_suspected_after_a_restart(
    broker: InMemoryBroker, earlier: list[list[str | None]], later: list[list[str | None]], reason: Reason
) -> None:
    for batches_ in (earlier, later):
        made, _, _ = consumer(broker, "a")
        async with made:
            await asyncio.sleep(1.0)
            await send(broker, *batches_)
            await asyncio.sleep(40.0)  # so that the broker ends a pull, and knows how far the group is
            async with Admin(broker.address) as admin:
                (queue,) = [each for each in (await admin.explain("g")).queues if each.topic == "orders"]

    assert queue.reason is reason
