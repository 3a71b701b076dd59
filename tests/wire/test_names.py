"""Which names are legal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmq.wire import names
from rmq.wire.errors import BadName

Check = Callable[[str], None]
both = pytest.mark.parametrize("check", [names.check_topic, names.check_group])


@both
@pytest.mark.parametrize("name", ["a", "orders", "Orders_2-b", "0", "-", "_", "x" * 126, "x" * 127])
def test_letters_digits_dash_and_underscore_are_legal(check: Check, name: str) -> None:
    check(name)


@both
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        ("x" * 128, "has 128 characters, at most 127"),
        ("a b", "may hold only"),
        (" a", "may hold only"),
        ("a\n", "may hold only"),
        ("\n", "may hold only"),
        ("a\x00", "may hold only"),
        ("größe", "may hold only"),
        ("٣", "may hold only"),  # a digit to str.isdigit
        ("a.b", "may hold only"),
        ("a/b", "may hold only"),
        ("..", "may hold only"),
        ("%RETRY%g", "may hold only"),
        ("%DLQ%g", "may hold only"),
        ("a@b", "may hold only"),
    ],
)
def test_anything_else_is_refused_with_a_reason(check: Check, name: str, why: str) -> None:
    with pytest.raises(BadName, match=why):
        check(name)


def test_a_long_illegal_name_is_not_repeated_in_full() -> None:
    with pytest.raises(BadName) as caught:
        names.check_topic("€" * 120)

    assert len(caught.value.text) < 150


def test_the_schedule_topic_is_reserved_as_topic_only() -> None:
    """RocketMQ keeps delayed messages under this name."""
    with pytest.raises(BadName, match="reserved"):
        names.check_topic("SCHEDULE_TOPIC_XXXX")
    names.check_group("SCHEDULE_TOPIC_XXXX")


def test_names_that_rmq_makes_itself_are_not_legal_for_users() -> None:
    for prefix in ("%RETRY%", "%DLQ%"):
        with pytest.raises(BadName):
            names.check_topic(prefix + "group")
