"""
The configuration files of a RocketMQ store: topics, progress of groups, settings of groups, progress of delays.

The files are JSON of a Java library, which does not quote keys that are numbers. Each is read strictly; where the file
is missing, empty or cannot be parsed, its ``.bak`` replaces it, as in RocketMQ, and a note reports that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from .store_files import BadStore, cannot_read, open_regular

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)', re.DOTALL)
MAX_OFFSET: Final = 1 << 62


class TopicConfig(NamedTuple):
    """A topic as it was set up; ``perm``: 4 read, 2 write, 1 inherit."""

    queues: int
    perm: int
    is_ordered: bool


class GroupConfig(NamedTuple):
    """What was set for a group."""

    max_retries: int
    enabled: bool


class Config(NamedTuple):
    """All of it; None is a file that is not there."""

    topics: dict[str, TopicConfig] | None
    offsets: dict[tuple[str, str], dict[int, int]] | None  # (topic, group): queue -> next offset
    groups: dict[str, GroupConfig] | None
    delays: dict[int, int] | None  # level -> next entry of its queue
    notes: list[str]  # what an operator should know about how it was read


def parse(text: str) -> Any:
    """
    JSON, also with numbers as keys that are not quoted.

    Raises:
        ValueError: it is not that.
    """
    return json.loads(_TOKEN.sub(lambda m: m[0] if m[2] is None else f'{m[1]}"{m[2]}"{m[3]}', text))


def topics_of(value: Any) -> dict[str, TopicConfig]:
    """The topics in a parsed ``topics.json``; what is missing of one is as in RocketMQ."""
    table = _table(value, "topicConfigTable")
    return {
        name: TopicConfig(
            max(_number(row, "readQueueNums", 16), _number(row, "writeQueueNums", 16)),
            _number(row, "perm", 6),
            _flag(row, "order", False),
        )
        for name, row in table.items()
    }


def offsets_of(value: Any) -> dict[tuple[str, str], dict[int, int]]:
    """The progress in a parsed ``consumerOffset.json``, by topic and group."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for name, row in _table(value, "offsetTable").items():
        topic, separator, group = name.partition("@")
        if not (separator and topic and group):
            raise ValueError(f"{name!r} is not topic@group")
        found[topic, group] = _numbers(row)
    return found


def groups_of(value: Any) -> dict[str, GroupConfig]:
    """The groups in a parsed ``subscriptionGroup.json``."""
    table = _table(value, "subscriptionGroupTable")
    return {
        name: GroupConfig(_number(row, "retryMaxTimes", 16), _flag(row, "consumeEnable", True))
        for name, row in table.items()
    }


def delays_of(value: Any) -> dict[int, int]:
    """The progress in a parsed ``delayOffset.json``, by level."""
    return _numbers(_table(value, "offsetTable"))


def read(folder: Path) -> Config:
    """
    All files of a store's ``config`` folder.

    Raises:
        BadStore: one of them is not what it should be, and has no older copy that is.
    """
    notes: list[str] = []
    config = Config(
        _file(folder / "topics.json", topics_of, notes),
        _file(folder / "consumerOffset.json", offsets_of, notes),
        _file(folder / "subscriptionGroup.json", groups_of, notes),
        _file(folder / "delayOffset.json", delays_of, notes),
        notes,
    )
    names = ("topics", "consumerOffset", "subscriptionGroup", "delayOffset")
    missing = [f"{name}.json" for name, found in zip(names, config, strict=False) if found is None]
    if missing:
        notes.append(f"not there in config/: {', '.join(missing)}")
    return config


def _file(path: Path, judge: Callable[[Any], Any], notes: list[str]) -> Any:
    """What a file holds, or its older copy; None if neither is there."""
    trouble, found = _read(path, judge)
    if trouble is None:
        return found
    backup = path.with_name(f"{path.name}.bak")
    worse, found = _read(backup, judge)
    if worse is None:
        notes.append(f"config/{path.name} {trouble}: config/{backup.name}, the state before it, is used instead")
        return found
    if trouble == worse == "is not there":
        return None
    raise BadStore(
        f"{path} {trouble}, and {backup.name} {worse}: put a sound one there, or take the file away to do without it"
    )


def _read(path: Path, judge: Callable[[Any], Any]) -> tuple[str | None, Any]:
    """``(None, what it holds)``, or what is wrong with it."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            text = file.read().decode()
        if not text.strip():
            return "is empty", None
        return None, judge(parse(text))
    except FileNotFoundError:
        return "is not there", None
    except OSError as error:
        raise cannot_read(path, error) from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError among them
        return f"is not what it should be ({' '.join(str(error).split())})", None


def _table(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get(name, {}), dict):
        raise ValueError(f"there is no table {name!r}")
    table: dict[str, Any] = value.get(name, {})
    return table


def _numbers(row: Any) -> dict[int, int]:
    if not isinstance(row, dict):
        raise ValueError(f"{row!r} is not a table of numbers")
    found = {}
    for key, value in row.items():
        if not re.fullmatch(r"\d{1,9}", key) or type(value) is not int or not -1 <= value < MAX_OFFSET:
            raise ValueError(f"{key!r}: {value!r} is not a number and an offset")
        if value >= 0:
            found[int(key)] = value
    return found


def _number(row: Any, name: str, default: int) -> int:
    value = row.get(name, default) if isinstance(row, dict) else None
    if type(value) is not int:
        raise ValueError(f"{name!r} is not a number")
    return value


def _flag(row: Any, name: str, default: bool) -> bool:
    value = row.get(name, default)
    if type(value) is not bool:
        raise ValueError(f"{name!r} is not true or false")
    return value
