from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from rmq.cli.top.command import SILENT_S, Watch, follow
from rmq.client.overview.sample import Sample
from rmq.wire.errors import ConnectionLost, RmqError

from ..top_samples import sample

pytestmark = pytest.mark.virtual_time


class FakeScreen:
    """A screen that somebody leaves at a time."""

    def __init__(self, ends_at: float = 1e9) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = ends_at
        self._woken = asyncio.Event()
        self.drawn: list[tuple[float, str | None]] = []

    @property
    def is_over(self) -> bool:
        return self._loop.time() >= self._ends_at

    def wake(self) -> None:
        self._woken.set()

    async def pause(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(min(timeout_s, self._ends_at - self._loop.time()), 0.0)):
                await self._woken.wait()
        self._woken.clear()

    def draw(self, watch: Watch) -> None:
        now = self._loop.time()
        if watch.after is not None:
            self.drawn.append((round(now, 3), watch.notice(now=now)))


async def run(
    screen: FakeScreen, look: Callable[[], Awaitable[Sample]], *, interval_s: float = 1.0, count: int | None = None
) -> None:
    clock = asyncio.get_running_loop().time
    await follow(look, screen, screen.draw, interval_s=interval_s, count=count, clock=clock)


def answering(after_s: float = 0.0, *errors: RmqError | None) -> Callable[[], Awaitable[Sample]]:
    """Looks that take a while; ``errors``: why the first of them fail."""
    line = list(errors)

    async def look() -> Sample:
        await asyncio.sleep(after_s)
        if line and (error := line.pop(0)) is not None:
            raise error
        return sample(asyncio.get_running_loop().time())

    return look


async def test_it_looks_at_once_and_then_in_every_interval() -> None:
    screen = FakeScreen()

    await run(screen, answering(0.1), interval_s=0.5, count=4)

    assert sorted({at for at, _ in screen.drawn}) == [0.1, 0.5, 0.6, 1.0, 1.1, 1.5, 1.6]


async def test_it_ends_when_somebody_leaves() -> None:
    screen = FakeScreen(ends_at=3.5)

    await run(screen, answering())

    assert screen.drawn[-1][0] == 3.5


async def test_it_ends_also_while_an_answer_is_waited_for() -> None:
    screen = FakeScreen(ends_at=3.5)

    await run(screen, answering(100.0))

    assert asyncio.get_running_loop().time() == 3.5
    assert screen.drawn == []


async def test_a_broker_that_is_silent_is_seen_to_be_while_it_is() -> None:
    screen = FakeScreen(ends_at=5.5)
    looks = [answering(), answering(100.0)]

    await run(screen, lambda: looks.pop(0)())

    assert screen.drawn[-1] == (5.5, "no answer for 6 s")
    assert [notice for at, notice in screen.drawn if at <= SILENT_S] == [None] * sum(
        at <= SILENT_S for at, _ in screen.drawn
    )


async def test_a_lost_broker_is_told_and_the_view_goes_on_when_it_is_back() -> None:
    screen = FakeScreen()
    lost = ConnectionLost("not connected to\n127.0.0.1:1")

    await run(screen, answering(0.0, None, lost, lost), count=2)

    notices = dict(screen.drawn)
    assert notices[2.0] == "no answer for 2 s: not connected to 127.0.0.1:1"
    assert notices[3.0] is None


async def test_a_defect_is_not_taken_for_a_silent_broker() -> None:
    async def broken() -> Sample:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run(FakeScreen(), broken)


def test_before_the_first_answer_the_error_alone_is_told() -> None:
    watch = Watch()
    assert watch.notice(now=5.0) is None

    watch.failed(ConnectionLost("gone"))

    assert watch.notice(now=5.0) == "gone"


def test_the_last_two_looks_are_kept() -> None:
    watch, (first, second, third) = Watch(), (sample(1.0), sample(2.0), sample(3.0))
    for taken in (first, second, third):
        watch.answered(taken)

    assert (watch.before, watch.after) == (second, third)
