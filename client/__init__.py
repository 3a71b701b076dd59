"""Connection, producer and admin calls."""

from __future__ import annotations

from rmq.wire.errors import (
    BadBatch,
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
from rmq.wire.group_ops import GroupDescription, GroupRow, MemberReport
from rmq.wire.model import Message, MessageQueue
from rmq.wire.topic_ops import TopicDescription

from .admin import Admin
from .connection import Connection
from .producer import Producer
from .receipts import Receipt, SendStatus
from .stored_messages import FoundMessages

__all__ = [  # noqa: RUF022 (grouped by what they are for)
    # sending
    "Message", "MessageQueue", "Producer", "Receipt", "SendStatus",
    # asking
    "Admin", "Connection", "FoundMessages", "GroupDescription", "GroupRow", "MemberReport", "TopicDescription",
    # errors
    "RmqError", "ConfigError", "ConnectionLost", "RequestTimeout", "OutcomeUnknown",
    "WireError", "Refused", "Fatal", "BadBatch", "BadName", "BadRequest", "BatchTooLarge", "DiskFull",
    "GroupNotFound", "MemberNotFound", "MemberSilent", "MessageNotFound", "MessageTooLarge", "ProducerFenced",
    "ProtocolUnsupported", "QueueNotFound", "SequenceConflict", "StoreFailed", "TooManyInFlight", "TopicExists",
    "TopicNotFound",
]  # fmt: skip
