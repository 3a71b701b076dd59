"""Consumption in groups: rebalancing, pulling, and ordered turns under queue leases."""

from rmq.wire.errors import ConfigError, GroupMismatch
from rmq.wire.model import ConsumeStatus, MessageQueue, StoredMessage

from .allocation import PlacedQueue, Strategy
from .config import ConsumerConfig
from .consumer import Consumer
from .context import ConsumeContext
from .hooks import CallInfo
from .listeners import AsyncListener, BlockingListener, Listener
from .pull_consumer import PullConsumer
from .pulled_batch import NotAssigned, PulledBatch
from .results import ResultType
from .statistics import Rate, TopicStatistics

__all__ = [
    "AsyncListener",
    "BlockingListener",
    "CallInfo",
    "ConfigError",
    "ConsumeContext",
    "ConsumeStatus",
    "Consumer",
    "ConsumerConfig",
    "GroupMismatch",
    "Listener",
    "MessageQueue",
    "NotAssigned",
    "PlacedQueue",
    "PullConsumer",
    "PulledBatch",
    "Rate",
    "ResultType",
    "StoredMessage",
    "Strategy",
    "TopicStatistics",
]
