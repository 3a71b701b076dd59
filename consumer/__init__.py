"""Consumption in groups: rebalancing, pulling, and ordered turns under queue leases."""

from rmq.wire.errors import ConfigError, GroupMismatch
from rmq.wire.model import ConsumeStatus, MessageQueue, StoredMessage

from .config import ConsumerConfig
from .consumer import Consumer
from .context import ConsumeContext
from .listeners import AsyncListener, BlockingListener, Listener

__all__ = [
    "AsyncListener",
    "BlockingListener",
    "ConfigError",
    "ConsumeContext",
    "ConsumeStatus",
    "Consumer",
    "ConsumerConfig",
    "GroupMismatch",
    "Listener",
    "MessageQueue",
    "StoredMessage",
]
