"""Pulls that are asked for ahead are answered, also when the connection ended meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq.client.scan.ranges import Manner, QueueRange
from rmq.engine.native.source import BrokerSource, source_of
from rmq.wire.batch.batch import Rows
from rmq.wire.errors import OK, ConnectionLost, LogTruncated, RequestTimeout, ShuttingDown, TopicNotFound
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops.core import Op
from rmq.wire.stores import StoreIds

from support.threaded_broker import STORE_ID, FakeBroker

MANNER = Manner(("body",))


@pytest.fixture
def part(fake_broker: FakeBroker) -> QueueRange:
    fake_broker.create("orders")
    fake_broker.append("orders", 0, Rows([b"x"] * 10, 0))
    return QueueRange(fake_broker.address, StoreIds(STORE_ID), "orders", 1, 0, 0, 10)


def hang_up(answer: Any) -> Any:
    raise OSError


def stopping(answer: Any) -> Any:
    raise ShuttingDown("the broker is stopping")


def test_nothing_is_opened_before_something_is_asked_for(fake_broker: FakeBroker, part: QueueRange) -> None:
    source_of(part, MANNER).close()

    assert fake_broker.requests == []


def test_what_was_asked_for_is_answered(fake_broker: FakeBroker, part: QueueRange) -> None:
    source = BrokerSource(part, replace(MANNER, tags="a || b"))
    source.ask(3, 1000)
    answer = source.answer()
    source.ask(10, 2000)

    assert (answer.status, answer.next_offset, source.answer().status) == (ops.EMPTY, 10, ops.EMPTY)
    pulls = [payload for op, payload in fake_broker.requests if op is Op.PULL]
    assert [(pull[2], pull[3][0][:3], pull[4]) for pull in pulls] == [
        (1000, ["orders", 0, 3], "a || b"),
        (2000, ["orders", 0, 10], "a || b"),
    ]
    source.close()


@pytest.mark.parametrize("fault", [hang_up, stopping])
def test_a_connection_that_ended_behind_an_answer_is_made_anew_once(
    fake_broker: FakeBroker, part: QueueRange, fault: Any
) -> None:
    source = BrokerSource(part, MANNER)
    fake_broker.fail_next(Op.PULL, lambda answer: answer, fault)
    source.ask(0, 1000)
    assert source.answer().status == OK

    source.ask(5, 1000)
    answer = source.answer()

    assert (answer.status, answer.next_offset) == (OK, 10)
    assert sum(op is Op.HELLO for op, _ in fake_broker.requests) == 2
    source.close()


def test_a_connection_that_ends_before_its_first_answer_is_an_error(fake_broker: FakeBroker, part: QueueRange) -> None:
    source = BrokerSource(part, MANNER)
    fake_broker.fail_next(Op.PULL, hang_up, hang_up)
    source.ask(0, 1000)

    with pytest.raises(ConnectionLost):
        source.answer()
    source.close()


def test_one_that_was_made_anew_and_ends_again_is_an_error(fake_broker: FakeBroker, part: QueueRange) -> None:
    source = BrokerSource(part, MANNER)
    fake_broker.fail_next(Op.PULL, lambda answer: answer, hang_up, hang_up)
    source.ask(0, 1000)
    source.answer()
    source.ask(5, 1000)

    with pytest.raises(ConnectionLost):
        source.answer()
    source.close()


def test_a_broker_that_is_silent_for_too_long_is_an_error(fake_broker: FakeBroker, part: QueueRange) -> None:
    source = BrokerSource(part, replace(MANNER, timeout_s=0.05))
    fake_broker.fail_next(Op.PULL, lambda answer: fake_broker.wait_for_connections(0))
    source.ask(0, 1000)

    with pytest.raises(RequestTimeout, match=r"within 0\.05 s"):
        source.answer()
    source.close()


def test_another_store_is_refused_before_anything_is_asked_for(fake_broker: FakeBroker, part: QueueRange) -> None:
    with pytest.raises(LogTruncated, match="another store"):
        BrokerSource(replace(part, stores=StoreIds(5)), MANNER).ask(0, 1000)

    assert [op for op, _ in fake_broker.requests] == [Op.HELLO]
    assert fake_broker.wait_for_connections(0)


def test_it_tells_whether_the_topic_is_still_the_same(fake_broker: FakeBroker, part: QueueRange) -> None:
    source = BrokerSource(part, MANNER)
    assert not source.made_again()
    fake_broker.generation = 2
    assert source.made_again()
    del fake_broker.topics["orders"]
    assert not source.made_again(), "a topic that is gone is told by the pull"
    source.close()


def test_a_topic_that_is_gone_is_told_by_the_pull(fake_broker: FakeBroker, part: QueueRange) -> None:
    source = BrokerSource(part, MANNER)

    def gone(answer: Any) -> Any:
        raise TopicNotFound("the topic 'orders' was deleted")

    fake_broker.fail_next(Op.PULL, gone)
    source.ask(0, 1000)

    with pytest.raises(TopicNotFound, match="was deleted"):
        source.answer()
    source.close()
