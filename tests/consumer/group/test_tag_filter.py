"""
Tag expressions: exact, joined by ``||``, with ``*`` for all.

What a member subscribes to: what its user wants, and the retries of its group beside it.
"""

from __future__ import annotations

from array import array

import pytest

from rmq.consumer.group.tag_filter import Subscribed, Subscription
from rmq.wire.batch.columns import TagColumn
from rmq.wire.errors import ConfigError

COLUMN = TagColumn(["created", "paid"], array("H", [1, 0, 2, 1, 2]))


@pytest.mark.parametrize("expression", ["*", "", "  ", " * "])
def test_a_star_or_nothing_is_everything(expression: str) -> None:
    subscription = Subscription(expression)

    assert subscription.expression == "*"
    assert list(subscription.select(COLUMN, 1, 4)) == [1, 2, 3]
    assert list(subscription.select(None, 0, 2)) == [0, 1]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("created", [0, 3]),
        ("paid || created", [0, 2, 3, 4]),
        ("paid||other", [2, 4]),
        (" paid || ", [2, 4]),
        ("Paid", []),
        ("pai", []),
        ("other", []),
    ],
)
def test_tags_match_exactly_and_a_message_without_one_matches_none(expression: str, wanted: list[int]) -> None:
    subscription = Subscription(expression)

    assert list(subscription.select(COLUMN, 0, 5)) == wanted
    assert list(subscription.select(COLUMN, 3, 5)) == [i for i in wanted if i >= 3]
    assert list(subscription.select(None, 0, 5)) == []


def test_equal_sets_of_tags_read_the_same_for_the_group() -> None:
    assert Subscription("paid||created").expression == Subscription(" created || paid").expression == "created || paid"
    assert repr(Subscription("a")) == "Subscription('a')"


@pytest.mark.parametrize("expression", ["||", "* || paid", "a | b", "paid created"])
def test_what_is_no_expression_is_refused_with_an_example(expression: str) -> None:
    with pytest.raises(ConfigError, match="such as 'created || paid'".replace("|", r"\|")):
        Subscription(expression)


ORDERS = Subscription("paid")


def test_the_retries_of_the_group_come_with_the_first_subscription_and_go_with_the_last() -> None:
    chosen: dict[str, Subscription] = {}
    subscribed = Subscribed(chosen, "%RETRY%g")

    assert (bool(subscribed), subscribed.all(), "%RETRY%g" in subscribed) == (False, {}, False)
    chosen["orders"] = ORDERS
    assert (bool(subscribed), "%RETRY%g" in subscribed, "orders" in subscribed, "x" in subscribed) == (
        True, True, True, False,
    )  # fmt: skip
    wanted = subscribed.all()
    assert {topic: each.expression for topic, each in wanted.items()} == {"%RETRY%g": "*", "orders": "paid"}
    assert subscribed.all() == wanted  # so that it can be told whether anything has changed
    del chosen["orders"]
    assert not subscribed.all()


def test_a_member_that_rests_consumes_nothing_and_forgets_nothing() -> None:
    subscribed = Subscribed({"orders": ORDERS}, "%RETRY%g")
    wanted = subscribed.all()

    subscribed.resting = True
    assert (bool(subscribed), subscribed.all(), "orders" in subscribed, "%RETRY%g" in subscribed) == (
        False, {}, False, False,
    )  # fmt: skip
    subscribed.resting = False
    assert subscribed.all() == wanted


def test_a_group_whose_members_share_nothing_out_has_no_retries() -> None:
    subscribed = Subscribed({"orders": ORDERS}, None)

    assert subscribed.all() == {"orders": ORDERS}
    assert "%RETRY%g" not in subscribed


def test_whoever_subscribes_to_the_retries_gets_them_as_asked_for() -> None:
    wanted = Subscribed({"%RETRY%g": ORDERS}, "%RETRY%g").all()

    assert wanted == {"%RETRY%g": ORDERS}


def test_going_back_changes_what_the_user_wants_and_never_names_the_retries() -> None:
    chosen = {"new": Subscription()}
    subscribed = Subscribed(chosen, "%RETRY%g")

    subscribed.go_back({"%RETRY%g": Subscription(), "orders": ORDERS})

    assert chosen == {"orders": ORDERS}
