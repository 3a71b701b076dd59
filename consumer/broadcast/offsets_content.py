"""
What ``offsets.json`` of a broadcasting member holds, as text and as values; damaged text is refused by name. Pure.

::

    {"format": 1, "group": "prices", "instance": "default", "store_id": "9c0e51b2a64f7d13",
     "topics": ["quotes"],
     "queues": [{"topic": "quotes", "generation": 1, "queue_id": 0, "offset": 17, "log_epoch": 2}]}

``offset`` is the next message to deliver, ``log_epoch`` the start of the broker under which the message before it was
stored: by that a broker that lost the end of its log is found out. ``topics`` were subscribed to when the file was
written, so that a queue of them that is not listed came into being later. People may read and edit the file while its
member does not run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rmq.wire.model import MessageQueue

FORMAT: Final = 1
MOST: Final = (1 << 63) - 1  # of any number
STORE_ID_DIGITS: Final = 16


class BadOffsets(ValueError):
    """The text does not hold the progress of a member; says what is wrong with it."""


class NewerOffsets(BadOffsets):
    """The text was written by a version of rmq that knows more than this one."""


class QueueProgress(NamedTuple):
    """How far one queue was consumed, of which topic of that name, and what shows that its log is still the same."""

    generation: int
    offset: int
    log_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetsContent:
    """The progress of one member in one store."""

    group: str
    instance: str
    store_id: int
    topics: frozenset[str] = frozenset()
    queues: Mapping[MessageQueue, QueueProgress] = field(default_factory=dict)


def encode(content: OffsetsContent) -> bytes:
    """The text: valid JSON, a line for each queue, in an order that depends on nothing else."""
    head = {
        "format": FORMAT,
        "group": content.group,
        "instance": content.instance,
        "store_id": f"{content.store_id:0{STORE_ID_DIGITS}x}",
        "topics": sorted(content.topics),
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    queues = ",\n".join(
        "    " + json.dumps({"topic": queue.topic, "generation": at.generation, "queue_id": queue.queue_id,
                             "offset": at.offset, "log_epoch": at.log_epoch})
        for queue, at in sorted(content.queues.items())
    )  # fmt: skip
    lines.append(f'  "queues": [\n{queues}\n  ]' if queues else '  "queues": []')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def decode(text: bytes) -> OffsetsContent:
    """
    The values of a text.

    Raises:
        NewerOffsets: its format is a later one.
        BadOffsets: it is empty, torn, or not what :func:`encode` makes.
    """
    if not text.strip():
        raise BadOffsets("it is empty")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadOffsets(f"it is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadOffsets("it is no JSON object")
    version = _number(found, "format")
    if version > FORMAT:
        raise NewerOffsets(f"its format is {version}, and this version of rmq knows {FORMAT}")
    if version != FORMAT:
        raise BadOffsets(f"its format is {version}, not {FORMAT}")
    return OffsetsContent(
        _text(found, "group"), _text(found, "instance"), _store_id(found), _topics(found), _queues(found)
    )


def _topics(found: dict[str, Any]) -> frozenset[str]:
    topics = _list(found, "topics")
    if not all(isinstance(topic, str) and topic for topic in topics):
        raise BadOffsets('a name in "topics" is no text')
    return frozenset(topics)


def _queues(found: dict[str, Any]) -> dict[MessageQueue, QueueProgress]:
    queues: dict[MessageQueue, QueueProgress] = {}
    for entry in _list(found, "queues"):
        if not isinstance(entry, dict):
            raise BadOffsets('an entry of "queues" is no object')
        queue = MessageQueue(_text(entry, "topic"), _number(entry, "queue_id"))
        if queue in queues:
            raise BadOffsets(f"{queue} is listed twice")
        queues[queue] = QueueProgress(*_numbers(entry, ("generation", "offset", "log_epoch")))
    return queues


def _store_id(found: dict[str, Any]) -> int:
    digits = _text(found, "store_id")
    if len(digits) != STORE_ID_DIGITS or not set(digits) <= set("0123456789abcdef"):
        raise BadOffsets(f'"store_id" has not the form of {STORE_ID_DIGITS} hexadecimal digits')
    return int(digits, 16)


def _list(found: dict[str, Any], name: str) -> list[Any]:
    value = found.get(name)
    if not isinstance(value, list):
        raise BadOffsets(f'"{name}" is no list')
    return value


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise BadOffsets(f'"{name}" is no text')
    return value


def _numbers(found: dict[str, Any], names: Iterable[str]) -> list[int]:
    return [_number(found, name) for name in names]


def _number(found: dict[str, Any], name: str) -> int:
    value = found.get(name)
    if type(value) is not int or not 0 <= value <= MOST:
        raise BadOffsets(f'"{name}" is no number from 0 to {MOST}')
    return value
