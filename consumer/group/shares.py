"""``Shares``: what falls to this member, topic by topic; a topic whose strategy fails stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rmq.runtime.logging import get_logger
from rmq.wire.model import MessageQueue
from rmq.wire.names import unwrap
from rmq.wire.protocol.ops.core import QueueInfo

from .allocation import AVERAGE, PlacedQueue, Strategy

log = get_logger("rmq.consumer")


class Share(NamedTuple):
    """What falls to us of a topic, of how many queues and members; or why that is not known."""

    ours: frozenset[MessageQueue]
    queues: int
    members: int
    error: str | None = None


class Shares:
    """
    Computes shares by one strategy.

    The strategy sees topics by the names the user gave them, without the namespace. The retries of the group are not
    the user's business: they are shared out evenly, so that no strategy can leave them to nobody.
    """

    def __init__(self, strategy: Strategy, namespace: str = "", *, retry_topic: str | None = None) -> None:
        self.strategy = strategy
        self._retry_topic = retry_topic
        self._namespace = namespace
        self._told: dict[str, Share] = {}

    def of_topics(
        self,
        topics: Mapping[str, Sequence[QueueInfo]],
        members: Sequence[str],
        member: str,
        *,
        held: Iterable[MessageQueue],
    ) -> dict[str, Share]:
        """The share of each topic; where the strategy raises, what is ``held`` of it."""
        held = list(held)
        return {topic: self._of_topic(topic, infos, members, member, held) for topic, infos in topics.items()}

    def _of_topic(
        self, topic: str, infos: Sequence[QueueInfo], members: Sequence[str], member: str, held: list[MessageQueue]
    ) -> Share:
        shown = unwrap(self._namespace, topic)
        try:
            strategy = AVERAGE if topic == self._retry_topic else self.strategy
            ours = strategy.share((PlacedQueue(shown, info.broker, info.queue_id) for info in infos), members, member)
        except Exception as error:  # a user's function may raise anything: the other topics are not to suffer
            kept = frozenset(queue for queue in held if queue.topic == topic)
            return Share(kept, len(infos), len(members), f"{type(error).__name__}: {error}")
        return Share(frozenset(MessageQueue(topic, queue.queue_id) for queue in ours), len(infos), len(members))

    def report(self, group: str, shares: Mapping[str, Share]) -> None:
        """Tell each change once, with what it follows from."""
        for topic, share in shares.items():
            before = self._told.get(topic)
            if topic == self._retry_topic and before is None and not share.queues:
                continue  # nothing was given back as yet
            if before is None and not share.queues:
                log.warning("topic.awaited", topic=topic, now="it does not exist: waiting until somebody makes it")
            if share.error is not None:
                if before is None or before.error != share.error:
                    log.error(
                        "rebalance.failed", group=group, topic=topic, strategy=self.strategy.name, error=share.error
                    )
            elif before is None or before.error is not None or before.ours != share.ours:
                log.info(
                    "rebalance.changed",
                    group=group,
                    topic=topic,
                    strategy=self.strategy.name,
                    queues=share.queues,
                    members=share.members,
                    ours=len(share.ours),
                    result=sorted(queue.queue_id for queue in share.ours),
                )
            self._told[topic] = share
        self._told = {topic: self._told[topic] for topic in shares if topic in self._told}
