"""``rmq-admin top``: snapshots through the command, the live view in a terminal of its own."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

import pytest
from click.testing import Result

from rmq.cli.top.command import SILENT_S, BrokerWatch, follow, is_dumb
from rmq.client.overview.sample import Sample
from rmq.wire.errors import ConnectionLost, RmqError

from ..commands import admin
from ..top_samples import sample

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"
DEADLINE_S = 20.0
MOST_READS = 1000


def top(*arguments: str) -> Result:
    return admin("top", *arguments)


@pytest.mark.parametrize(
    ("term", "dumb"), [("xterm-256color", False), ("screen", False), ("dumb", True), ("", True), (None, True)]
)
def test_a_terminal_that_cannot_be_drawn_on(term: str | None, dumb: bool) -> None:
    assert is_dumb(term) == dumb


def test_a_snapshot_is_plain_text_with_rates(broker: str) -> None:
    result = top("--once", "--interval", "0.1", "--broker", broker)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"rmq top  rmq at {broker}  up ")
    assert "messages in" in result.stdout
    assert "fdatasync" in result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_without_a_terminal_there_is_one_snapshot(broker: str) -> None:
    result = top("--interval", "0.1", "--broker", broker)

    assert (result.exit_code, result.stdout.count("rmq top  ")) == (0, 1)


def test_snapshots_are_separated_by_an_empty_line(broker: str) -> None:
    result = top("--interval", "0.1", "--count", "2", "--broker", broker)

    assert (result.exit_code, result.stdout.count("\n\nrmq top  ")) == (0, 1)


@pytest.mark.parametrize(("options", "objects"), [((), 1), (("--count", "2"), 2), (("--once", "--count", "2"), 1)])
def test_json_is_one_object_a_refresh(broker: str, options: tuple[str, ...], objects: int) -> None:
    if options:
        options = ("--interval", "0.1", *options)
    result = top("--json", "--broker", broker, *options)

    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert (result.exit_code, len(told)) == (0, objects)
    assert told[0]["address"] == broker
    assert told[0]["traffic"]["messages_in_per_s"] >= 0.0
    assert {"at", "groups", "topics", "lease_lines", "parked_pulls", "wait_s", "sync_s"} <= set(told[0])


class Terminal:
    """A command in a terminal of its own; what it writes is kept."""

    def __init__(self, *arguments: str, lines: int, columns: int, **environment: str) -> None:
        self._ours, self.theirs = pty.openpty()
        self.resize(lines, columns)
        self.modes = termios.tcgetattr(self.theirs)
        keep = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rmq.cli.rmq_admin", *arguments],
            stdin=self.theirs, stdout=self.theirs, stderr=self.theirs, start_new_session=True,
            env={**keep, "TERM": "xterm-256color", **environment},
        )  # fmt: skip
        self.written = b""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, condition: Callable[[bytes], bool], what: str) -> None:
        for _ in range(MOST_READS):
            if condition(self.written):
                return
            if not select.select([self._ours], [], [], DEADLINE_S)[0]:
                break
            self.written += os.read(self._ours, 1 << 16)
        raise AssertionError(f"{what} did not happen: {self.written[-2000:]!r}")

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self.theirs)


@pytest.mark.slow
def test_the_live_view_ends_with_q_and_leaves_the_terminal_as_it_was(broker: str) -> None:
    arguments = ("top", "--interval", "0.2", "--broker", broker)
    with Terminal(*arguments, lines=24, columns=80) as terminal:
        terminal.wait_for(lambda written: b"q quits" in written and b"parked pulls" in written, "the first view")
        assert ENTER in terminal.written
        assert HIDE_CURSOR in terminal.written
        assert termios.tcgetattr(terminal.theirs) != terminal.modes

        seen = len(terminal.written)
        terminal.wait_for(lambda written: b"rmq top" in written[seen:], "a refresh")
        terminal.type(b"q")
        terminal.wait_for(lambda written: LEAVE in written and SHOW_CURSOR in written, "the end")

        assert terminal.process.wait(DEADLINE_S) == 0
        assert terminal.written.rindex(LEAVE) > terminal.written.rindex(b"parked pulls")
        assert termios.tcgetattr(terminal.theirs) == terminal.modes


@pytest.mark.slow
def test_on_a_terminal_that_cannot_be_drawn_on_the_snapshots_follow_each_other(broker: str) -> None:
    arguments = ("top", "--interval", "0.1", "--count", "2", "--broker", broker)
    with Terminal(*arguments, lines=24, columns=60, TERM="dumb") as terminal:
        terminal.wait_for(lambda written: written.count(b"rmq top  ") == 2, "the second snapshot")

        assert terminal.process.wait(DEADLINE_S) == 0
        assert b"\x1b" not in terminal.written
        assert max(map(len, terminal.written.decode().splitlines())) <= 60


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

    def draw(self, watch: BrokerWatch) -> None:
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


@pytest.mark.virtual_time
async def test_it_looks_at_once_and_then_in_every_interval() -> None:
    screen = FakeScreen()

    await run(screen, answering(0.1), interval_s=0.5, count=4)

    assert sorted({at for at, _ in screen.drawn}) == [0.1, 0.5, 0.6, 1.0, 1.1, 1.5, 1.6]


@pytest.mark.virtual_time
async def test_follow_ends_when_the_screen_is_closed() -> None:
    screen = FakeScreen(ends_at=3.5)

    await run(screen, answering())

    assert screen.drawn[-1][0] == 3.5


@pytest.mark.virtual_time
async def test_it_ends_also_while_an_answer_is_waited_for() -> None:
    screen = FakeScreen(ends_at=3.5)

    await run(screen, answering(100.0))

    assert asyncio.get_running_loop().time() == 3.5
    assert screen.drawn == []


@pytest.mark.virtual_time
async def test_a_broker_that_is_silent_is_seen_to_be_while_it_is() -> None:
    screen = FakeScreen(ends_at=5.5)
    looks = [answering(), answering(100.0)]

    await run(screen, lambda: looks.pop(0)())

    assert screen.drawn[-1] == (5.5, "no answer for 6 s")
    assert [notice for at, notice in screen.drawn if at <= SILENT_S] == [None] * sum(
        at <= SILENT_S for at, _ in screen.drawn
    )


@pytest.mark.virtual_time
async def test_a_lost_broker_is_reported_and_the_view_resumes_when_it_is_back() -> None:
    screen = FakeScreen()
    lost = ConnectionLost("not connected to\n127.0.0.1:1")

    await run(screen, answering(0.0, None, lost, lost), count=2)

    notices = dict(screen.drawn)
    assert notices[2.0] == "no answer for 2 s: not connected to 127.0.0.1:1"
    assert notices[3.0] is None


@pytest.mark.virtual_time
async def test_a_defect_is_not_taken_for_a_silent_broker() -> None:
    async def broken() -> Sample:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run(FakeScreen(), broken)


@pytest.mark.virtual_time
def test_before_the_first_reply_only_the_error_is_shown() -> None:
    watch = BrokerWatch()
    assert watch.notice(now=5.0) is None

    watch.failed(ConnectionLost("gone"))

    assert watch.notice(now=5.0) == "gone"


@pytest.mark.virtual_time
def test_the_last_two_looks_are_kept() -> None:
    watch, (first, second, third) = BrokerWatch(), (sample(1.0), sample(2.0), sample(3.0))
    for taken in (first, second, third):
        watch.answered(taken)

    assert (watch.before, watch.after) == (second, third)
