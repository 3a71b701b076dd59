"""
A member of its own: every queue at once, nothing locked or committed, and a beginning that is decided once.

The requests of a broadcasting member one by one, over a link that says what the test wants.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from rmq.consumer import Consumer, ConsumeStatus
from rmq.consumer.broadcast.member import Broadcaster
from rmq.consumer.broadcast.progress import LocalOffsets, open_offsets
from rmq.consumer.config import ConsumerConfig
from rmq.consumer.group.topics import KnownTopics
from rmq.consumer.listener import ConcurrentContext
from rmq.engine.native.connection import Connection
from rmq.wire.errors import BadRequest, ConfigError, ConnectionLost, GroupMismatch, RequestTimeout, TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import (
    EMPTY,
    NO_OFFSET,
    LeaseEnd,
    Op,
    Outcome,
    Pull,
    PullQueue,
    PullResult,
    QueueInfo,
    TopicInfo,
)
from rmq.wire.stores import StoreIds

from ..broadcast_rig import LOCKING, by_queue, fill, saved
from ..fake_broker import FakeBroker
from ..recorder import SUCCESS, SUSPEND, Make, Messages, Recorder, run_for

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


# Who gets what
async def test_every_member_gets_every_message_in_order_without_a_lock(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    """Scenarios 34 and 56: no lock is asked for or renewed, however long it runs."""
    fill(broker)
    first, second = Recorder(), Recorder()

    async with member(first, topics={"t": "*"}), member(second, topics={"t": "*"}, instance="b"):
        await asyncio.sleep(100)
        broker.send("t", 0, b"3")
        await asyncio.sleep(1)

    assert by_queue(first) == by_queue(second) == {0: [0, 1, 2, 3], 1: [0, 1, 2]}
    assert not [request.op for request in broker.requests if request.op in LOCKING]
    assert all(request.payload.group is None for request in broker.sent(Op.PULL))
    assert all(request.payload.queues[0].commit_offset == -1 for request in broker.sent(Op.PULL))
    assert broker.offsets == {}


async def test_a_member_joins_as_what_it_is_and_leaves_with_nothing_to_give_back(
    broker: FakeBroker, member: Make
) -> None:
    fill(broker)

    await run_for(1, member(topics={"t": "*"}))

    (*joins,) = broker.sent(Op.JOIN)
    assert {(join.payload.model, join.payload.strategy, join.payload.ordered) for join in joins} == {
        ("broadcasting", "all", True)
    }
    assert [join.payload.from_end for join in joins] == [[]] * len(joins)
    assert [leave.payload.leases for leave in broker.sent(Op.LEAVE)] == [[]]
    assert broker.members["g"] == {}


async def test_retries_of_the_group_are_not_subscribed_to(broker: FakeBroker, member: Make) -> None:
    await run_for(1, member(topics={"t": "*"}))

    assert broker.sent(Op.JOIN)[0].payload.subscriptions == {"t": "*"}


async def test_a_member_whose_group_shares_its_queues_out_is_refused(broker: FakeBroker, member: Make) -> None:
    broker.refuse[Op.JOIN] = [GroupMismatch("group 'g' is ordered, clustering; this member asked for broadcasting")]
    consumer = member(topics={"t": "*"})

    with pytest.raises(GroupMismatch, match="this member asked for broadcasting"):
        await consumer.run()


async def test_a_message_that_fails_is_tried_again_here_and_nobody_else_notices(
    broker: FakeBroker, member: Make
) -> None:
    """Scenario 56: retry in place; the attempts are counted in memory."""
    fill(broker, queues=1)
    failing, well = Recorder(SUSPEND, SUSPEND), Recorder()

    async with member(failing, topics={"t": "*"}), member(well, topics={"t": "*"}, instance="b"):
        await asyncio.sleep(10)

    assert failing.offsets == [0, 0, 0, 1, 2]
    assert failing.attempts == [1, 2, 3, 1, 1]
    assert well.offsets == [0, 1, 2]
    assert not [request for request in broker.requests if request.op in LOCKING]


async def test_a_message_that_failed_max_attempts_times_is_told_and_passed(
    broker: FakeBroker, member: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, queues=1)
    failing = Recorder(SUSPEND, RuntimeError("no"), SUCCESS)

    await run_for(10, member(failing, topics={"t": "*"}, max_attempts=2))

    assert failing.offsets == [0, 0, 1, 2]
    passed = [record.getMessage() for record in caplog.records if "message.skipped" in record.getMessage()]
    assert len(passed) == 1
    assert "no" in passed[0]
    assert "dead_lettered" not in caplog.text
    assert broker.dead == []


async def test_a_strategy_of_the_users_own_is_refused(member: Make) -> None:
    with pytest.raises(ConfigError, match="a broadcasting member has every queue: leave strategy out"):
        member(strategy=lambda queues, members, member: queues)


# Where it begins
@pytest.mark.parametrize(
    ("start_from", "offsets"), [("first", [1, 2, 3]), ("last", [3]), ("2026-01-31T12:00Z", [2, 3])]
)
async def test_a_new_member_begins_where_it_was_told_to(
    broker: FakeBroker, member: Make, start_from: str, offsets: list[int]
) -> None:
    fill(broker, queues=1)
    queue = MessageQueue("t", 0)
    broker.min_offsets[queue] = 1
    broker.offsets_at[queue, 1_769_860_800_000_000] = 2
    recorder = Recorder()

    async with member(recorder, topics={"t": "*"}, start_from=start_from):
        await asyncio.sleep(1)
        broker.send("t", 0, b"3")
        await asyncio.sleep(1)

    assert recorder.offsets == offsets


async def test_the_end_at_which_a_member_began_is_kept_from_the_first_moment_on(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    fill(broker, queues=2)

    async with member(topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(0.01)
        assert saved(tmp_path / "a") == {"t/0": 3, "t/1": 3}

        assert len(broker.sent(Op.RANGES)) == 1


async def test_a_late_starter_gets_only_what_comes_and_none_of_it_twice(broker: FakeBroker, member: Make) -> None:
    fill(broker, queues=1)
    late = Recorder()
    async with member(late, topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(1)
    broker.send("t", 0, b"while it was away")

    await run_for(1, member(late, topics={"t": "*"}, start_from="last"))

    assert late.offsets == [3]


async def test_a_topic_that_is_made_or_grows_is_read_from_0_whatever_start_from_says(
    broker: FakeBroker, member: Make
) -> None:
    recorder = Recorder()
    async with member(recorder, topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(1)
        fill(broker, queues=1, count=2)
        await asyncio.sleep(1)
        broker.create("t", 2)
        broker.send("t", 1, b"new queue")
        await asyncio.sleep(1)

    assert by_queue(recorder) == {0: [0, 1], 1: [0]}


async def test_that_a_topic_was_not_there_yet_is_kept_from_the_first_moment_on(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    """Else a member that is killed, and back when the topic is there, would pass what was sent meanwhile."""
    async with member(topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(0.1)
        shutil.copytree(tmp_path / "a", tmp_path / "killed")
    fill(broker, queues=1)
    recorder = Recorder()

    await run_for(1, member(recorder, topics={"t": "*"}, start_from="last", offsets_dir=str(tmp_path / "killed")))

    assert recorder.offsets == [0, 1, 2]


async def test_a_queue_that_was_made_while_the_member_was_away_is_read_from_0(broker: FakeBroker, member: Make) -> None:
    recorder = Recorder()
    fill(broker, queues=1)
    async with member(topics={"t": "*", "later": "*"}, start_from="last"):
        await asyncio.sleep(1)
    broker.create("t", 2)
    broker.send("t", 1, b"new queue")
    fill(broker, "later", queues=1, count=1)

    await run_for(1, member(recorder, topics={"t": "*", "later": "*"}, start_from="last"))

    assert sorted(by_queue(recorder).items()) == [(0, [0]), (1, [0])]


async def test_a_start_that_cannot_be_read_is_asked_for_again(broker: FakeBroker, member: Make) -> None:
    fill(broker, queues=1)
    broker.go_down()
    recorder = Recorder()
    async with member(recorder, topics={"t": "*"}, start_from="last"):
        hold = broker.hold_request(Op.RANGES)
        broker.come_up()
        await asyncio.sleep(1)
        broker.go_down()
        hold.let_go.set()
        broker.come_up()
        await asyncio.sleep(10)
        broker.send("t", 0, b"3")
        await asyncio.sleep(1)

    assert recorder.offsets == [3]


# Topics and subscriptions
async def test_a_topic_that_is_deleted_and_made_again_is_another_one(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    recorder = Recorder()
    async with member(recorder, topics={"t": "*"}):
        await asyncio.sleep(6)
        broker.delete("t")
        await asyncio.sleep(1)
        fill(broker, queues=1, count=2)
        await asyncio.sleep(1)

    assert recorder.offsets == [0, 1, 2, 0, 1]
    assert saved(tmp_path / "a") == {"t/0": 2}


async def test_a_topic_that_was_made_again_while_the_member_was_away_is_read_from_0_and_that_is_told(
    broker: FakeBroker, member: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, queues=1)
    async with member(topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(1)
    broker.delete("t")
    fill(broker, queues=1, count=2)
    recorder = Recorder()

    await run_for(1, member(recorder, topics={"t": "*"}, start_from="last"))

    assert recorder.offsets == [0, 1]
    assert "offsets.other_topic" in caplog.text


async def test_an_unsubscribed_topic_keeps_its_progress(broker: FakeBroker, member: Make, tmp_path: Path) -> None:
    fill(broker, "t", queues=1)
    fill(broker, "u", queues=1)
    recorder = Recorder()
    async with member(recorder, topics={"t": "*", "u": "*"}) as consumer:
        await asyncio.sleep(1)
        consumer.unsubscribe("u")
        await asyncio.sleep(1)
        broker.send("u", 0, b"3")
        assert consumer.assignment == [MessageQueue("t", 0)]
        await asyncio.sleep(1)
        consumer.subscribe("u")
        await asyncio.sleep(1)

    assert sorted(recorder.offsets) == [0, 0, 1, 1, 2, 2, 3]
    assert saved(tmp_path / "a") == {"t/0": 3, "u/0": 4}


async def test_pulls_name_the_tags_and_a_parked_one_is_asked_anew_when_they_change(
    broker: FakeBroker, member: Make
) -> None:
    fill(broker, queues=1, count=0)
    async with member(topics={"t": "a || b"}) as consumer:
        await asyncio.sleep(1)
        consumer.subscribe("t", "c")
        await asyncio.sleep(1)
        consumer.subscribe("t", "*")
        await asyncio.sleep(1)

    assert [pull.payload.expression for pull in broker.sent(Op.PULL)] == ["a || b", "c", None]
    assert broker.times(Op.PULL)[1:] == [1.0, 2.0]


class Silent:
    """A link whose pulls are answered by the test, and everything else at once."""

    hello = None

    def __init__(self) -> None:
        self.pulls: list[tuple[Pull, asyncio.Future[Any]]] = []
        self.asked: list[Op] = []
        self.ranges: list[Any] = []

    async def request(self, op: Op, payload: Any, *, timeout_s: float) -> Any:
        self.asked.append(op)
        if op is Op.RANGES:
            return self.ranges
        if op is not Op.PULL:
            return [["me"], []]
        self.pulls.append((payload, asyncio.get_running_loop().create_future()))
        return await self.pulls[-1][1]


async def silent(directory: Path, *, queues: int = 0) -> tuple[Silent, Broadcaster, LocalOffsets]:
    """A member that wants two topics, or knows one with some queues."""
    offsets = open_offsets(ConsumerConfig(group="g", offsets_dir=str(directory)), "g", {}, now=lambda: 0.0, busy=bool)
    offsets.enter(StoreIds(7))
    link, config, topics = Silent(), ConsumerConfig(group="g"), KnownTopics()
    broadcaster = Broadcaster(cast(Connection, link), "g", config, offsets, topics=lambda: topics, now=lambda: 0.0)
    if queues:
        topics.joined(["t"], [TopicInfo("t", 1, queues, [QueueInfo(i, "fake") for i in range(queues)])])
    else:
        await broadcaster.join({"t": "a", "u": "a"})
    return link, broadcaster, offsets


def pull(broadcaster: Broadcaster, topic: str) -> asyncio.Task[PullResult | None]:
    asked = PullQueue(topic, 0, 5, 77, 5, 3)
    return asyncio.create_task(broadcaster.pull(asked, wait_s=15, max_bytes=9, timeout_s=30))


# Where queues begin
@pytest.mark.parametrize("when", ["asked", "written"])
async def test_what_was_found_out_of_a_store_that_is_gone_is_no_grant(tmp_path: Path, when: str) -> None:
    """The broker is another one before the answer is read, or before it is on the disk."""
    offsets = open_offsets(ConsumerConfig(group="g", offsets_dir=str(tmp_path)), "g", {}, now=lambda: 0.0, busy=bool)
    offsets.enter(StoreIds(7))

    class Replaced:
        hello = None

        async def request(self, op: Op, payload: Any, *, timeout_s: float) -> Any:
            if when == "asked":
                offsets.enter(StoreIds(8))
            else:
                asyncio.get_running_loop().call_soon(offsets.enter, StoreIds(8))
            return [[0, 0, 5]]

    topics = KnownTopics()
    topics.joined(["t"], [TopicInfo("t", 1, 1, [QueueInfo(0, "fake")])])
    broadcaster = Broadcaster(
        cast(Connection, Replaced()), "g", ConsumerConfig(group="g"), offsets, topics=lambda: topics, now=lambda: 0.0
    )

    with pytest.raises(ConnectionLost, match="another store"):
        await broadcaster.acquire([MessageQueue("t", 0)])

    assert offsets.progress.content().queues == {}
    await offsets.close()


async def test_a_beginning_that_cannot_be_is_refused(tmp_path: Path) -> None:
    link, broadcaster, offsets = await silent(tmp_path, queues=1)
    link.ranges = [[0, -1, -1]]

    with pytest.raises(BadRequest, match="the broker says that t/0 begins at -1"):
        await broadcaster.acquire([MessageQueue("t", 0)])
    await offsets.close()


async def test_a_queue_that_is_gone_is_no_grant_and_nothing_is_kept_of_it(tmp_path: Path) -> None:
    link, broadcaster, offsets = await silent(tmp_path, queues=1)
    link.ranges = [[TopicNotFound.code, 0, 0, -1, "there is no topic 't'"]]

    (grant,) = await broadcaster.acquire([MessageQueue("t", 0)])

    assert (grant.status, grant.text) == (TopicNotFound.code, "there is no topic 't'")
    assert not offsets.progress.is_known("t")
    assert offsets.progress.content().queues == {}
    await offsets.close()


async def test_a_queue_of_a_topic_that_was_deleted_meanwhile_is_no_grant_and_nobody_is_asked(tmp_path: Path) -> None:
    link, broadcaster, offsets = await silent(tmp_path, queues=1)

    (grant,) = await broadcaster.acquire([MessageQueue("gone", 0)])

    assert (grant.status, grant.text) == (TopicNotFound.code, "there is no topic 'gone'")
    assert link.asked == []
    await offsets.close()


async def test_a_topic_is_known_when_it_is_decided_where_all_its_queues_begin(tmp_path: Path) -> None:
    """Else one that is killed in between would read the others from 0, which it was told not to."""
    link, broadcaster, offsets = await silent(tmp_path, queues=2)
    link.ranges = [[0, 3, 9]]

    await broadcaster.acquire([MessageQueue("t", 0)])
    assert not offsets.progress.is_known("t")
    (grant,) = await broadcaster.acquire([MessageQueue("t", 1)])

    assert grant.committed_offset == 3
    assert offsets.progress.is_known("t")
    await offsets.close()


# Pulls
async def test_a_pull_says_nothing_of_group_epoch_and_progress(tmp_path: Path) -> None:
    link, broadcaster, offsets = await silent(tmp_path)
    pulling = pull(broadcaster, "t")
    await asyncio.sleep(0)
    ((asked, answer),) = link.pulls

    answer.set_result([[0, EMPTY, 5, 0, 5, b""]])

    assert asked == Pull(None, 15_000, 9, [PullQueue("t", 0, 5, None, NO_OFFSET, 3)], "a")
    assert await pulling == PullResult(0, EMPTY, 5, 0, 5, b"")
    await offsets.close()


async def test_tags_that_change_twice_at_once_wake_the_pulls_of_their_topic_once(tmp_path: Path) -> None:
    link, broadcaster, offsets = await silent(tmp_path)
    woken, other = pull(broadcaster, "t"), pull(broadcaster, "u")
    await asyncio.sleep(0)

    await broadcaster.join({"t": "b", "u": "a"})
    await broadcaster.join({"t": "c", "u": "a"})

    assert await woken is None
    assert not other.done()
    link.pulls[1][1].set_result([])
    assert await other is None
    await offsets.close()


async def test_a_pull_that_is_cancelled_or_fails_is_not_woken_any_more(tmp_path: Path) -> None:
    link, broadcaster, offsets = await silent(tmp_path)
    cancelled, failed = pull(broadcaster, "t"), pull(broadcaster, "t")
    await asyncio.sleep(0)

    cancelled.cancel()
    link.pulls[1][1].set_exception(RequestTimeout("no answer"))
    await asyncio.wait([cancelled, failed])
    await broadcaster.join({"t": "b", "u": "a"})

    assert cancelled.cancelled()
    assert isinstance(failed.exception(), RequestTimeout)
    await offsets.close()


async def test_what_is_given_back_or_given_up_asks_nobody(tmp_path: Path) -> None:
    link, broadcaster, offsets = await silent(tmp_path)

    assert await broadcaster.release([LeaseEnd("t", 0, 0)]) == [Outcome()]
    await broadcaster.attempt(MessageQueue("t", 0), 0, [])
    await broadcaster.dead_letter(MessageQueue("t", 0), 0, [4], [1], commit_offset=5, reason="")

    assert link.asked == [Op.JOIN]
    await offsets.close()


# Broadcasting without an order: many calls at a time, the same progress, and failures that nobody else notices

RETRY = ConsumeStatus.RETRY


@pytest.fixture
def concurrent(member: Make) -> Make:
    """Makes broadcasting members that do not consume in order."""
    made: Make = partial(member, orderly=False)
    return made


async def test_every_member_gets_every_message_once_without_a_lock(
    broker: FakeBroker, concurrent: Make, tmp_path: Path
) -> None:
    fill(broker, queues=2, count=10)
    first, second = Recorder(takes_s=1), Recorder(takes_s=1)

    async with concurrent(first, topics={"t": "*"}, slots=4), concurrent(second, topics={"t": "*"}, instance="b"):
        await asyncio.sleep(100)

    assert sorted(first.offsets) == sorted(second.offsets) == sorted([*range(10)] * 2)
    assert (first.most, second.most) == (4, 20)
    assert saved(tmp_path / "a") == saved(tmp_path / "b") == {"t/0": 10, "t/1": 10}
    assert {(join.payload.model, join.payload.ordered) for join in broker.sent(Op.JOIN)} == {("broadcasting", False)}
    assert not [request.op for request in broker.requests if request.op in LOCKING]


@pytest.mark.parametrize("answer", [RETRY, None, RuntimeError("odd price"), lambda c: setattr(c, "delay_level", -1)])
async def test_a_failed_message_is_told_and_passed_and_nobody_else_notices(
    broker: FakeBroker, concurrent: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    """Scenario 76."""
    fill(broker, queues=1)
    failing, well = Recorder(answer), Recorder()

    async with concurrent(failing, topics={"t": "*"}), concurrent(well, topics={"t": "*"}, instance="b"):
        await asyncio.sleep(100)

    assert sorted(failing.offsets) == sorted(well.offsets) == [0, 1, 2]
    assert saved(tmp_path / "a") == {"t/0": 3}
    assert sum("message.skipped" in record.getMessage() for record in caplog.records) == 1
    assert not [request for request in broker.requests if request.op in LOCKING]


async def test_what_lies_behind_the_ack_index_is_passed(
    broker: FakeBroker, concurrent: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create("t", 1, bodies=[b"x"] * 4)

    async def second_of_four(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        context.ack_index = 1
        return ConsumeStatus.SUCCESS

    async with concurrent(second_of_four, topics={"t": "*"}, batch=4):
        await asyncio.sleep(1)

    assert saved(tmp_path / "a") == {"t/0": 4}
    assert "queue_offset=2 count=2" in caplog.text


async def test_a_failure_is_passed_also_while_the_broker_is_away(
    broker: FakeBroker, concurrent: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    failing = Recorder(RETRY, RETRY, RETRY, takes_s=2)
    async with concurrent(failing, topics={"t": "*"}, request_timeout_s=0.1):
        await asyncio.sleep(1)
        broker.go_down()
        await asyncio.sleep(60)
        assert saved(tmp_path / "a") == {"t/0": 3}
        broker.come_up()

    assert sorted(failing.offsets) == [0, 1, 2]


async def test_a_call_that_takes_too_long_does_not_keep_the_progress_back(
    broker: FakeBroker, concurrent: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    hang = asyncio.Event()

    async def listener(messages: Messages, context: ConcurrentContext) -> ConsumeStatus:
        if messages[0].queue_offset == 0:
            await hang.wait()
        return ConsumeStatus.SUCCESS

    async with concurrent(listener, topics={"t": "*"}, consume_timeout_s=60.0):
        await asyncio.sleep(50)
        assert saved(tmp_path / "a") == {"t/0": 0}
        await asyncio.sleep(100)
        assert saved(tmp_path / "a") == {"t/0": 3}
        hang.set()


async def test_a_stop_waits_for_all_calls_and_writes_up_to_the_first_that_is_not_done(
    broker: FakeBroker, concurrent: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1, count=5)
    recorder = Recorder(takes_s=3)
    consumer: Consumer = concurrent(recorder, topics={"t": "*"}, slots=3)
    consumer.start()
    await asyncio.sleep(1)

    await consumer.stop()

    assert sorted(recorder.offsets) == [0, 1, 2]
    assert saved(tmp_path / "a") == {"t/0": 3}
    again = Recorder()
    async with concurrent(again, topics={"t": "*"}):
        await asyncio.sleep(1)
    assert sorted(again.offsets) == [3, 4]


async def test_a_log_that_was_cut_is_found_out(broker: FakeBroker, concurrent: Make, tmp_path: Path) -> None:
    fill(broker, queues=1)
    recorder = Recorder()
    async with concurrent(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)
    broker.crash(MessageQueue("t", 0), batches=1)
    for _ in range(3):
        broker.send("t", 0, b"other")
    broker.come_up()
    async with concurrent(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)

    assert recorder.offsets == [0, 1, 2, 1, 2, 3]
    assert saved(tmp_path / "a") == {"t/0": 4}


async def test_a_log_that_is_cut_under_running_calls_is_read_again_from_there(
    broker: FakeBroker, concurrent: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    recorder = Recorder(takes_s=2)
    async with concurrent(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)  # the listener has all of them
        broker.crash(MessageQueue("t", 0), batches=1)
        broker.send("t", 0, b"other 1")
        broker.come_up()
        await asyncio.sleep(10)

    assert recorder.offsets == [0, 1, 2, 1]
    assert saved(tmp_path / "a") == {"t/0": 2}


# What is kept
async def test_a_clean_stop_leaves_nothing_to_be_delivered_again(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    fill(broker)
    recorder = Recorder()
    await run_for(1, member(recorder, topics={"t": "*"}))

    assert saved(tmp_path / "a") == {"t/0": 3, "t/1": 3}
    async with member(recorder, topics={"t": "*"}):
        await asyncio.sleep(1)
        broker.send("t", 1, b"3")
        await asyncio.sleep(1)

    assert by_queue(recorder) == {0: [0, 1, 2], 1: [0, 1, 2, 3]}


async def test_a_stop_waits_for_the_running_call_and_writes_what_it_did(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    slow = Recorder(takes_s=4)
    consumer = member(slow, topics={"t": "*"})
    consumer.start()
    await asyncio.sleep(1)

    await consumer.stop()

    assert slow.offsets == [0]
    assert saved(tmp_path / "a") == {"t/0": 1}


async def test_a_file_of_now_is_at_most_5_s_old_while_messages_are_consumed(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    """Feature 121: what a killed member would get again is what it did in the last 5 s."""
    fill(broker, queues=1, count=100)
    steady = Recorder(takes_s=1)
    async with member(steady, topics={"t": "*"}):
        ages = []
        for _ in range(30):
            await asyncio.sleep(1.01)
            ages.append(len(steady.ended) - saved(tmp_path / "a")["t/0"])

    assert max(ages) == 5
    assert min(ages) == 0


async def test_the_file_names_store_log_epoch_and_generation(broker: FakeBroker, member: Make, tmp_path: Path) -> None:
    fill(broker, queues=1)
    await run_for(1, member(topics={"t": "*"}))

    found = json.loads((tmp_path / "a" / "offsets.json").read_text())
    assert found["store_id"] == f"{broker.store_id:016x}"
    assert found["topics"] == ["t"]
    assert found["queues"] == [{"topic": "t", "generation": 1, "queue_id": 0, "offset": 3, "log_epoch": 1}]


# A broker that is not what it was
async def test_a_restart_of_the_broker_changes_nothing(broker: FakeBroker, member: Make) -> None:
    fill(broker, queues=1)
    recorder = Recorder(takes_s=0.4)
    async with member(recorder, topics={"t": "*"}):
        await asyncio.sleep(0.5)
        broker.go_down()
        broker.log_epoch += 1
        await asyncio.sleep(60)
        assert recorder.offsets == [0, 1, 2]
        assert broker.members["g"] == {}
        broker.come_up()
        broker.send("t", 0, b"3")
        await asyncio.sleep(1)
        assert len(broker.members["g"]) == 1

    assert recorder.offsets == [0, 1, 2, 3]
    assert not [request for request in broker.requests if request.op in LOCKING]


async def test_a_log_that_was_cut_while_the_member_was_away_is_found_out(broker: FakeBroker, member: Make) -> None:
    fill(broker, queues=1)
    async with member(topics={"t": "*"}):
        await asyncio.sleep(1)
    broker.crash(MessageQueue("t", 0), batches=1)
    broker.send("t", 0, b"other 1")
    broker.send("t", 0, b"other 2")
    broker.send("t", 0, b"other 3")
    broker.come_up()
    recorder = Recorder()

    await run_for(1, member(recorder, topics={"t": "*"}))

    assert recorder.offsets == [1, 2, 3]


async def test_a_log_that_is_cut_under_a_running_call_is_read_again_from_there(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    recorder = Recorder(takes_s=2)
    async with member(recorder, topics={"t": "*"}):
        await asyncio.sleep(3)  # 0 is done, and the listener has 1
        broker.crash(MessageQueue("t", 0), batches=1)
        broker.send("t", 0, b"other 1")
        broker.come_up()
        await asyncio.sleep(10)

    assert recorder.offsets == [0, 1, 1]
    assert saved(tmp_path / "a") == {"t/0": 2}


async def test_another_store_is_told_and_begun_anew_with_the_old_progress_put_aside(
    broker: FakeBroker, member: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, queues=1)
    async with member(topics={"t": "*"}):
        await asyncio.sleep(1)
    broker.store_id += 1
    recorder = Recorder()

    await run_for(1, member(recorder, topics={"t": "*"}))

    assert recorder.offsets == [0, 1, 2]
    assert "offsets.other_store" in caplog.text
    assert (tmp_path / "a" / f"offsets-{broker.store_id - 1:016x}.json").exists()


async def test_a_store_that_was_away_for_another_one_is_read_from_where_it_was_left(
    broker: FakeBroker, member: Make
) -> None:
    """Somebody started the broker with the wrong directory, and noticed."""
    fill(broker, queues=1)
    recorder = Recorder()
    async with member(recorder, topics={"t": "*"}, start_from="last"):
        await asyncio.sleep(1)
        broker.go_down()
        topics, broker.topics, broker.store_id = broker.topics, {}, broker.store_id + 1
        broker.come_up()
        await asyncio.sleep(1)
        broker.go_down()
        broker.topics, broker.store_id = topics, broker.store_id - 1
        broker.send("t", 0, b"before anybody was back")
        broker.come_up()
        await asyncio.sleep(2)

    assert recorder.offsets == [3]


async def test_a_queue_whose_beginning_cannot_be_written_is_not_read_until_it_can(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    """Else a member that begins at the end and crashes would begin at a later one, and pass what came between."""
    fill(broker, queues=1)
    recorder = Recorder()
    async with member(recorder, topics={"t": "*"}, start_from="last") as consumer:
        (tmp_path / "a").rename(tmp_path / "b")
        await asyncio.sleep(1)
        assert consumer.assignment == []
        broker.send("t", 0, b"new")
        (tmp_path / "b").rename(tmp_path / "a")
        await asyncio.sleep(4)

    assert recorder.offsets == [3]
    assert saved(tmp_path / "a") == {"t/0": 4}


async def test_a_broker_that_comes_back_with_another_store_is_read_as_a_new_one(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    fill(broker, queues=1)
    recorder = Recorder(takes_s=0.3)
    async with member(recorder, topics={"t": "*"}):
        await asyncio.sleep(0.5)  # the listener has 1
        broker.go_down()
        broker.store_id += 1
        del broker.logs[MessageQueue("t", 0)][1:]
        broker.come_up()
        await asyncio.sleep(5)

    assert recorder.offsets == [0, 1, 0]
    assert saved(tmp_path / "a") == {"t/0": 1}


async def test_retention_that_was_faster_than_the_member_stops_its_queue_as_everywhere(
    broker: FakeBroker, member: Make
) -> None:
    fill(broker, queues=1)
    async with member(topics={"t": "*"}):
        await asyncio.sleep(1)
    for number in range(3, 7):
        broker.send("t", 0, b"%d" % number)
    broker.min_offsets[MessageQueue("t", 0)] = 5

    async with member(topics={"t": "*"}) as consumer:
        await asyncio.sleep(1)
        assert list(consumer.stopped_queues) == [MessageQueue("t", 0)]
    recorder = Recorder()
    await run_for(1, member(recorder, topics={"t": "*"}, on_gap="skip"))

    assert recorder.offsets == [5, 6]


async def test_running_info_tells_the_progress_and_of_no_lock(broker: FakeBroker, member: Make) -> None:
    fill(broker, queues=1)
    async with member(topics={"t": "*"}) as consumer:
        await asyncio.sleep(6)
        (queue,) = consumer.running_info()["queues"]

    assert (queue["commit_offset"], queue["reported_offset"]) == (3, 3)
    assert queue["lock_age_s"] is None


# Who has it
async def test_a_second_member_of_the_same_instance_is_refused_when_it_starts(broker: FakeBroker, member: Make) -> None:
    async with member(topics={"t": "*"}):
        with pytest.raises(ConfigError, match="instance 'a' of group 'g' runs already"):
            member(topics={"t": "*"}).start()

    await run_for(1, member(topics={"t": "*"}))


async def test_a_member_that_cannot_be_made_has_locked_nothing(member: Make, tmp_path: Path) -> None:
    def nowhere(*_: object, **__: object) -> Connection:
        raise ConfigError("no such address")

    consumer = Consumer(
        "fake:1", group="g", listener=Recorder(), connect=nowhere, model="broadcasting", instance="a",
        offsets_dir=str(tmp_path / "a"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="no such address"):
        consumer.start()

    await run_for(1, member(topics={"t": "*"}))


async def test_a_member_that_fails_gives_its_file_away(broker: FakeBroker, member: Make) -> None:
    broker.refuse[Op.JOIN] = [GroupMismatch("another mode")]
    with pytest.raises(GroupMismatch):
        await member(topics={"t": "*"}).run()

    await run_for(1, member(topics={"t": "*"}))


async def test_progress_that_cannot_be_read_is_for_people_and_leaves_the_file_unlocked(
    broker: FakeBroker, member: Make, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "offsets.json").write_text("{")
    with pytest.raises(ConfigError, match="repair it, or remove it to start over"):
        member(topics={"t": "*"}).start()

    (tmp_path / "a" / "offsets.json").unlink()
    async with member(topics={"t": "*"}):
        await asyncio.sleep(1)
