"""Which names of topics and groups are legal, and the names rmq makes itself."""

from __future__ import annotations

import re

from .errors import BadName

MAX_TOPIC_LENGTH = 127
MAX_GROUP_LENGTH = 127
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

_LEGAL = re.compile(r"[A-Za-z0-9_-]+\Z")
_RESERVED = frozenset({SCHEDULE_TOPIC})


def check_topic(name: str) -> None:
    """Refuse a topic name that a user may not give."""
    _check("topic", name, MAX_TOPIC_LENGTH)
    if name in _RESERVED:
        raise BadName(f"the topic name {name!r} is reserved")


def check_group(name: str) -> None:
    """Refuse a group name that a user may not give."""
    _check("group", name, MAX_GROUP_LENGTH)


def _check(what: str, name: str, longest: int) -> None:
    if not name:
        raise BadName(f"the {what} name is empty")
    if len(name) > longest:
        raise BadName(f"the {what} name has {len(name)} characters, at most {longest} are allowed")
    if not _LEGAL.match(name):
        raise BadName(f"the {what} name {name[:40]!r} may hold only letters, digits, '-' and '_'")
