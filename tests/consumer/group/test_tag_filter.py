"""Tag expressions: exact, joined by ``||``, with ``*`` for all."""

from __future__ import annotations

from array import array

import pytest

from rmq.consumer.group.tag_filter import Subscription
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
