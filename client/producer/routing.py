"""
Which queue a message goes to, and what waits for a topic's route.

The choice is pure: the same key and topic always give the same queue, on every machine and in RocketMQ.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rmq.wire.batch.compression import Codec
from rmq.wire.batch.hashing import ShardingKey, shard, sharding_text
from rmq.wire.errors import QueueNotFound
from rmq.wire.model import Message, MessageQueue
from rmq.wire.protocol.ops.core import TopicInfo

from .outbox import Outbox
from .pending import Parcel

Selector = Callable[[Sequence[MessageQueue], Message, Any], int | MessageQueue]


class Choice(NamedTuple):
    """How the caller wants the queue to be chosen; nothing set is round robin."""

    sharding_key: ShardingKey | None = None
    queue_id: int | None = None
    selector: Selector | None = None
    arg: Any = None

    def ordering_key(self) -> str | None:
        """The key that is kept with the message."""
        return None if self.sharding_key is None else sharding_text(self.sharding_key)


ROUND_ROBIN = Choice()


def choice(sharding_key: ShardingKey | None, queue_id: int | None, selector: Selector | None, arg: Any) -> Choice:
    """
    Check how the caller chooses.

    Raises:
        ValueError: in more ways than one.
        TypeError: a key that is neither text, bytes nor a number.
    """
    if sharding_key is None and queue_id is None and selector is None:
        return ROUND_ROBIN
    if (sharding_key is not None) + (queue_id is not None) + (selector is not None) > 1:
        raise ValueError("give one of sharding_key, queue_id and selector: each of them chooses the queue")
    if sharding_key is not None and not isinstance(sharding_key, str | bytes | int):
        raise TypeError(f"sharding_key must be str, bytes or int, not {type(sharding_key).__name__}")
    return Choice(sharding_key, queue_id, selector, arg)


def choose(info: TopicInfo, wanted: Choice, message: Message | None, turn: int) -> int:
    """
    The queue for ``message``; ``turn`` counts the batches that went round robin.

    Raises:
        QueueNotFound: the topic has no such queue.
    """
    if wanted is ROUND_ROBIN:
        return info.queues[turn % len(info.queues)].queue_id
    if wanted.sharding_key is not None:
        return info.queues[shard(wanted.sharding_key, info.shards)].queue_id
    if wanted.queue_id is not None:
        return _existing(info, wanted.queue_id)
    if wanted.selector is not None and message is not None:
        queues = [MessageQueue(info.topic, queue.queue_id) for queue in info.queues]
        chosen = wanted.selector(queues, message, wanted.arg)
        if isinstance(chosen, MessageQueue) and chosen.topic != info.topic:
            raise QueueNotFound(f"the selector chose {chosen} for a message of {info.topic!r}")
        return _existing(info, chosen.queue_id if isinstance(chosen, MessageQueue) else chosen)
    return info.queues[turn % len(info.queues)].queue_id


def _existing(info: TopicInfo, queue_id: int) -> int:
    queues = info.queues
    if type(queue_id) is int and 0 <= queue_id < len(queues) and queues[queue_id].queue_id == queue_id:
        return queue_id  # found where brokers put it
    if any(queue.queue_id == queue_id for queue in queues):
        return queue_id
    ids = [queue.queue_id for queue in info.queues]
    raise QueueNotFound(f"the topic {info.topic!r} has no queue {queue_id}: it has {min(ids)} to {max(ids)}")


class TopicRoute:
    """What a producer knows of a topic, and the parcels that wait until it knows more."""

    def __init__(self, topic: str, codec: Codec | None = None) -> None:
        self.topic = topic
        self._codec = codec
        self._info: TopicInfo | None = None
        self._at_turn: Outbox | None = None  # where the next message goes that goes round robin; None: to be chosen
        self.waiting: deque[Parcel] = deque()
        self.fetching = False
        self.asked_at = 0.0  # written by the router: when the route was last asked for
        self._outboxes: dict[int, Outbox] = {}
        self._turn = random.randrange(1 << 16)  # many short-lived producers must not all begin with one queue

    @property
    def info(self) -> TopicInfo | None:
        """What the broker tells of the topic; None if it has to be asked."""
        return self._info

    @info.setter
    def info(self, info: TopicInfo | None) -> None:
        self._info = info
        self._at_turn = None

    def place(self, parcel: Parcel) -> Outbox | None:
        """
        Choose the queue of a parcel and put it there; None while the route is not known.

        Raises:
            Exception: the queue does not exist, or whatever a selector raises.
        """
        outbox = self._at_turn
        if outbox is None or parcel.choice is not ROUND_ROBIN:
            info = self._info
            if info is None:
                return None
            first = None if parcel.messages is None else parcel.messages[0]
            outbox = self._outbox(choose(info, parcel.choice, first, self._turn), info.generation)
            if parcel.choice is ROUND_ROBIN:
                self._at_turn = outbox
        parcel.queue_id = outbox.queue_id
        outbox.put(parcel)
        if parcel.count > 1:
            self.left(outbox)
        return outbox

    def _outbox(self, queue_id: int, generation: int) -> Outbox:
        outbox = self._outboxes.get(queue_id)
        if outbox is None or outbox.generation != generation:  # what waits for a dead topic goes down with it
            outbox = self._outboxes[queue_id] = Outbox(self.topic, queue_id, self._codec)
            outbox.generation = generation
        return outbox

    def left(self, outbox: Outbox) -> None:
        """A batch was made for a queue: if it was that queue's turn, the next one is at turn."""
        if self._info is not None and choose(self._info, ROUND_ROBIN, None, self._turn) == outbox.queue_id:
            self._turn += 1
            self._at_turn = None
