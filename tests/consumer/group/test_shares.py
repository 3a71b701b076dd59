"""Shares are computed topic by topic; one that fails does not touch the others, and each change is told once."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.consumer.group.allocation import AVERAGE, PlacedQueue, Share, Shares, Strategy, named
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import QueueInfo

TOPICS = {"t": [QueueInfo(i, "b") for i in range(3)], "u": [QueueInfo(0, "b")]}


def queues(topic: str, *ids: int) -> frozenset[MessageQueue]:
    return frozenset(MessageQueue(topic, queue_id) for queue_id in ids)


def fails_at_t(offered: Any, members: Any, member: Any) -> Any:
    if offered[0].topic == "t":
        raise KeyError("weight")
    return offered


def test_each_topic_is_shared_out_for_itself() -> None:
    shares = Shares(AVERAGE).of_topics(TOPICS, ["a", "b"], "a", held=[])

    assert shares == {"t": Share(queues("t", 0, 1), 3, 2), "u": Share(queues("u", 0), 1, 2)}


def test_a_topic_whose_strategy_raises_keeps_what_is_held_and_the_others_go_on() -> None:
    shares = Shares(named(fails_at_t)).of_topics(TOPICS, ["a"], "a", held=[*queues("t", 2), *queues("u", 0)])

    assert shares["t"] == Share(queues("t", 2), 3, 1, "KeyError: 'weight'")
    assert shares["u"] == Share(queues("u", 0), 1, 1)


def test_the_strategy_sees_topics_without_their_namespace() -> None:
    offered: list[PlacedQueue] = []

    def all_of_them(placed: Any, members: Any, member: Any) -> Any:
        offered.extend(placed)
        return placed

    shares = Shares(named(all_of_them), "team").of_topics({"team%t": TOPICS["u"]}, ["a"], "a", held=[])

    assert offered == [PlacedQueue("t", "b", 0)]
    assert shares["team%t"].ours == queues("team%t", 0)


def test_a_change_is_told_once_with_strategy_sizes_and_result(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rmq.consumer")
    shares = Shares(AVERAGE)
    for members in (["a"], ["a"], ["a", "b"], ["a", "b"]):
        shares.report("g", shares.of_topics({"t": TOPICS["t"]}, members, "a", held=[]))

    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    for part in ("rebalance.changed", "average", "3", "[0, 1]"):
        assert part in told[1]


def test_a_topic_that_does_not_exist_when_it_is_subscribed_to_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    shares = Shares(AVERAGE)
    for infos in ([], [], TOPICS["t"], []):  # one that goes later is told of by whoever hears of that
        shares.report("g", shares.of_topics({"ordres": infos}, ["a"], "a", held=[]))

    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "topic.awaited" in told[0] and "ordres" in told[0]


def test_a_failure_is_told_once_until_it_is_another(caplog: pytest.LogCaptureFixture) -> None:
    shares = Shares(named(fails_at_t))
    for _ in range(3):
        shares.report("g", shares.of_topics({"t": TOPICS["t"]}, ["a"], "a", held=[]))

    assert caplog.text.count("rebalance.failed") == 1
    assert "KeyError: 'weight'" in caplog.text


def test_the_retries_of_the_group_are_shared_evenly_whatever_the_strategy_leaves_out() -> None:
    nobody = Strategy("nobody", lambda queues, members, member: [])

    shares = Shares(nobody, retry_topic="u").of_topics(TOPICS, ["a", "b"], "a", held=[])

    assert (shares["t"].ours, shares["u"].ours) == (frozenset(), queues("u", 0))


def test_nothing_is_told_of_retries_before_there_are_any(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rmq.consumer")
    shares = Shares(AVERAGE, retry_topic="%RETRY%g")
    for infos in ([], TOPICS["u"], []):
        shares.report("g", shares.of_topics({"%RETRY%g": infos}, ["a"], "a", held=[]))

    told = [record.getMessage() for record in caplog.records]
    assert [("queues=1" in text, "queues=0" in text) for text in told] == [(True, False), (False, True)]
