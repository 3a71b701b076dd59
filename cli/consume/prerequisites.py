"""
Reports a missing broker or topic before a consumer starts, or requires both (``--no-wait``).

A library waits silently, which is right for a service; a user at a terminal needs one line that says what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import click

from rmq.wire.errors import ConnectionLost, RmqError, TopicNotFound

from ..shell import exit_codes
from ..shell.command import Failure
from ..shell.connect import admin_of, existing, of_users


@asynccontextmanager
async def report_missing(address: str, topics: Iterable[str]) -> AsyncIterator[None]:
    """Report a missing broker or topic once, within the block; the consumer itself waits for it."""
    looking = asyncio.create_task(_look(address, topics))
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait([looking])


async def require(address: str, topics: Iterable[str]) -> None:
    """
    Check once that the broker and all of ``topics`` exist.

    Raises:
        ConnectionLost: there is no broker.
        Failure: there is no such topic; the sentence names those that exist.
    """
    missing, names = await _missing_topics(address, topics)
    if missing:
        raise Failure(no_topic(missing[0], names), exit_codes.NO_INPUT)


def no_topic(topic: str, names: list[str]) -> str:
    """Return the sentence on a missing topic; ``names`` are the existing ones."""
    return f"there is no topic {topic!r}: create it with `rmq-admin topic create {topic}`{_others(names)}"


def _awaited(topic: str, names: list[str]) -> str:
    start = f"consumption starts when it is created (`rmq-admin topic create {topic}`; Ctrl-C to quit)"
    return f"topic {topic!r} does not exist yet; {start}{_others(names)}"


def _others(names: list[str]) -> str:
    return f"; {existing(names)}" if names else ""


async def _look(address: str, topics: Iterable[str]) -> None:
    """Look until the broker replies. The consumer meets and reports any other error itself."""
    said = False
    with contextlib.suppress(RmqError):
        while True:
            try:
                missing, names = await _missing_topics(address, topics)
            except ConnectionLost as error:
                if not said:
                    _say(f"{error} (retrying; Ctrl-C to quit)")
                said = True
                continue
            return _say(*(_awaited(topic, names) for topic in missing))


def _say(*sentences: str) -> None:
    program = click.get_current_context().find_root().info_name
    for sentence in sentences:
        click.echo(f"{program}: {sentence}", err=True)


async def _missing_topics(address: str, topics: Iterable[str]) -> tuple[list[str], list[str]]:
    missing = []
    async with admin_of(address) as admin:
        for topic in topics:
            try:
                await admin.topic(topic)
            except TopicNotFound:
                missing.append(topic)
        names = of_users(info.topic for info in await admin.list_topics()) if missing else []
    return missing, names
