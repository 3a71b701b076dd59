"""The recipes of docs/howto.md as things that can be run: a test names one, and has to use up all that it shows."""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import re
import shlex
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from typing import Any

import structlog
from click.testing import CliRunner

from rmq.cli import rmq_admin
from rmq.cli.shell import exit_codes
from rmq.testing.broker import BrokerThread

from .running import EXAMPLES

TEXT = (EXAMPLES.parent / "docs" / "howto.md").read_text()
INTRODUCTION, *_SECTIONS = re.split(r"^## ", TEXT, flags=re.MULTILINE)
RECIPES = {section.partition("\n")[0]: section.partition("\n")[2] for section in _SECTIONS}
DEADLINE_S = 30.0


def code_blocks(text: str) -> list[tuple[str, str]]:
    """Language and text of each."""
    return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


async def nothing() -> None:
    """What happens meanwhile, if nothing does."""


class Recipe:
    """One recipe: its blocks are run one after the other, with the names that the introduction has."""

    def __init__(self, title: str, broker: BrokerThread) -> None:
        structlog.reset_defaults()  # else the broker may print as an earlier test of this process told it to
        self.broker = broker
        self._left: list[tuple[str, str]] = []
        for language, block in code_blocks(RECIPES[title]):
            self._left += [(language, line) for line in block.splitlines()] if language == "sh" else [(language, block)]
        self._title = title
        self._said = io.StringIO()
        self.names: dict[str, Any] = {}
        ((_, introduction),) = code_blocks(INTRODUCTION)
        exec(introduction.replace("127.0.0.1:10911", broker.address), self.names)

    @property
    def said(self) -> list[str]:
        """The lines that the blocks have printed."""
        return self._said.getvalue().splitlines()

    def take(self, language: str) -> str:
        """The next block, or line of a shell, to be dealt with by the test itself."""
        assert self._left, f"{self._title} shows no more"
        found, block = self._left.pop(0)
        assert found == language, block
        return block

    def python(
        self, *, until: Callable[[], bool] = lambda: False, meanwhile: Callable[[], Awaitable[object]] = nothing
    ) -> None:
        """Run the next block to its end, or until something is so; what happens meanwhile may happen many times."""
        block = self.take("python").replace("127.0.0.1:10911", self.broker.address)
        code = compile(block, self._title, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with redirect_stdout(self._said):
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(_run(eval(code, self.names), until, meanwhile))
            else:
                exec(code, self.names)

    def shell(self, *codes: int, **named: str) -> str:
        """Run the next line, a command of rmq-admin, which ends with one of these codes (0); what it printed."""
        line = self.take("sh")
        name, *words = (named.get(word, word) for word in shlex.split(line))
        assert name == "rmq-admin", line
        result = CliRunner(env={"RMQ_BROKER": self.broker.address}).invoke(rmq_admin.command, words)
        assert result.exit_code in (codes or (exit_codes.OK,)), f"{line}: {result.output}"
        return result.stdout

    def check_done(self) -> None:
        """Nothing of the recipe is left untried."""
        assert self._left == []


async def _run(coroutine: Any, until: Callable[[], bool], meanwhile: Callable[[], Awaitable[object]]) -> None:
    task = asyncio.ensure_future(coroutine)
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not task.done() and not until():
                await meanwhile()
                await asyncio.wait([task], timeout=0.01)
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
