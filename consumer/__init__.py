"""Consumption in groups: rebalancing, pulling, and calls of listeners under queue leases."""

from rmq.wire.errors import ConfigError, GroupMismatch
from rmq.wire.model import ConsumeStatus, MessageQueue, StoredMessage

from .allocation import PlacedQueue, Strategy
from .config import ConsumerConfig
from .consumer import Consumer
from .context import ConcurrentContext, ConsumeContext
from .hooks import CallInfo
from .listeners import AsyncListener, BlockingListener, Listener
from .pull_consumer import PullConsumer
from .pull_service import RebalanceHook
from .pulled_batch import NotAssigned, PulledBatch
from .results import ResultType
from .statistics import Rate, TopicStatistics

__all__ = [
    "AsyncListener",
    "BlockingListener",
    "CallInfo",
    "ConcurrentContext",
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
    "RebalanceHook",
    "ResultType",
    "StoredMessage",
    "Strategy",
    "TopicStatistics",
]
