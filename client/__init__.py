"""Connection, producer and admin calls."""

from __future__ import annotations

from rmq.wire.errors import (
    BadBatch,
    BadName,
    BatchTooLarge,
    ConfigError,
    ConnectionLost,
    DiskFull,
    Fatal,
    MessageTooLarge,
    OutcomeUnknown,
    ProducerFenced,
    ProtocolUnsupported,
    QueueNotFound,
    Refused,
    RequestTimeout,
    RmqError,
    StoreFailed,
    TooManyInFlight,
    TopicExists,
    TopicNotFound,
    WireError,
)
from rmq.wire.model import Message, MessageQueue
from rmq.wire.topic_ops import TopicDescription

from .admin import Admin
from .connection import Connection
from .producer import Producer
from .receipts import Receipt, SendStatus

__all__ = [  # noqa: RUF022 (grouped by what they are for)
    # sending
    "Message", "MessageQueue", "Producer", "Receipt", "SendStatus",
    # asking
    "Admin", "Connection", "TopicDescription",
    # errors
    "RmqError", "ConfigError", "ConnectionLost", "RequestTimeout", "OutcomeUnknown",
    "WireError", "Refused", "Fatal", "BadBatch", "BadName", "BatchTooLarge", "DiskFull", "MessageTooLarge",
    "ProducerFenced", "ProtocolUnsupported", "QueueNotFound", "StoreFailed", "TooManyInFlight", "TopicExists",
    "TopicNotFound",
]  # fmt: skip
