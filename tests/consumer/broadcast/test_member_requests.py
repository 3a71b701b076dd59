"""The requests of a broadcasting member one by one, over a link that says what the test wants."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from rmq.consumer.broadcast.member import Broadcaster
from rmq.consumer.broadcast.progress import LocalOffsets, open_offsets
from rmq.consumer.config import ConsumerConfig
from rmq.consumer.group.topics import KnownTopics
from rmq.engine.native.group import Link
from rmq.wire.errors import BadRequest, ConnectionLost, RequestTimeout, TopicNotFound
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

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("nothing_left_running")]


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
    offsets = open_offsets(ConsumerConfig(group="g", offsets_dir=str(directory)), "g", {}, now=lambda: 0.0)
    offsets.enter(StoreIds(7))
    link, config, topics = Silent(), ConsumerConfig(group="g"), KnownTopics()
    broadcaster = Broadcaster(cast(Link, link), "g", config, offsets, topics=lambda: topics, now=lambda: 0.0)
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
    offsets = open_offsets(ConsumerConfig(group="g", offsets_dir=str(tmp_path)), "g", {}, now=lambda: 0.0)
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
        cast(Link, Replaced()), "g", ConsumerConfig(group="g"), offsets, topics=lambda: topics, now=lambda: 0.0
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
