"""Which dead letters a command looks at: those there are when it begins, in their order, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from rmq.cli.admin.dlq_select import DeadFilter, find, matching
from rmq.cli.shell import exit_codes
from rmq.cli.shell.command import Failure
from rmq.wire.errors import TopicNotFound
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.messages import OffsetAt
from rmq.wire.protocol.ops.redelivery import REPLAYED, DeadRow, DeadRun

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@dataclass
class Letter:
    queue_offset: int
    keys: tuple[str, ...]
    properties: dict[str, str] = field(default_factory=dict)


class FakeAdmin:
    """Dead letters 2 to 20 of the group g, of which 5 to 8 were replayed; noon was at offset 10."""

    def __init__(self, states: Exception | None = None) -> None:
        self.reads: list[tuple[MessageQueue, int, int]] = []
        self._states = states

    async def list_dead(self) -> list[DeadRow]:
        return [DeadRow(name, f"%DLQ%{name}", 2, 20, 15, 3, 0) for name in ("f", "g")]

    async def dead_states(self, group: str) -> list[DeadRun]:
        if self._states is not None:
            raise self._states
        return [DeadRun(5, 8, REPLAYED)]

    async def offsets_at(self, queues: Any, time: datetime) -> list[OffsetAt]:
        return [OffsetAt(0, 10, 2, 30)]

    async def read(self, queue: MessageQueue, start: int, end: int) -> AsyncIterator[list[Letter]]:
        self.reads.append((queue, start, end))
        letters = [Letter(offset, ("even",) if offset % 2 == 0 else ()) for offset in range(start, end)]
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
async def test_a_group_without_dead_letters_is_said_to_have_none(group: str, error: Exception | None) -> None:
    admin: Any = FakeAdmin(error)

    with pytest.raises(Failure, match=f"the group '{group}' has no dead letters") as raised:
        await find(admin, group, DeadFilter())

    assert raised.value.exit_code == exit_codes.NO_INPUT
