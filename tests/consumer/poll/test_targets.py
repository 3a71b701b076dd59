"""Topics that are shared out, or queues that a consumer is told: never both."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.consumer.group.allocation import PlacedQueue
from rmq.consumer.poll.targets import PullTargets, as_queue
from rmq.wire.errors import ConfigError
from rmq.wire.model import MessageQueue


@pytest.mark.parametrize("bad", [None, "t", ("t",), ("t", -1), ("t", "0"), ("t", True), (0, 0), ("t", 0, 1), 7])
def test_what_is_no_queue_is_refused_in_one_sentence(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"a queue is \(topic, queue_id\), such as \('orders', 0\), not"):
        as_queue(bad)


def test_a_pair_is_a_queue() -> None:
    assert as_queue(("t", 3)) == as_queue(MessageQueue("t", 3)) == MessageQueue("t", 3)


def test_subscriptions_are_by_the_names_on_the_wire() -> None:
    targets = PullTargets("team")
    assert not targets

    targets.subscribe("orders", "a || b")

    assert {topic: wanted.expression for topic, wanted in targets.subscriptions.items()} == {"team%orders": "a || b"}
    assert (bool(targets), targets.model, targets.strategy) == (True, "clustering", None)
    assert targets.on_the_wire(MessageQueue("orders", 1)) == ("team%orders", 1)
    targets.unsubscribe("orders")
    assert not targets


def test_assigned_queues_are_ours_whoever_else_is_there_and_another_assignment_replaces_them() -> None:
    targets = PullTargets()
    targets.assign([("a", 1), ("b", 0)])
    strategy = targets.strategy
    assert strategy is not None

    def share(topic: str) -> set[MessageQueue]:
        return strategy.share((PlacedQueue(topic, "broker", i) for i in range(3)), ["m", "n"], "n")

    assert (strategy.name, targets.model, sorted(targets.subscriptions)) == ("assigned", "assigned", ["a", "b"])
    assert (share("a"), share("b")) == ({("a", 1)}, {("b", 0)})

    targets.assign([("a", 2)])
    assert (sorted(targets.subscriptions), share("a"), share("b")) == (["a"], {("a", 2)}, set())
    targets.assign([])
    assert not targets


def test_the_first_wish_decides_and_the_other_kind_is_refused() -> None:
    subscribed, assigned = PullTargets(), PullTargets()
    subscribed.subscribe("t", "*")
    assigned.assign([("t", 0)])

    for refused in (
        lambda: subscribed.assign([("t", 0)]),
        lambda: assigned.subscribe("t", "*"),
        lambda: assigned.unsubscribe("t"),
    ):
        with pytest.raises(ConfigError, match="either subscribes to topics or is assigned queues"):
            refused()
    assert (subscribed.assigned, assigned.model) == (set(), "assigned")


@pytest.mark.parametrize(
    ("queues", "sentence"),
    [
        ("orders", "assign.. takes a list of queues"),
        (MessageQueue("orders", 0), "assign.. takes a list of queues"),
        (7, "assign.. takes a list of queues"),
        (["orders"], "a queue is"),
        ([("bad name", 0)], "bad name"),
    ],
)
def test_a_bad_assignment_is_refused_and_changes_nothing(queues: Any, sentence: str) -> None:
    targets = PullTargets()

    with pytest.raises(ConfigError, match=sentence):
        targets.assign(queues)

    assert (targets.model, targets.assigned, targets.subscriptions) == ("", set(), {})


@pytest.mark.parametrize(("topic", "expression"), [("bad name", "*"), (7, "*"), ("t", "a || *"), ("t", 7)])
def test_a_bad_subscription_is_refused_and_decides_nothing(topic: Any, expression: Any) -> None:
    targets = PullTargets()

    with pytest.raises(ConfigError):
        targets.subscribe(topic, expression)

    assert targets.model == ""


def test_topics_of_a_constructor_are_a_dictionary() -> None:
    targets: Any = PullTargets()

    assert (targets.checked(None), targets.checked({"t": "*"})) == ({}, {"t": "*"})
    with pytest.raises(ConfigError, match="topics must be a dictionary"):
        targets.checked(["t"])
