"""Selection of dead letters: a table for each condition, properties of spans, and reading in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.cli.admin.dlq_filter import ALL, DeadFilter, Span, find, matching, parse_offsets, state_at
from rmq.cli.shell import exit_codes
from rmq.cli.shell.command import Failure
from rmq.wire.errors import TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.messages import OffsetAt
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, DeadRow, DeadRun

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)


@dataclass
class Letter:
    message_id: str = "a" * 32
    key: str | None = "p-1"
    index_keys: tuple[str, ...] = ("o-17", "c-3")
    stored_at: datetime = NOON
    properties: dict[str, str] = field(
        default_factory=lambda: {
            "RMQ_ORIGIN_TOPIC": "orders",
            "RMQ_ORIGIN_QUEUE": "2",
            "RMQ_ORIGIN_ID": "b" * 32,
            "RMQ_DEAD_REASON": "TimeoutError: no answer",
        }
    )


@pytest.mark.parametrize(
    ("conditions", "is_meant"),
    [
        ({}, True),
        ({"ids": ("a" * 32,)}, True),
        ({"ids": ("b" * 32,)}, True),
        ({"ids": ("c" * 32,)}, False),
        ({"ids": ("c" * 32, "b" * 32)}, True),
        ({"keys": ("c-3",)}, True),
        ({"keys": ("c-4", "o-17")}, True),
        ({"keys": ("c-",)}, False),
        ({"keys": ("c-4", "p-1")}, True),
        ({"index_keys": ("c-4", "o-17")}, True),
        ({"index_keys": ("p-1",)}, False),
        ({"keys": ("p-1",), "index_keys": ("c-3",)}, True),
        ({"origin_topic": "orders"}, True),
        ({"origin_topic": "order"}, False),
        ({"origin_queue": 2}, True),
        ({"origin_queue": 0}, False),
        ({"reason": "timeout"}, True),
        ({"reason": "No Answer"}, True),
        ({"reason": "refused"}, False),
        ({"since": NOON}, True),
        ({"since": NOON + MOMENT}, False),
        ({"until": NOON + MOMENT}, True),
        ({"until": NOON}, False),
        ({"origin_topic": "orders", "origin_queue": 2, "reason": "timeout", "keys": ("o-17",)}, True),
        ({"origin_topic": "orders", "origin_queue": 3}, False),
    ],
)
def test_what_a_dead_letter_is_like(conditions: dict[str, Any], is_meant: bool) -> None:
    which = DeadFilter(**conditions)

    assert which.matches(Letter()) is is_meant  # type: ignore[arg-type]
    assert which.needs_messages is bool(conditions)


def test_a_dead_letter_that_says_nothing_of_itself_has_no_origin_and_no_reason() -> None:
    bare = Letter(properties={})

    for conditions in ({"origin_topic": "orders"}, {"origin_queue": 0}, {"reason": "x"}, {"ids": ("b" * 32,)}):
        assert not DeadFilter(**conditions).matches(bare)  # type: ignore[arg-type]


RUNS = [DeadRun(2, 4, REPLAYED), DeadRun(6, 7, DROPPED)]


@pytest.mark.parametrize(
    ("conditions", "spans"),
    [
        ({}, [(0, 2), (4, 6), (7, 10)]),
        ({"state": "replayed"}, [(2, 4)]),
        ({"state": "dropped"}, [(6, 7)]),
        ({"state": ALL}, [(0, 10)]),
        ({"offsets": ((3, 4),)}, []),
        ({"offsets": ((3, 4),), "state": ALL}, [(3, 4)]),
        ({"offsets": ((8, 30), (1, 5))}, [(1, 2), (4, 5), (8, 10)]),
        ({"offsets": ((1, 3), (2, 9)), "state": ALL}, [(1, 9)]),
        ({"offsets": ((10, 11),), "state": ALL}, []),
    ],
)
def test_what_is_looked_at(conditions: dict[str, Any], spans: list[Span]) -> None:
    assert DeadFilter(**conditions).spans(0, 10, RUNS) == spans


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6), st.sampled_from([REPLAYED, DROPPED])), max_size=6),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=4),
    st.sampled_from(["waiting", "replayed", "dropped", ALL]),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_spans_are_exactly_the_offsets_that_are_meant(
    lengths: list[tuple[int, int, int]], named: list[tuple[int, int]], state: str, first: int, length: int
) -> None:
    runs, at = [], 0
    for gap, size, what in lengths:
        runs.append(DeadRun(at + gap, at + gap + size, what))
        at += gap + size
    offsets = tuple((start, start + size + 1) for start, size in named)
    which = DeadFilter(offsets=offsets, state=state)

    spans = which.spans(first, first + length, runs)

    assert [offset for start, end in spans for offset in range(start, end)] == [
        offset
        for offset in range(first, first + length)
        if (not offsets or any(start <= offset < end for start, end in offsets))
        and state in (ALL, state_at(runs, offset))
    ]


@pytest.mark.parametrize(
    ("offset", "state"),
    [(1, "waiting"), (2, "replayed"), (3, "replayed"), (4, "waiting"), (6, "dropped"), (7, "waiting")],
)
def test_the_state_at_an_offset(offset: int, state: str) -> None:
    assert state_at(RUNS, offset) == state
    assert state_at([], offset) == "waiting"


def test_a_state_does_not_count_as_a_condition() -> None:
    assert DeadFilter(state=ALL).is_everything
    assert not DeadFilter(offsets=((1, 2),)).is_everything
    assert not DeadFilter(offsets=((1, 2),)).needs_messages
    assert not DeadFilter(keys=("k",)).is_everything


@pytest.mark.parametrize(("text", "span"), [("3", (3, 4)), ("10-20", (10, 21)), ("7-7", (7, 8)), (" 0 ", (0, 1))])
def test_offsets_as_people_type_them(text: str, span: Span) -> None:
    assert parse_offsets(text) == span


@pytest.mark.parametrize("text", ["", "-", "x", "3-", "-3", "1-2-3", "²", "1" * 19, "3.5"])
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an offset: write 3, or 10-20 for a range"):
        parse_offsets(text)


def test_a_range_goes_upwards() -> None:
    with pytest.raises(ValueError, match="'20-10' ends before it starts"):
        parse_offsets("20-10")


def test_offsets_that_do_not_exist_are_returned() -> None:
    which = DeadFilter(offsets=((0, 2), (1, 4), (8, 20), (10, 11)))

    assert which.missing_offsets(3, 10) == [(0, 2), (10, 11)]


@dataclass
class LetterDeadFinding:
    queue_offset: int
    index_keys: tuple[str, ...]
    properties: dict[str, str] = field(default_factory=dict)
    key: str | None = None


class FakeAdmin:
    """Dead letters 2 to 20 of the group g, of which 5 to 8 were replayed; noon was at offset 10."""

    def __init__(self, states: Exception | None = None) -> None:
        self.reads: list[tuple[MessageQueue, int, int]] = []
        self._states = states

    async def list_dead_letters(self) -> list[DeadRow]:
        return [DeadRow(name, f"%DLQ%{name}", 2, 20, 15, 3, 0) for name in ("f", "g")]

    async def dead_letter_states(self, group: str) -> list[DeadRun]:
        if self._states is not None:
            raise self._states
        return [DeadRun(5, 8, REPLAYED)]

    async def offsets_at(self, queues: Any, time: datetime) -> list[OffsetAt]:
        return [OffsetAt(0, 10, 2, 30)]

    async def read(self, queue: MessageQueue, start: int, end: int) -> AsyncIterator[list[LetterDeadFinding]]:
        self.reads.append((queue, start, end))
        letters = [LetterDeadFinding(offset, ("even",) if offset % 2 == 0 else ()) for offset in range(start, end)]
        for at in range(0, len(letters), 3):
            yield letters[at : at + 3]


@pytest.mark.parametrize(
    ("which", "spans"),
    [
        (DeadFilter(), [(2, 5), (8, 20)]),
        (DeadFilter(since=NOON), [(10, 20)]),
        (DeadFilter(until=NOON), [(2, 5), (8, 10)]),
        (DeadFilter(offsets=((0, 4), (18, 40))), [(2, 4), (18, 20)]),
    ],
)
async def test_no_more_is_read_than_has_to_be(which: DeadFilter, spans: list[tuple[int, int]]) -> None:
    admin: Any = FakeAdmin()

    letters = await find(admin, "g", which)

    assert letters.spans == spans
    assert letters.total == sum(end - start for start, end in spans)


async def test_those_that_match_come_in_order_and_all_that_were_looked_at_are_counted() -> None:
    admin: Any = FakeAdmin()
    which = DeadFilter(keys=("even",))
    letters = await find(admin, "g", which)
    looked: list[int] = []

    found = [letter.queue_offset async for letter in matching(admin, letters, which, looked.append)]

    assert found == [2, 4, 8, 10, 12, 14, 16, 18]
    assert sum(looked) == letters.total == 15
    queue = MessageQueue("%DLQ%g", 0)
    assert admin.reads == [(queue, 2, 5), (queue, 8, 20)]


@pytest.mark.parametrize(("group", "error"), [("nobody", None), ("g", TopicNotFound("deleted in between"))])
async def test_a_group_without_dead_letters_is_refused(group: str, error: Exception | None) -> None:
    admin: Any = FakeAdmin(error)

    with pytest.raises(Failure, match=f"the group '{group}' has no dead letters") as raised:
        await find(admin, group, DeadFilter())

    assert raised.value.exit_code == exit_codes.NO_INPUT
