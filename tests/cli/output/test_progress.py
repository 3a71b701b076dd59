"""A bar where somebody looks, nothing elsewhere."""

from __future__ import annotations

import asyncio
import io
import sys

import pytest

from rmq.cli.output.progress import progress


class Screen(io.StringIO):
    """A terminal, as far as anybody asks."""

    def isatty(self) -> bool:
        return True


async def test_nothing_is_drawn_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    async with progress("sending", 10, lambda: 5):
        await asyncio.sleep(0)

    assert capsys.readouterr() == ("", "")


async def test_the_bar_follows_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)

    async with progress("sending", 10, lambda: 5):
        await asyncio.sleep(0)

    assert "sending" in screen.getvalue()
    assert "50%" in screen.getvalue()
