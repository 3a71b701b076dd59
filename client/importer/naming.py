"""
Names of RocketMQ and what they become here. Pure.

A topic keeps its name. Here ``%RETRY%group`` and ``%DLQ%group`` are written by the broker alone, so their messages go
to the plain topics ``RETRY-group`` and ``DLQ-group`` (in the namespace of the group, if it has one).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rmq.wire.errors import BadName
from rmq.wire.names import check_group, check_topic

SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
HALF: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
RETRY_PREFIX: Final = "%RETRY%"
DEAD_PREFIX: Final = "%DLQ%"
GROUP_PREFIXES: Final = (RETRY_PREFIX, DEAD_PREFIX)

_SYSTEM: Final = frozenset(
    {
        SCHEDULE, HALF, "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT", "TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "DefaultCluster_REPLY_TOPIC",
    }
)  # fmt: skip
_SYSTEM_PREFIX: Final = "rmq_sys_"
_REPLIES: Final = "_REPLY_TOPIC"

SYSTEM_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
    }
)  # fmt: skip
_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


def is_system_topic(name: str, clusters: Iterable[str] = ()) -> bool:
    """Whether RocketMQ keeps a topic for itself; ``clusters`` are the names whose reply topics are such."""
    if name in _SYSTEM or name.startswith(_SYSTEM_PREFIX):
        return True
    return name.endswith(_REPLIES) and name.removesuffix(_REPLIES) in clusters


def is_system_group(name: str) -> bool:
    """Whether RocketMQ keeps a group for itself."""
    return name in SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIX)


def new_topic(old: str, mapping: Mapping[str, str]) -> str:
    """
    The topic here that messages of an old one go to.

    Raises:
        BadName: that is no name for a topic here; the sentence says what to do.
    """
    name = mapping.get(old) or _plain(old)
    try:
        check_topic(name)
    except BadName as error:
        raise BadName(f"{error}: choose another one with --map '{old}=NAME', or leave the topic out") from error
    return name


def new_group(old: str, mapping: Mapping[str, str]) -> str:
    """
    The group here that goes on where an old one was.

    Raises:
        BadName: that is no name for a group here; the sentence says what to do.
    """
    name = mapping.get(old, old)
    try:
        check_group(name)
    except BadName as error:
        raise BadName(f"{error}: choose another one with --map-group '{old}=NAME'") from error
    return name


def _plain(old: str) -> str:
    for prefix, word in ((RETRY_PREFIX, "RETRY"), (DEAD_PREFIX, "DLQ")):
        if old.startswith(prefix):
            namespace, separator, group = old.removeprefix(prefix).rpartition("%")
            return f"{namespace}{separator}{word}-{group}"
    return old
