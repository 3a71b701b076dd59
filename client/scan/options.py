"""
What a user may ask of a scan, checked before anything is read.

======================= ========== =====================================================================================
broker                  one of     ``host:port`` of a running broker
path                    these two  the data directory of a stopped broker, or a backup of it
topic                   one of     topics to read, joined by commas
topicPattern            these two  a regular expression that has to match the whole name of a topic
startingOffsets         earliest   ``earliest``, or JSON such as ``{"orders": {"0": 17, "1": "earliest"}}``
endingOffsets           latest     ``latest``, or JSON; the message at the end is not read any more
startingTimestamp                  instead of ``startingOffsets``: from the first message that was stored then or later
endingTimestamp                    instead of ``endingOffsets``: up to that message
queues                  all        ids of the queues to read, such as ``0,3``
tags                    ``*``      an expression such as ``created || paid``: only messages with such a tag
minPartitions           cores      at least that many tasks, if there are as many messages
maxRecordsPerPartition  1000000    longer queues are read by several tasks
columns                 all        names of the columns to have, in their order, such as ``queue_id,queue_offset``
failOnDataLoss          true       ``false``: what retention has removed is left out and reported
timeout                 30         seconds that the broker may be silent
verify                  true       ``false``: checksums of batches are not compared again by the reader
onDamage                fail       ``skip``: messages that are damaged in the log are left out and reported
======================= ========== =====================================================================================

JSON names every topic and queue that is read, no more and no fewer: a queue that was added meanwhile is told, not
missed. In ``startingOffsets`` it may carry ``"@history"``, as :func:`rmq.client.starting_offsets` returns it; then a
log that has other messages before these offsets is an error. A start whose messages have been deleted is an error
unless ``failOnDataLoss`` is false, never a silent gap.
"""

from __future__ import annotations

import difflib
import math
import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rmq.engine.native.source import Manner
from rmq.wire.address import parse_address
from rmq.wire.batch import tags
from rmq.wire.errors import BadName, ConfigError
from rmq.wire.names import check_topic

from .bounds import Bound, check_order, end_of, is_number, start_of
from .ranges import DEFAULT_RECORDS

COLUMNS: Final = (
    "topic", "queue_id", "queue_offset", "message_id", "key", "tag", "index_keys", "body", "properties",
    "born_at", "stored_at", "attempt",
)  # fmt: skip
"""The columns there are, in the order they have unless told otherwise."""

NAMES: Final = (
    "broker", "path", "topic", "topicPattern", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "queues", "tags", "minPartitions", "maxRecordsPerPartition", "columns", "failOnDataLoss",
    "timeout", "verify", "onDamage",
)  # fmt: skip

_FORMER: Final = {
    "startoffset": 'it is "startingOffsets" now',
    "endoffset": 'it is "endingOffsets" now',
    "maxrowsperpartition": 'it is "maxRecordsPerPartition" now',
    "includebody": 'it is "columns" now, which names those to have',
    "paths": 'the option "path" and load() take one directory',
}
_KNOWN: Final = {name.lower(): name for name in NAMES}
DEFAULT_TIMEOUT_S: Final = 30.0
MAX_TIMEOUT_S: Final = 1_000_000_000  # sockets take little more, and fail with an error of their own


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """A user's wishes, all of them legal."""

    broker: str
    path: str
    topics: tuple[str, ...]
    pattern: str
    start: Bound
    end: Bound
    queues: tuple[int, ...] | None
    min_partitions: int | None
    max_records: int
    manner: Manner

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ScanOptions:
        """
        Read options, whose names may be in any case.

        Raises:
            ConfigError: one is missing, unknown or cannot be; the sentence names it.
        """
        given = {name.lower(): value for name, value in options.items()}
        _refuse_unknown(given)
        broker = _one_of(given, "broker", "path", "127.0.0.1:10911")
        topic = _one_of(given, "topic", "topicPattern", "orders")
        start, end = start_of(given), end_of(given)
        check_order(start, end)
        return cls(
            broker=_broker(given["broker"]) if broker else "",
            path="" if broker else os.path.abspath(given["path"].strip()),  # executors run in folders of their own
            topics=_topics(given["topic"]) if topic else (),
            pattern="" if topic else _pattern(given["topicpattern"].strip()),
            start=start,
            end=end,
            queues=_queues(given["queues"]) if "queues" in given else None,
            min_partitions=_positive("minPartitions", given["minpartitions"]) if "minpartitions" in given else None,
            max_records=_positive("maxRecordsPerPartition", given.get("maxrecordsperpartition", str(DEFAULT_RECORDS))),
            manner=_manner(given),
        )

    @property
    def where(self) -> str:
        """What is read from, for people."""
        return f"broker {self.broker}" if self.broker else f"directory {self.path}"


def _manner(given: Mapping[str, str]) -> Manner:
    on_damage = given.get("ondamage", "fail").strip().lower()
    if on_damage not in ("fail", "skip"):
        raise ConfigError(f'the option "onDamage" is fail or skip, not {on_damage!r}')
    return Manner(
        columns=_columns(given.get("columns")),
        tags=_tags(given.get("tags", tags.ALL)),
        verify=_flag("verify", given.get("verify", "true")),
        timeout_s=_seconds("timeout", given.get("timeout", str(DEFAULT_TIMEOUT_S))),
        skip_damage=on_damage == "skip",
        skip_lost=not _flag("failOnDataLoss", given.get("failondataloss", "true")),
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in given:
        if name in _FORMER:
            raise ConfigError(f'the rmq source has no option "{name}": {_FORMER[name]}')
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, n=1)
            hint = f'did you mean "{_KNOWN[near[0]]}"?' if near else f"known are {', '.join(NAMES)}"
            raise ConfigError(f'the rmq source has no option "{name}": {hint}')


def _one_of(given: Mapping[str, str], usual: str, other: str, example: str) -> bool:
    """Whether the usual one of two options is given; refuses none and both."""
    has_usual, has_other = (bool(given.get(name.lower(), "").strip()) for name in (usual, other))
    if has_usual and has_other:
        raise ConfigError(f'the rmq source takes the option "{usual}" or "{other}", not both')
    if not has_usual and not has_other:
        raise ConfigError(
            f'the rmq source needs the option "{usual}": add .option("{usual}", "{example}"), or "{other}"'
        )
    return has_usual


def _broker(text: str) -> str:
    try:
        parse_address(text.strip())
    except ValueError as error:
        raise ConfigError(f'the option "broker": {error}') from None
    return text.strip()


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        # Retry and dead letter topics have a %, which users may not use in names of theirs; they can be read.
        try:
            check_topic(name.replace("%", "_"))
        except BadName as error:
            raise ConfigError(f'the option "topic": {error}') from None
    if len(set(names)) != len(names):
        raise ConfigError(f'the option "topic" names {next(n for n in names if names.count(n) > 1)} twice')
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f'the option "topicPattern" is no regular expression: {error}') from None
    return text


def _tags(text: str) -> str:
    try:
        tags.parse(text)
    except ValueError as error:
        raise ConfigError(f'the option "tags": {error}') from None
    return text


def _number(name: str, value: str) -> int:
    text = value.strip()
    if not is_number(text):
        raise ConfigError(f'the option "{name}" holds {value!r} where a whole number from 0 is expected')
    return int(text)


def _positive(name: str, text: str) -> int:
    value = _number(name, text)
    if not value:
        raise ConfigError(f'the option "{name}" must be 1 or more')
    return value


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MAX_TIMEOUT_S:
        raise ConfigError(f'the option "{name}" is a number of seconds above 0 and up to {MAX_TIMEOUT_S}, not {text!r}')
    return value


def _queues(text: str) -> tuple[int, ...]:
    ids = {_number("queues", part) for part in text.strip().removeprefix("[").removesuffix("]").split(",")}
    return tuple(sorted(ids))


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f'the option "{name}" is true or false, not {text!r}')
    return text.strip().lower() == "true"


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return COLUMNS
    names = tuple(name.strip().lower() for name in text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise ConfigError(f'the option "columns" names {name!r}: there are {", ".join(COLUMNS)}')
    if len(set(names)) != len(names):
        raise ConfigError('the option "columns" names a column twice')
    return names
