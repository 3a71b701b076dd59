"""Consumption in groups: rebalancing, pulling, and ordered turns under queue leases."""

from rmq.wire.model import ConsumeStatus, MessageQueue, StoredMessage

from .config import ConsumerConfig
from .consumer import Consumer
from .context import ConsumeContext

__all__ = ["ConsumeContext", "ConsumeStatus", "Consumer", "ConsumerConfig", "MessageQueue", "StoredMessage"]
