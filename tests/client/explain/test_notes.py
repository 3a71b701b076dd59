"""What is noted of a group besides its queues, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq.client.explain.facts import DeferredMessages, Members
from rmq.client.explain.notes import Note, notes_of
from rmq.wire.errors import MemberSilent
from rmq.wire.protocol.ops.groups import GroupDescription, GroupQueue, MemberReport, MemberState

from ..explain_builders import OTHER, OWNER, held


def described(queues: int = 1, **more: Any) -> GroupDescription:
    members = [MemberState(OWNER, "0", "x:1", "connected", 0.1, 4), MemberState(OTHER, "1", "x:2", "connected", 0.1, 4)]
    fields: dict[str, Any] = {"model": "clustering", "subscriptions": {"t": "*"}, "members": members, "more_queues": 0}
    return GroupDescription(
        **{"group": "g", "ordered": True, "strategy": "average", "more_members": 0, **fields, **more},
        queues=[GroupQueue("t", i, 0, 0, 0, 0) for i in range(queues)],
    )


def idle(*names: str) -> list[MemberState]:
    return [MemberState(name, "0", "x:1", "connected", 0.1, 0 if name in names else 4) for name in (OWNER, OTHER)]


NOBODY = Members([])


def test_a_group_of_which_there_is_nothing_to_say_has_no_notes() -> None:
    assert notes_of(described(), NOBODY, [held()]) == []


def test_what_may_explain_the_most_comes_first() -> None:
    told = notes_of(
        described(model="broadcasting", more_queues=3), NOBODY, [replace(held(), deferred=DeferredMessages(1, 5.0))],
        dead=1, refuses_sends="the disk is full",
    )  # fmt: skip

    assert told == [
        Note("SENDS_REFUSED", "the broker refuses new messages: the disk is full."),
        Note("BROADCASTING", "the group is broadcasting: each of its 2 members has every queue for itself."),
        Note(
            "DELAYED", "1 delayed message waits for its time, the next comes in 5.0 s.",
            "`rmq-admin delay list` shows them.",
        ),
        Note(
            "DEAD_LETTERS", "1 dead letter waits for a decision.",
            "`rmq-admin dlq show g` shows them, `rmq-admin dlq replay g` has them delivered again.",
        ),
        Note("MORE_QUEUES", "3 more queues were not looked at: name a topic."),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("subscriptions", "topic", "missing"),
    [
        ({"t": "*", "%RETRY%g": "*"}, None, False),
        ({"t": "*", "ordres": "*"}, None, True),
        ({"t": "*", "ordres": "*"}, "t", False),
    ],
)
def test_a_topic_that_does_not_exist_is_noted_unless_another_was_asked_for(
    subscriptions: dict[str, str], topic: str | None, missing: bool
) -> None:
    told = notes_of(described(subscriptions=subscriptions), NOBODY, [held()], topic=topic)

    assert [note.code for note in told] == ["TOPIC_MISSING"] * missing


def test_members_without_a_queue_are_noted_unless_they_wait_for_a_lock() -> None:
    waits = Members([MemberReport(0, OTHER, None, {"waits_for": [["t", 0, "held"]]})])
    silent = Members([MemberReport(MemberSilent.code, OTHER, "silent")])
    alone = described(members=idle(OTHER))

    assert [note.sentence for note in notes_of(alone, NOBODY, [])] == [
        "1 of 2 members has no queue: there are not enough for all."
    ]
    assert notes_of(alone, waits, []) == []
    assert [note.code for note in notes_of(alone, silent, [])] == ["MEMBER_SILENT", "IDLE_MEMBERS"]
    assert notes_of(described(members=idle(OWNER, OTHER), model="broadcasting"), NOBODY, [])[1:] == []


def test_a_silent_member_is_noted_where_others_have_its_queues() -> None:
    gone = [MemberState(OTHER, "0", "x:1", "silent", 75.0, 0)]
    alone = described(members=gone)
    among = described(members=[*gone, MemberState(OWNER, "0", "x:1", "connected", 0.1, 1)])
    back = Members([MemberReport(0, OTHER, None, {})])

    (note,) = notes_of(among, NOBODY, [])
    assert (note.code, note.sentence) == (
        "MEMBER_SILENT", f"{OTHER} is connected, but has been silent for 75 s and was taken out of the group.",
    )  # fmt: skip
    assert note.advice.startswith("See where it is (on pay-2: `py-spy dump --pid 52`")
    assert notes_of(alone, NOBODY, []) == []
    assert [note.code for note in notes_of(alone._replace(queues=[]), NOBODY, [], topic="t")] == ["MEMBER_SILENT"]
    assert notes_of(among, back, []) == []


@pytest.mark.parametrize(
    ("queues", "notes"),
    [
        (0, []),  # the topic is missing, which is noted
        (1, ["1 of 2 members has no queue: there are not enough for all."]),
        (2, ["1 of 2 members has no queue: just joined, or the strategy leaves none for it."]),
    ],
)
def test_why_a_member_has_no_queue_depends_on_how_many_there_are(queues: int, notes: list[str]) -> None:
    told = notes_of(described(queues, members=idle(OTHER)), NOBODY, [], topic="t")

    assert [note.sentence for note in told] == notes


def test_delayed_messages_count_once_for_a_queue_and_those_that_failed_do_not() -> None:
    own = replace(held(), deferred=DeferredMessages(3, 9.0))
    other = replace(held(), queue_id=4, deferred=DeferredMessages(2, 4.0, True))
    retries = replace(held(), topic="%RETRY%g", deferred=DeferredMessages(7, 1.0))

    (note,) = notes_of(described(), NOBODY, [own, own, other, retries])

    assert note.sentence == "5+ delayed messages wait for their time, the next comes in 4.0 s."
