"""Connection, producer and admin calls; tables of messages are in :mod:`rmq.client.table`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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
from rmq.wire.group_ops import GroupDescription, GroupRow, MemberReport
from rmq.wire.model import Message, MessageQueue
from rmq.wire.topic_ops import TopicDescription

if TYPE_CHECKING:
    from .admin import Admin
    from .connection import Connection
    from .delays import WaitingDelays
    from .explain import QueueStory
    from .explain_reasons import Reason, Urgency
    from .explaining import Explanation
    from .producer import Producer
    from .receipts import Receipt, SendStatus
    from .saved_offsets import starting_offsets
    from .stored_messages import FoundMessages, Head
    from .tail import Tail
else:
    _LATER = {
        "Admin": "admin",
        "Connection": "connection",
        "Explanation": "explaining",
        "FoundMessages": "stored_messages",
        "Head": "stored_messages",
        "Producer": "producer",
        "QueueStory": "explain",
        "Reason": "explain_reasons",
        "Receipt": "receipts",
        "SendStatus": "receipts",
        "Tail": "tail",
        "Urgency": "explain_reasons",
        "WaitingDelays": "delays",
        "starting_offsets": "saved_offsets",
    }

    def __getattr__(name: str) -> object:
        """Import what needs an event loop when it is first asked for: the workers of Spark never do."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
        globals()[name] = value
        return value


__all__ = [  # noqa: RUF022 (grouped by what they are for)
    # sending
    "Message", "MessageQueue", "Producer", "Receipt", "SendStatus",
    # asking
    "Admin", "Connection", "FoundMessages", "GroupDescription", "GroupRow", "Head", "MemberReport", "Tail",
    "TopicDescription", "WaitingDelays", "starting_offsets",
    # explaining
    "Explanation", "QueueStory", "Reason", "Urgency",
    # errors
    "RmqError", "ConfigError", "ConnectionLost", "RequestTimeout", "OutcomeUnknown",
    "WireError", "Refused", "Fatal", "BadBatch", "BadDelay", "BadName", "BadRequest", "BatchTooLarge", "DiskFull",
    "GroupNotFound", "MemberNotFound", "MemberSilent", "MessageNotFound", "MessageTooLarge", "ProducerFenced",
    "ProtocolUnsupported", "QueueNotFound", "SequenceConflict", "StoreFailed", "TooManyInFlight", "TopicExists",
    "TopicNotFound",
]  # fmt: skip
