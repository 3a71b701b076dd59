"""Which names of topics and groups are legal, how many queues a topic has, and the names rmq makes itself."""

from __future__ import annotations

import re

from .errors import BadName

MAX_TOPIC_LENGTH = 127
MAX_GROUP_LENGTH = 127
MAX_QUEUES = 1024  # of a topic
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

DEAD_LETTERS = "%DLQ%"
RETRIES = "%RETRY%"
ORIGIN_TOPIC = "RMQ_ORIGIN_TOPIC"  # the property of a copied message that names the topic it was sent to

_PLAIN = re.compile(r"[A-Za-z0-9_-]+\Z")
_RESERVED = frozenset({SCHEDULE_TOPIC})


def check_topic(name: str) -> None:
    """Refuse a topic name that a user may not give; ``namespace%name`` is one."""
    _check("topic", name, MAX_TOPIC_LENGTH)
    if name in _RESERVED:
        raise BadName(f"the topic name {name!r} is reserved")


def check_readable(name: str) -> None:
    """Refuse the name of a topic that nobody can read: those of users, and the ones rmq makes for groups, pass."""
    for prefix in (DEAD_LETTERS, RETRIES):
        if name.startswith(prefix):
            return check_group(name[len(prefix) :])
    check_topic(name)


def check_group(name: str) -> None:
    """Refuse a group name that a user may not give; ``namespace%name`` is one."""
    _check("group", name, MAX_GROUP_LENGTH)


def check_namespace(name: str) -> None:
    """Refuse a namespace that a user may not give."""
    _check_plain("namespace", name)


def dead_letter_topic(group: str) -> str:
    """Where the dead letters of a group go."""
    return DEAD_LETTERS + group


def retry_topic(group: str) -> str:
    """Where messages that a group failed at wait."""
    return RETRIES + group


def wrap(namespace: str, name: str) -> str:
    """The name of a topic or group inside a namespace, also behind the prefix of a topic that rmq makes."""
    for prefix in (DEAD_LETTERS, RETRIES):
        if name.startswith(prefix):
            return prefix + wrap(namespace, name[len(prefix) :])
    return f"{namespace}%{name}" if namespace else name  # an empty one is none


def unwrap(namespace: str, name: str) -> str:
    """The name that :func:`wrap` was given, also behind the prefix of a topic that rmq makes."""
    for prefix in (DEAD_LETTERS, RETRIES):
        if name.startswith(prefix):
            return prefix + unwrap(namespace, name[len(prefix) :])
    return name.removeprefix(f"{namespace}%") if namespace else name


def _check(what: str, name: str, longest: int) -> None:
    if not name:
        raise BadName(f"the {what} name is empty")
    if len(name) > longest:
        raise BadName(f"the {what} name has {len(name)} characters, at most {longest} are allowed")
    namespace, separator, rest = name.partition("%")
    if separator and namespace:
        _check_plain("namespace", namespace)
        if not rest:
            raise BadName(f"the {what} name {name!r} has nothing behind its namespace: write NAMESPACE%NAME")
        _check_plain(what, rest)
    else:
        _check_plain(what, name)


def _check_plain(what: str, name: str) -> None:
    if not _PLAIN.match(name):
        raise BadName(f"the {what} name {name[:40]!r} may hold only letters from A to Z, digits, '-' and '_'")
