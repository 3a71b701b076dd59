"""Dead letters are asked for page by page, and dealt with part by part and in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rmq.client.admin import dead_letters
from rmq.wire.errors import BadRequest
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.redelivery import DROPPED, REPLAYED, DeadResult, DeadRow, DeadRun, DropDead, ReplayDead

pytestmark = pytest.mark.virtual_time


class Asked:
    """A connection that answers with one payload after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.payloads: list[Any] = []

    async def request(self, op: Op, payload: Sequence[Any], *, timeout_s: float) -> Any:
        self.payloads.append(payload)
        return self.answers.pop(0)


async def test_groups_are_listed_until_an_empty_page() -> None:
    rows = [DeadRow("a", "%DLQ%a", 0, 3, 1, 1, 1), DeadRow("b", "%DLQ%b", 0, 3, 3, 0, 0)]
    asked = Asked([list(rows[0])], [list(rows[1])], [])

    assert await dead_letters.list_dead(asked, timeout_s=1.0) == rows
    assert asked.payloads == [("",), ("a",), ("b",)]


async def test_states_are_asked_for_behind_the_last_run_until_an_empty_page() -> None:
    runs = [DeadRun(2, 5, REPLAYED), DeadRun(7, 9, DROPPED)]
    asked = Asked([list(runs[0])], [list(runs[1])], [])

    assert await dead_letters.dead_states(asked, "g", timeout_s=1.0) == runs
    assert asked.payloads == [("g", 0), ("g", 5), ("g", 9)]


async def test_offsets_go_in_order_each_once_and_in_parts() -> None:
    asked = Asked([[0, REPLAYED, True]] * 1024, [[0, REPLAYED, True]] * 2)

    results = await dead_letters.replay_dead(asked, "g", [*range(1025, -1, -1), 7], to_topic=True, dry_run=False)

    assert list(results) == list(range(1026))
    assert results[1025] == DeadResult(0, REPLAYED, is_new=True)
    assert asked.payloads == [
        ReplayDead("g", list(range(1024)), to_topic=True),
        ReplayDead("g", [1024, 1025], to_topic=True),
    ]


async def test_dropping_asks_the_same_way_and_nothing_is_asked_of_nothing() -> None:
    asked = Asked([[0, DROPPED, False]])

    assert await dead_letters.drop_dead(asked, "g", [], dry_run=True) == {}
    assert await dead_letters.drop_dead(asked, "g", [3], dry_run=True) == {3: DeadResult(0, DROPPED)}
    assert asked.payloads == [DropDead("g", [3], dry_run=True)]


async def test_an_answer_that_does_not_tell_of_each_is_an_error() -> None:
    with pytest.raises(BadRequest, match="REPLAY_DEAD: the broker answered 1 items for 2"):
        await dead_letters.replay_dead(Asked([[0]]), "g", [1, 2], to_topic=False, dry_run=False)
