"""The pages that are tables: settings, log events, wire errors, exit codes and numbers."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rmq.broker.config import BrokerConfig
from rmq.cli.shell import exit_codes
from rmq.cli.shell.settings import settings_of
from rmq.consumer.config import ConsumerConfig
from rmq.wire.errors import Fatal, RmqError, WireError, code_name

from .log_calls import Event
from .markdown import code, page, prose, table

HERE = Path(__file__).parent
NO_MEANING = "?"

_KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}

_SETTINGS = """
Every setting of a broker (`rmq-broker start`) and of a consumer (`rmq-consume`, `Consumer`, `PullConsumer`), in the
order of `--show-config`. Later sources win: the default, a TOML file (`--config FILE`), the environment, `-o
KEY=VALUE`, an option of its own. In Python they are keyword arguments. Whole numbers may have a unit: `64MiB`,
`1_000`, `2G`. Times are in seconds.
"""

_EVENTS = """
Every log event of rmq. Commands write them to standard error, one a line, as `console`, `logfmt` or `json`
(`--log-format`); `--log-level` says from which level on. In your own program those of client and consumer go through
Python's `logging`, under the loggers `rmq.client` and `rmq.consumer`; those of an embedded broker, too, unless
structlog is configured.

What an operator should be woken by is in [operations](../operations.md#monitoring).
"""

_ERRORS = """
Every error that broker and client tell each other: its number never changes and is never used again. *Refused*
concerns one request; *fatal* ends the connection, and clients connect again by themselves where that makes sense. In
Python each is a class of `rmq.wire.errors`; a code that a client does not know is raised as `Refused` with the code.
The last column is what a command ends with ([exit codes](exit-codes.md)).
"""

_LOCAL_ERRORS = "These arise in the client; they have no number on the wire."

_EXITS = """
What every command of rmq ends with, for scripts. Numbers follow `sysexits.h` of BSD where it has a name for the case.
Where a code is worth a retry, the last column says so.
"""

_METRICS = """
The numbers of `rmq-admin broker stats` (`--json`: one object of objects). Counters begin at 0 with each start of the
broker. Which to watch is in [operations](../operations.md#monitoring).
"""

_RETRY = {"UNAVAILABLE": "yes, when the broker is back", "TEMPORARY": "yes", "PARTIAL": "for what failed"}


def settings() -> str:
    """``settings.md``."""
    broker = _settings_table(BrokerConfig, "RMQ_BROKER_", {})
    consumer = _settings_table(ConsumerConfig, "RMQ_CONSUMER_", {"broker": "RMQ_BROKER"})
    return page("Settings", _SETTINGS, "## Broker", broker, "## Consumer", consumer)


def _settings_table(config: Any, prefix: str, aliases: Mapping[str, str]) -> str:
    rows = []
    for setting in settings_of(config).values():
        variables = [prefix + setting.name.upper(), *([aliases[setting.name]] if setting.name in aliases else [])]
        kind = _KINDS[setting.kind] + (" or none" if setting.optional else "")
        rows.append(
            (code(setting.name), kind, _default(setting.default), ", ".join(map(code, variables)), prose(setting.help))
        )
    return table(("setting", "type", "default", "environment", "meaning"), rows)


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return code(f"{value >> 20}MiB")
    return code(str(value)) if value not in ("", None) else ""


def events(found: Iterable[Event]) -> str:
    """``events.md``, of the events that were found in the sources."""
    parts: dict[str, list[tuple[str, ...]]] = {}
    for event in found:
        meaning, remedy = meanings().get(event.component, {}).get(event.name, (NO_MEANING, ""))
        keys = ", ".join(map(code, event.keys))
        logger = ", ".join(map(code, event.loggers))
        row = (code(event.name), "/".join(event.levels), keys, meaning, remedy or "—", logger)
        parts.setdefault(event.component, []).append(row)
    columns = ("event", "level", "keys", "what it means", "what to do", "logger")
    texts = [text for name, rows in parts.items() for text in (f"## {name.capitalize()}", table(columns, rows))]
    return page("Log events", _EVENTS, *texts)


@cache
def meanings() -> dict[str, dict[str, tuple[str, str]]]:
    """What people wrote about events, by component and name."""
    return tomllib.loads((HERE / "events.toml").read_text())


def faults(found: Iterable[Event]) -> list[str]:
    """Events that nobody wrote about, and texts about events that no code logs."""
    logged = {(event.component, event.name) for event in found}
    told = {(component, name) for component, names in meanings().items() for name in names}
    missing = [
        f"{part}: {name} is logged and has no meaning in {HERE.name}/events.toml"
        for part, name in sorted(logged - told)
    ]
    return missing + [
        f"{part}: {name} is in {HERE.name}/events.toml and logged nowhere" for part, name in sorted(told - logged)
    ]


def errors() -> str:
    """``errors.md``."""
    wire = [
        (str(number), code(code_name(number)), _kind(kind), _doc(kind), _exit(kind))
        for number, kind in sorted(WireError.by_code.items())
    ]
    local = [(code(kind.__name__), _doc(kind), _exit(kind)) for kind in _local_errors()]
    return page(
        "Errors", _ERRORS, table(("number", "name", "kind", "meaning", "exit code"), wire),
        "## Without a number", _LOCAL_ERRORS, table(("class", "meaning", "exit code"), local),
    )  # fmt: skip


def exits() -> str:
    """``exit-codes.md``."""
    ended: dict[int, list[str]] = {}
    for kind in _local_errors():
        ended.setdefault(exit_codes.of(_made(kind)), []).append(code(kind.__name__))
    for number, kind in sorted(WireError.by_code.items()):
        ended.setdefault(exit_codes.of(_made(kind)), []).append(code(code_name(number)))
    rows = [
        (str(number), code(name), prose(text), ", ".join(ended.get(number, [])), _RETRY.get(name, ""))
        for name, number, text in exit_constants()
    ]
    return page("Exit codes", _EXITS, table(("code", "name", "meaning", "errors", "worth a retry"), rows))


def exit_constants() -> list[tuple[str, int, str]]:
    """Name, number and meaning of every exit code; the meaning is the comment beside it."""
    text = Path(exit_codes.__file__).read_text()
    found = re.findall(r"^([A-Z_]+): Final = (\d+)(?:  # (.*))?$", text, re.MULTILINE)
    return [(name, int(number), _capital(meaning) or "All is well") for name, number, meaning in found]


def _capital(text: str) -> str:
    """The text with a capital, unless it begins with the name of a command."""
    return text if text.startswith("rmq-") else text[:1].upper() + text[1:]


def metrics() -> str:
    """``metrics.md``."""
    parts = []
    for part, names in numbers().items():
        parts += [f"## {part}", table(("name", "meaning"), [(code(name), text) for name, text in names.items()])]
    return page("Numbers of a broker", _METRICS, *parts)


@cache
def numbers() -> dict[str, dict[str, str]]:
    """What people wrote about the broker's numbers, by part and name."""
    return tomllib.loads((HERE / "metrics.toml").read_text())


def _local_errors() -> list[type[RmqError]]:
    return [
        kind for kind in RmqError.__subclasses__() if kind.__module__ == "rmq.wire.errors" and kind is not WireError
    ]


def _made(kind: type[RmqError]) -> RmqError:
    return kind("")


def _exit(kind: type[RmqError]) -> str:
    return str(exit_codes.of(_made(kind)))


def _doc(kind: type[RmqError]) -> str:
    return prose(" ".join((kind.__doc__ or NO_MEANING).split()))


def _kind(kind: type[WireError]) -> str:
    return "fatal" if issubclass(kind, Fatal) else "refused"
