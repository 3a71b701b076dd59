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


@pytest.mark.parametrize("check", [names.check_topic, names.check_group])
def test_a_namespace_without_a_name_is_told_whole(check: Check) -> None:
    with pytest.raises(BadName, match="name '50%' has nothing behind its namespace: write NAMESPACE%NAME"):
        check("50%")


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


# Namespaces


@pytest.mark.parametrize(
    ("plain", "wrapped"),
    [
        ("orders", "team%orders"),
        ("%RETRY%billing", "%RETRY%team%billing"),
        ("%DLQ%billing", "%DLQ%team%billing"),
    ],
)
def test_a_namespace_stands_before_the_name_and_behind_the_prefix_of_what_rmq_makes(plain: str, wrapped: str) -> None:
    """RocketMQ's forms: ``ns%name`` and ``%RETRY%ns%group``."""
    assert names.wrap("team", plain) == wrapped
    assert names.unwrap("team", wrapped) == plain
    assert names.unwrap("other", wrapped) == wrapped


@pytest.mark.parametrize("name", ["orders", "%DLQ%billing", "team%orders"])
def test_no_namespace_changes_nothing(name: str) -> None:
    assert names.wrap("", name) == names.unwrap("", name) == name


@both
def test_a_name_in_a_namespace_is_legal_and_one_in_two_is_not(check: Check) -> None:
    check("team%orders")
    with pytest.raises(BadName):
        check("team%sub%orders")


@pytest.mark.parametrize("name", ["a%b", "", "a b", "größe"])
def test_a_namespace_is_a_plain_name(name: str) -> None:
    with pytest.raises(BadName):
        names.check_namespace(name)


@pytest.mark.parametrize("name", ["orders", "team%orders", "%DLQ%billing", "%RETRY%team%billing"])
def test_what_a_member_can_read(name: str) -> None:
    names.check_readable(name)


@pytest.mark.parametrize("name", ["%DLQ%", "%RETRY%a b", "%OTHER%g", "SCHEDULE_TOPIC_XXXX"])
def test_what_nobody_can_read(name: str) -> None:
    with pytest.raises(BadName):
        names.check_readable(name)
