"""What became of a message, from facts: no broker, no clock."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.client.admin.trace import (
    Copy,
    Origin,
    copies,
    dead_state,
    group_of,
    is_for_group,
    origin_of,
    progress,
    standing,
)
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.ops.groups import GroupDescription, GroupQueue
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, DeadRun

from support.stored import stored_message

ORIGINAL = stored_message("orders", 2, 17, position=80, tag="paid")
ORIGIN = Origin("orders", 2, 17, ORIGINAL.message_id)
SAID = {
    "RMQ_ORIGIN_TOPIC": "orders",
    "RMQ_ORIGIN_QUEUE": "2",
    "RMQ_ORIGIN_OFFSET": "17",
    "RMQ_ORIGIN_ID": ORIGINAL.message_id,
}
RETRY = stored_message("%RETRY%g", 0, 3, position=160, at=2000, copy_of=120, properties=SAID, attempts=1)
LETTER = stored_message(
    "%DLQ%g", 0, 5, position=240, at=3000, copy_of=160,
    properties={**SAID, "RMQ_ATTEMPTS": "2", "RMQ_DEAD_REASON": "poison"},
)  # fmt: skip
REPLAYED_COPY = stored_message("%RETRY%g", 0, 4, position=320, at=4000, copy_of=240, properties=SAID)
RETURNED = stored_message("orders", 2, 30, position=400, at=5000, copy_of=240)
PUT_OFF = stored_message("%RETRY%g", 0, position=480, at=6000, due_at=9000, copy_of=320, properties=SAID, attempts=2)


def described(expression: str | None = "*", model: str | None = "clustering") -> GroupDescription:
    subscribed = {} if expression is None else {"orders": expression}
    return GroupDescription("g", True, model, "average", 0, 0, subscribed, [], [])


def queue(committed: int, **more: object) -> GroupQueue:
    return GroupQueue("orders", 2, 5, 40, committed, 0)._replace(**more)


# ---- origin


@pytest.mark.parametrize("message", [RETRY, LETTER, REPLAYED_COPY, PUT_OFF, ORIGINAL])
def test_every_copy_for_a_group_names_the_first_message(message: StoredMessage) -> None:
    assert origin_of(message) == ORIGIN


def test_a_dead_letter_that_was_put_back_is_a_message_of_its_own() -> None:
    assert origin_of(RETURNED) == Origin("orders", 2, 30, RETURNED.message_id)
    assert not is_for_group(RETURNED)


def test_properties_of_users_make_no_copy() -> None:
    sent = stored_message("orders", 2, 18, position=88, properties=SAID)

    assert origin_of(sent).queue_offset == 18


@pytest.mark.parametrize("name", [*SAID])
@pytest.mark.parametrize("text", [None, "", "x"])
def test_a_copy_that_does_not_say_where_it_is_from_is_told_as_itself(name: str, text: str | None) -> None:
    said = {key: value for key, value in SAID.items() if key != name} | ({} if text is None else {name: text})
    message = stored_message("%RETRY%g", 0, 3, position=160, properties=said)
    is_text = name in ("RMQ_ORIGIN_TOPIC", "RMQ_ORIGIN_ID")

    assert (origin_of(message).message_id == message.message_id) == (text is None or not is_text)


@pytest.mark.parametrize(("message", "group"), [(ORIGINAL, None), (RETRY, "g"), (LETTER, "g"), (RETURNED, None)])
def test_the_group_of_a_copy(message: StoredMessage, group: str | None) -> None:
    assert group_of(message) == group


# ---- groups


@pytest.mark.parametrize(
    ("committed", "position", "before"),
    [(-1, "none", 0), (0, "before", 12), (10, "before", 7), (16, "before", 1), (17, "at", 0), (18, "past", 0)],
)
def test_where_a_group_stands_is_a_matter_of_its_committed_offset(committed: int, position: str, before: int) -> None:
    told = standing(ORIGINAL, ORIGIN, described(), queue(committed))

    assert (told.position, told.messages_before) == (position, before)
    assert told.committed == (None if committed < 0 else committed)
    assert (told.owner, told.epoch, told.lease_left_s) == (None, None, None)


@given(st.integers(0, 100), st.integers(-1, 100))
def test_a_message_is_past_at_or_before_and_nothing_else(offset: int, committed: int) -> None:
    expected = "none" if committed < 0 else "past" if committed > offset else "at" if committed == offset else "before"

    assert progress(offset, committed) == expected


def test_the_owner_and_its_failures_are_told() -> None:
    at = queue(17, owner="h@1#ab", epoch=5, lease_left_s=9.0, state="held", retry_offset=17, attempts=3,
               suspect_offset=17, abandoned=2)  # fmt: skip
    told = standing(ORIGINAL, ORIGIN, described(), at)
    other = standing(ORIGINAL, ORIGIN, described(), at._replace(retry_offset=16, suspect_offset=16))

    assert (told.owner, told.epoch, told.lease_left_s, told.state) == ("h@1#ab", 5, 9.0, "held")
    assert (told.attempts, told.abandoned) == (3, 2)
    assert (other.attempts, other.abandoned) == (0, 0)


@pytest.mark.parametrize(
    ("expression", "position"),
    [("*", "past"), ("paid || new", "past"), ("new", "unwanted"), (None, "past"), ("not | one", "past")],
)
def test_a_tag_that_is_not_subscribed_to_is_not_wanted(expression: str | None, position: str) -> None:
    assert standing(ORIGINAL, ORIGIN, described(expression), queue(20)).position == position


def test_without_the_message_its_tag_says_nothing() -> None:
    assert standing(None, ORIGIN, described("new"), queue(20)).position == "past"


def test_members_that_broadcast_have_a_progress_of_their_own() -> None:
    assert standing(ORIGINAL, ORIGIN, described(model="broadcasting"), queue(-1)).position == "broadcasting"


# ---- copies

ALL = (RETRY, LETTER, REPLAYED_COPY, RETURNED, PUT_OFF)


def told(*messages: StoredMessage, committed: int = 4) -> list[Copy]:
    return copies(messages, {"g": committed}, {"g": [DeadRun(5, 6, REPLAYED)]})


def test_copies_are_told_once_and_in_the_order_they_were_made_however_they_were_found() -> None:
    expected = told(*ALL)

    assert [copy.kind for copy in expected] == ["retry", "dead_letter", "replay", "returned", "retry"]
    for found in list(permutations(ALL))[::7]:
        assert told(*found, *found[:2]) == expected


def test_what_became_of_each_copy() -> None:
    retry, letter, replay, returned, put_off = told(*ALL)

    assert (retry.state, retry.delivery, retry.queue_offset) == ("failed", 2, 3)
    assert (letter.state, letter.delivery, letter.reason) == ("replayed", 2, "poison")
    assert (replay.state, replay.delivery) == ("failed", 1)
    assert (returned.state, returned.group, returned.topic) == (None, None, "orders")
    assert (put_off.state, put_off.queue_offset, put_off.delivery) == ("waiting", None, 3)
    assert put_off.due_at == PUT_OFF.due_at


@pytest.mark.parametrize(("committed", "state"), [(-1, "none"), (2, "before"), (3, "at"), (4, "past")])
def test_a_retry_stands_where_its_group_is_with_its_retries(committed: int, state: str) -> None:
    (copy,) = told(RETRY, committed=committed)

    assert copy.state == state


@pytest.mark.parametrize(("offset", "state"), [(0, "waiting"), (1, "replayed"), (2, "replayed"), (3, "dropped")])
def test_the_state_of_a_dead_letter_is_that_of_its_run(offset: int, state: str) -> None:
    assert dead_state(offset, [DeadRun(1, 3, REPLAYED), DeadRun(3, 9, DROPPED)]) == state
