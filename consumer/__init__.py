"""Consumption in groups: rebalancing, pulling, and calls of listeners under queue leases."""

from rmq.wire.errors import ConfigError, GroupMismatch
from rmq.wire.model import ConsumeStatus, MessageQueue, StoredMessage

from .config import ConsumerConfig
from .consumer import Consumer
from .group.allocation import PlacedQueue, Strategy
from .introspection import Rate, TopicStatistics
from .listener import AsyncListener, BlockingListener, CallInfo, ConcurrentContext, ConsumeContext, Listener, ResultType
from .poll.polls import RebalanceHook
from .poll.pull_consumer import PullConsumer
from .poll.queue import NotAssigned, PulledBatch

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
