"""All pages of docs/reference/, and the command that writes them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import click

from . import commands, python_api, tables
from .log_calls import Event, Unclear, events_of
from .markdown import RENEW

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "reference"
# Under which title a folder's events are listed: the program that a reader sees them in.
COMPONENTS = {
    "broker": ("broker", "runtime"),
    "client": ("client", "engine"),
    "consumer": ("consumer",),
    "cli": ("cli",),
    "spark": ("spark",),
}


def programs() -> dict[str, click.Command]:
    """The commands that are installed, by name."""
    from rmq.cli import rmq_admin, rmq_bench, rmq_broker, rmq_consume, rmq_produce

    return {
        "rmq-broker": rmq_broker.command,
        "rmq-produce": rmq_produce.command,
        "rmq-consume": rmq_consume.command,
        "rmq-admin": rmq_admin.command,
        "rmq-bench": rmq_bench.command,
    }


@cache
def found_events() -> tuple[Event, ...]:
    """The events that the sources of this checkout log."""
    return tuple(events_of(ROOT, COMPONENTS))


def pages(events: Sequence[Event]) -> dict[str, str]:
    """The text of every page, by its file name."""
    return {
        "commands.md": commands.render(programs()),
        "settings.md": tables.settings(),
        "python.md": python_api.render(),
        "events.md": tables.events(events),
        "errors.md": tables.errors(),
        "exit-codes.md": tables.exits(),
        "metrics.md": tables.metrics(),
    }


def stale(texts: Mapping[str, str], target: Path) -> list[str]:
    """The pages that say something else than these texts, or that nobody makes."""
    there = {path.name: path.read_text() for path in target.glob("*.md")} if target.is_dir() else {}
    return sorted(name for name in texts.keys() | there.keys() if texts.get(name) != there.get(name))


def main(arguments: Sequence[str]) -> int:
    """Write the pages; with ``--check`` only say which are stale. 1 if something has to be done by hand."""
    try:
        events = found_events()
    except Unclear as error:
        print(f"reference: {error}", file=sys.stderr)
        return 1
    texts = pages(events)
    old = stale(texts, TARGET)
    if arguments == ["--check"]:
        complaints = [f"docs/reference/{name} is stale: `{RENEW}` renews it" for name in old]
    else:
        complaints = []
        _write(texts, old)
    complaints += tables.faults(events)
    for complaint in complaints:
        print(f"reference: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _write(texts: Mapping[str, str], names: Sequence[str]) -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in texts:
            (TARGET / name).write_text(texts[name])
        else:
            (TARGET / name).unlink()
        print(f"{'wrote' if name in texts else 'removed'} docs/reference/{name}")
