"""
An ordered message broker for Python: the names that most programs need.

::

    from rmq import Consumer, Message, Producer

Each is imported when it is first used: ``import rmq`` alone loads neither an event loop nor Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq.runtime.package import lazy_names as _lazy_names
from rmq.runtime.package import version as _version

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

_lazy = _lazy_names(
    __name__,
    dict.fromkeys(__all__, "rmq.wire.errors")
    | dict.fromkeys(("Admin", "Producer"), "rmq.client")
    | dict.fromkeys(("Consumer", "PullConsumer"), "rmq.consumer")
    | dict.fromkeys(("ConsumeStatus", "Message"), "rmq.wire.model"),
)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    return _version() if name == "__version__" else _lazy(name)
