"""
An ordered message broker for Python: the names that most programs need.

::

    from rmq import Consumer, Message, Producer

Each is imported when it is first used: ``import rmq`` alone loads neither an event loop nor Spark.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmq.client import Admin, Producer
    from rmq.consumer import Consumer, PullConsumer
    from rmq.wire.errors import (
        BadBatch,
        BadDelay,
        BadName,
        BadRequest,
        BatchTooLarge,
        ConfigError,
        ConnectionLost,
        DiskFull,
        Fatal,
        Fenced,
        GroupMismatch,
        GroupNotFound,
        MemberNotFound,
        MemberSilent,
        MessageNotFound,
        MessageTooLarge,
        NotAMember,
        OutcomeUnknown,
        ProducerFenced,
        ProtocolUnsupported,
        QueueNotFound,
        Refused,
        RequestTimeout,
        RmqError,
        SequenceConflict,
        StoreFailed,
        TooManyInFlight,
        TopicExists,
        TopicNotFound,
        WireError,
    )
    from rmq.wire.model import ConsumeStatus, Message

    __version__: str

_MODULES = {
    "Admin": "rmq.client",
    "Consumer": "rmq.consumer",
    "ConsumeStatus": "rmq.wire.model",
    "Message": "rmq.wire.model",
    "Producer": "rmq.client",
    "PullConsumer": "rmq.consumer",
}  # any other name is an error

__all__ = [  # noqa: RUF022 (grouped by what they are for)
    "__version__",
    "Admin", "Consumer", "ConsumeStatus", "Message", "Producer", "PullConsumer",
    # errors
    "BadBatch", "BadDelay", "BadName", "BadRequest", "BatchTooLarge", "ConfigError", "ConnectionLost", "DiskFull",
    "Fatal", "Fenced", "GroupMismatch", "GroupNotFound", "MemberNotFound", "MemberSilent", "MessageNotFound",
    "MessageTooLarge", "NotAMember", "OutcomeUnknown", "ProducerFenced", "ProtocolUnsupported", "QueueNotFound",
    "Refused", "RequestTimeout", "RmqError", "SequenceConflict", "StoreFailed", "TooManyInFlight", "TopicExists",
    "TopicNotFound", "WireError",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        value: object = metadata.version("rmq")
    else:
        value = getattr(importlib.import_module(_MODULES.get(name, "rmq.wire.errors")), name)
    globals()[name] = value
    return value
