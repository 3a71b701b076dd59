"""
Completes values in a shell, by the placeholder of the option or argument.

TOPIC and GROUP are asked of the broker, within half a second and silently if it does not answer; ``sync|async`` are
two words; FOLDER, DIR and FILE are left to the shell.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from rmq.client import Admin

PATIENCE_S: Final = 0.5
_PATHS: Final = {"FOLDER": "dir", "DIR": "dir", "FILE": "file"}


class Completed(click.types.StringParamType):
    """A text that is completed by its placeholder."""

    def __init__(self, metavar: str) -> None:
        self.metavar = metavar

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
        """Return the values that begin with the word being typed."""
        if (kind := _PATHS.get(self.metavar)) is not None:
            return [CompletionItem(incomplete, type=kind)]
        if self.metavar in ("TOPIC", "GROUP"):
            words = names(self.metavar, str(ctx.params.get("broker") or os.environ.get("RMQ_BROKER") or ""))
        else:
            words = words_of(self.metavar)
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def complete(parameter: click.Parameter) -> None:
    """Complete a text parameter whose placeholder says with what."""
    metavar = parameter.metavar or ""
    is_known = metavar in ("TOPIC", "GROUP") or metavar in _PATHS or words_of(metavar)
    if is_known and parameter.type is click.STRING:
        parameter.type = Completed(metavar)


def words_of(metavar: str) -> list[str]:
    """Return the words among the alternatives of a placeholder: in ``first|last|TIME`` the first two."""
    return [word for word in metavar.split("|") if word.islower()] if "|" in metavar else []


def names(what: str, address: str) -> list[str]:
    """Return the topics or groups of the broker at an address; none if it does not reply in time."""
    import logging

    logging.disable(logging.CRITICAL)  # whatever happens, the line that is being typed must stay readable
    try:
        return asyncio.run(_ask(what, address))
    except Exception:  # a defect, too, must not show between two letters
        return []
    finally:
        logging.disable(logging.NOTSET)


async def _ask(what: str, address: str) -> list[str]:
    from rmq.wire.address import parse_address

    from .options import DEFAULT_BROKER

    at = parse_address(address or DEFAULT_BROKER)
    async with asyncio.timeout(PATIENCE_S):
        # A client would dial again and again for all of this time; a tab key need not wait where no broker listens.
        _, writer = await asyncio.open_connection(at.host, at.port)
        writer.close()
    from rmq.client import Admin

    async with asyncio.timeout(PATIENCE_S), Admin(str(at), timeout_s=PATIENCE_S) as admin:
        return await _listed(what, admin)


async def _listed(what: str, admin: Admin) -> list[str]:
    if what == "TOPIC":
        return [info.topic for info in await admin.list_topics()]
    return [row.group for row in await admin.list_groups()]
