"""Counts wake who waits for them, and confirms count only what is confirmed without a gap."""

from __future__ import annotations

import asyncio

import pytest

from rmq.bench.peers.counts import Confirms, Count
from rmq.bench.processes import BenchError


async def test_who_waits_goes_on_when_so_many_have_come() -> None:
    count = Count()
    waiter = asyncio.ensure_future(count.reaches(3))
    await asyncio.sleep(0)

    count.add(2)
    await asyncio.sleep(0)
    early = waiter.done()
    count.add()
    await waiter

    assert not early
    await count.reaches(3)  # and at once, where they are there


async def test_a_failure_reaches_who_waits_and_who_comes_later() -> None:
    count = Count()
    waiter = asyncio.ensure_future(count.reaches(1))
    await asyncio.sleep(0)

    count.fail("the first reason")
    count.fail("another")

    with pytest.raises(BenchError, match="the first reason"):
        await waiter
    with pytest.raises(BenchError, match="the first reason"):
        await count.reaches(0)


@pytest.mark.parametrize(
    ("answers", "confirmed"),
    [
        ([(1, False), (2, False)], 2),
        ([(5, True)], 5),
        ([(2, False), (3, False)], 0),
        ([(2, False), (3, False), (1, False)], 3),
        ([(5, False), (4, True)], 5),
        ([(3, False), (5, True), (7, False), (6, False)], 7),
        ([(4, True), (2, True)], 4),
    ],
)
def test_confirms_count_up_to_the_first_that_is_missing(answers: list[tuple[int, bool]], confirmed: int) -> None:
    confirms = Confirms()

    for tag, is_multiple in answers:
        confirms.confirm(tag, is_multiple)

    assert confirms.value == confirmed
