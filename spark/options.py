"""
What a user may say in ``.option(...)``, checked before anything is read.

==================== ============ ========================================================================
broker               (needed)     ``host:port``
topic                (needed)     the topic to read
startOffset          earliest     ``earliest``, ``latest``, an offset, or JSON such as ``{"0": 17, "1": "earliest"}``
endOffset            latest       likewise; the message at the end is not read any more
queues               all          ids of the queues to read, such as ``0,3``
columns              all          names of the columns to have, in their order, such as ``queue_id,body``
includeBody          true         ``false`` leaves the column ``body`` out
maxRowsPerPartition  1000000      longer queues are read by several tasks
==================== ============ ========================================================================

One number stands for all queues and means those messages, of the ones there are, that lie in the range. An offset in
JSON is exact: it is an error if the queue does not reach so far. Either way a start whose messages have been deleted
is an error, never a silent gap.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rmq.wire.address import parse_address
from rmq.wire.errors import BadName, ConfigError
from rmq.wire.names import check_topic

COLUMNS: Final = {
    "topic": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "message_id": "string",
    "tag": "string",
    "keys": "array<string>",
    "body": "binary",
    "properties": "map<string,string>",
    "born_at": "timestamp",
    "stored_at": "timestamp",
    "attempt": "int",
}
"""The columns of the source and their types, as Spark writes them."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
DEFAULT_ROWS: Final = 1_000_000
NAMES: Final = (
    "broker", "topic", "startOffset", "endOffset", "queues", "columns", "includeBody", "maxRowsPerPartition",
)  # fmt: skip
_SPARKS_OWN: Final = frozenset({"path", "paths"})  # what load("...") becomes

Offset = int | str
"""A number, or one of ``earliest`` and ``latest``."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of the range to read: for all queues, and for those that have their own."""

    name: str
    default: Offset
    by_queue: Mapping[int, Offset]

    def of(self, queue_id: int) -> Offset:
        """What was asked for in a queue."""
        return self.by_queue.get(queue_id, self.default)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A user's wishes, all of them legal."""

    broker: str
    topic: str
    start: Bound
    end: Bound
    queues: tuple[int, ...] | None
    columns: tuple[str, ...]
    max_rows: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """
        Read the options of a data source, whose names may be in any case.

        Raises:
            ConfigError: one is missing, unknown or cannot be; the sentence names it.
        """
        given = {name.lower(): value for name, value in options.items()}
        _refuse_unknown(given)
        return cls(
            broker=_broker(_needed(given, "broker", "127.0.0.1:10911")),
            topic=_topic(_needed(given, "topic", "orders")),
            start=_bound("startOffset", given.get("startoffset", EARLIEST), EARLIEST),
            end=_bound("endOffset", given.get("endoffset", LATEST), LATEST),
            queues=_queues(given["queues"]) if "queues" in given else None,
            columns=_columns(given.get("columns"), _flag("includeBody", given.get("includebody", "true"))),
            max_rows=_positive("maxRowsPerPartition", given.get("maxrowsperpartition", str(DEFAULT_ROWS))),
        )


def ddl(columns: tuple[str, ...]) -> str:
    """The schema with these columns, as Spark reads it."""
    return ", ".join(f"{name} {COLUMNS[name]}" for name in columns)


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in NAMES}
    for name in given:
        if name not in known and name not in _SPARKS_OWN:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f'did you mean "{known[near[0]]}"?' if near else f"known are {', '.join(NAMES)}"
            raise ConfigError(f'the rmq source has no option "{name}": {hint}')


def _needed(given: Mapping[str, str], name: str, example: str) -> str:
    value = given.get(name, "").strip()
    if not value:
        raise ConfigError(f'the rmq source needs the option "{name}": add .option("{name}", "{example}")')
    return value


def _broker(text: str) -> str:
    try:
        parse_address(text)
    except ValueError as error:
        raise ConfigError(f'the option "broker": {error}') from None
    return text


def _topic(text: str) -> str:
    # Retry and dead letter topics have a %, which users may not use in names of theirs; they can be read all the same.
    try:
        check_topic(text.replace("%", "_"))
    except BadName as error:
        raise ConfigError(f'the option "topic": {error}') from None
    return text


def _bound(name: str, text: str, default: str) -> Bound:
    text = text.strip()
    if not text.startswith("{"):
        return Bound(name, _offset(name, text), {})
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ConfigError(f'the option "{name}" is not JSON: {error}') from None
    return Bound(name, default, {_number(name, queue): _offset(name, value) for queue, value in parsed.items()})


def _offset(name: str, value: object) -> Offset:
    if isinstance(value, str) and value.lower() in (EARLIEST, LATEST):
        return value.lower()
    try:
        return _number(name, value)
    except ConfigError:
        raise ConfigError(
            f'the option "{name}" is {EARLIEST}, {LATEST}, an offset or a JSON object of those by queue, not {value!r}'
        ) from None


def _number(name: str, value: object) -> int:
    text = str(value).strip()
    if isinstance(value, (bool, float)) or not (text.isascii() and text.isdigit()):
        raise ConfigError(f'the option "{name}" holds {value!r} where a whole number from 0 is expected')
    return int(text)


def _positive(name: str, text: str) -> int:
    value = _number(name, text)
    if not value:
        raise ConfigError(f'the option "{name}" must be 1 or more')
    return value


def _queues(text: str) -> tuple[int, ...]:
    ids = {_number("queues", part) for part in text.strip().removeprefix("[").removesuffix("]").split(",")}
    return tuple(sorted(ids))


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f'the option "{name}" is true or false, not {text!r}')
    return text.strip().lower() == "true"


def _columns(text: str | None, include_body: bool) -> tuple[str, ...]:
    names = tuple(COLUMNS) if text is None else tuple(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise ConfigError(f'the option "columns" names {name!r}: there are {", ".join(COLUMNS)}')
    if len(set(names)) != len(names):
        raise ConfigError('the option "columns" names a column twice')
    names = names if include_body else tuple(name for name in names if name != "body")
    if not names:
        raise ConfigError('the options "columns" and "includeBody" leave no column to read')
    return names
