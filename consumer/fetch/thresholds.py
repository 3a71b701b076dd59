"""
How much of one queue may be held before it is not pulled any more. Pure.

The limits of a queue are those of the consumer, and those of its topic divided over the queues of that topic that are
held here, at least 1: 1024 messages of a topic are 512 a queue with two of them, and 341 with three.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from rmq.wire.model import MessageQueue

from ..config import ConsumerConfig


class Thresholds(NamedTuple):
    """A queue is pulled while it holds at most ``messages``, and less than ``size`` bytes or nothing."""

    messages: int
    size: int


def of_queue(config: ConsumerConfig, topic: str, held: Collection[MessageQueue]) -> Thresholds:
    """The thresholds of one queue of ``topic``; ``held`` are all queues this consumer holds, that one included."""
    messages, size = config.cache_messages, divided(config.cache_bytes, len(held))
    if config.topic_cache_messages or config.topic_cache_bytes:
        of_topic = sum(queue.topic == topic for queue in held)
        if config.topic_cache_messages:
            messages = min(messages, divided(config.topic_cache_messages, of_topic))
        if config.topic_cache_bytes:
            size = min(size, divided(config.topic_cache_bytes, of_topic))
    return Thresholds(messages, size)


def divided(limit: int, queues: int) -> int:
    """The share of one of ``queues`` queues, at least 1."""
    return max(1, limit // max(1, queues))
