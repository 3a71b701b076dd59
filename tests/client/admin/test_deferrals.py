"""Asking for the messages that wait for their time, page by page."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from rmq.client.admin.deferrals import is_deferred, list_deferred
from rmq.wire.protocol.ops.core import Op
from rmq.wire.protocol.ops.deferrals import MAX_ROWS, DelayPage, DelayRow, ListDelays


def row(number: int) -> DelayRow:
    return DelayRow(1000 + number, 8 * number, "orders", 0, 3, 1, 900, f"{number:032x}")


class Pages:
    """A connection to a broker that tells of ``rows``, ``size`` a page, the first page empty."""

    def __init__(self, rows: int, size: int) -> None:
        self.rows = [row(i) for i in range(1, rows + 1)]
        self.size = size
        self.asked: list[ListDelays] = []

    async def request(self, op: Op, payload: ListDelays, **_options: Any) -> Any:
        assert op == Op.LIST_DELAYS
        self.asked.append(payload)
        if len(self.asked) == 1:
            return _received(DelayPage(len(self.rows), 7, [], 1, 1, False))
        left = [one for one in self.rows if (one.due_at, one.position) > (payload.due_at, payload.position)]
        page = left[: min(self.size, payload.limit)]
        last = page[-1]
        return _received(DelayPage(len(self.rows), 7, page, last.due_at, last.position, len(page) == len(left)))


def _received(page: DelayPage) -> Any:
    return msgpack.unpackb(msgpack.packb(page))


@pytest.mark.parametrize(
    ("rows", "limit", "found", "more"), [(5, 100, 5, False), (5, 5, 5, False), (5, 4, 4, True), (5, 1, 1, True)]
)
@pytest.mark.parametrize("topic", [None, "orders"])
async def test_pages_are_asked_for_until_there_is_enough_or_no_more(
    topic: str | None, rows: int, limit: int, found: int, more: bool
) -> None:
    pages: Any = Pages(rows, 2)

    answer = await list_deferred(pages, topic, limit)

    assert answer == ([row(i) for i in range(1, found + 1)], more, rows, 7)
    assert {asked.topic for asked in pages.asked} == {topic}


async def test_no_page_is_larger_than_the_broker_makes_it() -> None:
    pages: Any = Pages(3 * MAX_ROWS, 2 * MAX_ROWS)

    answer = await list_deferred(pages, None, 2 * MAX_ROWS + 5)

    assert len(answer.rows) == 2 * MAX_ROWS + 5
    assert [asked.limit for asked in pages.asked] == [MAX_ROWS, MAX_ROWS, MAX_ROWS, 5]


async def test_few_messages_of_a_topic_are_looked_for_in_large_pages() -> None:
    pages: Any = Pages(3, 2)

    assert (await list_deferred(pages, "orders", 1)).rows == [row(1)]
    assert {asked.limit for asked in pages.asked} == {MAX_ROWS}


async def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        await list_deferred(Pages(1, 1), None, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("due_at", "position", "waits"), [(1003, 24, True), (1003, 16, False), (1002, 24, False)])
async def test_one_batch_is_looked_up_by_its_place(due_at: int, position: int, waits: bool) -> None:
    pages = Pages(5, 10)
    pages.asked.append(ListDelays())  # behind the empty first page
    connection: Any = pages

    assert await is_deferred(connection, due_at, position) == waits
    assert pages.asked[-1] == ListDelays(due_at, position - 1, 1)
