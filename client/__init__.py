"""Connection, producer and admin calls; tables of messages are in :mod:`rmq.client.scan.table`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq.runtime.package import lazy_names
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
    GroupNotFound,
    MemberNotFound,
    MemberSilent,
    MessageNotFound,
    MessageTooLarge,
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
from rmq.wire.model import Message, MessageQueue
from rmq.wire.protocol.ops.groups import GroupDescription, GroupRow, MemberReport
from rmq.wire.protocol.ops.topics import TopicDescription

if TYPE_CHECKING:
    from rmq.engine.native.connection import Connection

    from .admin.admin import Admin
    from .admin.deferrals import DeferredBatches
    from .admin.messages import FoundMessages, Head
    from .admin.tail import Tail
    from .explain.collect import Explanation
    from .explain.rules import QueueStory
    from .explain.wording import Reason, Urgency
    from .producer.producer import Producer
    from .producer.receipts import Receipt, SendStatus
    from .producer.routing import by_int
    from .scan.bounds import starting_offsets
else:
    # Names that need an event loop are imported when they are first used: the workers of Spark never do.
    __getattr__ = lazy_names(
        __name__,
        {
            "Admin": ".admin.admin",
            "Connection": "rmq.engine.native.connection",
            "Explanation": ".explain.collect",
            "FoundMessages": ".admin.messages",
            "Head": ".admin.messages",
            "Producer": ".producer.producer",
            "QueueStory": ".explain.rules",
            "Reason": ".explain.wording",
            "Receipt": ".producer.receipts",
            "SendStatus": ".producer.receipts",
            "Tail": ".admin.tail",
            "Urgency": ".explain.wording",
            "DeferredBatches": ".admin.deferrals",
            "by_int": ".producer.routing",
            "starting_offsets": ".scan.bounds",
        },
    )

__all__ = [  # noqa: RUF022 (grouped by what they are for)
    # sending
    "Message", "MessageQueue", "Producer", "Receipt", "SendStatus", "by_int",
    # asking
    "Admin", "Connection", "FoundMessages", "GroupDescription", "GroupRow", "Head", "MemberReport", "Tail",
    "TopicDescription", "DeferredBatches", "starting_offsets",
    # explaining
    "Explanation", "QueueStory", "Reason", "Urgency",
    # errors
    "RmqError", "ConfigError", "ConnectionLost", "RequestTimeout", "OutcomeUnknown",
    "WireError", "Refused", "Fatal", "BadBatch", "BadDelay", "BadName", "BadRequest", "BatchTooLarge", "DiskFull",
    "GroupNotFound", "MemberNotFound", "MemberSilent", "MessageNotFound", "MessageTooLarge", "ProducerFenced",
    "ProtocolUnsupported", "QueueNotFound", "SequenceConflict", "StoreFailed", "TooManyInFlight", "TopicExists",
    "TopicNotFound",
]  # fmt: skip
