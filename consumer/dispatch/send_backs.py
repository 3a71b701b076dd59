"""
What becomes of messages that a listener failed at where they are finished in any order.

They are given back: the broker has them delivered to the group again later, or makes dead letters of those that were
delivered too often. That and the progress are one request, which asks for nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.errors import Fenced, Refused, RmqError
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.ops.core import NO_OFFSET
from rmq.wire.protocol.ops.redelivery import DEAD

from ..config import ConsumerConfig
from ..group.assignment import Generation

log = get_logger("rmq.consumer")

REASON_LENGTH = 200
EXPIRED_LEVEL = 3  # of messages whose call takes too long


class Fate(Enum):
    """What became of messages that were to be given back."""

    GIVEN_BACK = "given back"  # the queue may pass them
    REFUSED = "refused"  # they are still ours to deal with
    UNKNOWN = "unknown"  # the broker may have taken them, or lost them: asking again in a while is the way to know
    LOST = "lost"  # the queue is not ours any more: whoever has it gets them


class Failures(Protocol):
    """Where failed messages go."""

    async def give_back(
        self,
        generation: Generation,
        messages: Sequence[StoredMessage],
        *,
        progress: Callable[[], int],
        delay_level: int = 0,
        reason: str = "",
    ) -> Fate:
        """Deal with messages in the order of their offsets; ``progress`` tells what the progress is without them."""
        ...


class SendBacks:
    """Gives failed messages back to the broker."""

    def __init__(self, config: ConsumerConfig, broker: GroupClient) -> None:
        self._config = config
        self._broker = broker

    async def give_back(
        self,
        generation: Generation,
        messages: Sequence[StoredMessage],
        *,
        progress: Callable[[], int],
        delay_level: int = 0,
        reason: str = "",
    ) -> Fate:
        """
        Ask once, and say what came of it.

        A broker that is not known to have our messages any more is not asked: their offsets may belong to others.
        """
        if generation.lease.lost:
            return Fate.LOST
        if not generation.agrees(self._broker.log_epoch):
            return Fate.UNKNOWN
        reached = progress()
        try:
            fates = await self._broker.send_back(
                generation.queue,
                generation.epoch,
                [message.queue_offset for message in messages],
                [message.attempt for message in messages],
                delay_level=delay_level,
                max_attempts=self._config.max_attempts,
                commit_offset=reached if reached != generation.cache.commit_offset else NO_OFFSET,
                reason=reason[:REASON_LENGTH],
            )
        except Fenced as error:
            generation.lose(error.text)
            return Fate.LOST
        except Refused as error:
            log.error("send_back.refused", queue=str(generation.queue), error=str(error))
            return Fate.REFUSED
        except RmqError as error:
            log.warning("send_back.failed", queue=str(generation.queue), error=str(error))
            return Fate.UNKNOWN
        self._tell(generation, messages, fates, reason)
        return Fate.LOST if generation.lease.lost else Fate.GIVEN_BACK

    def _tell(
        self, generation: Generation, messages: Sequence[StoredMessage], fates: Sequence[int], reason: str
    ) -> None:
        dead = [message for message, fate in zip(messages, fates, strict=True) if fate == DEAD]
        if dead:
            log.warning(
                "message.dead_lettered",
                queue=str(generation.queue),
                queue_offset=dead[0].queue_offset,
                count=len(dead),
                attempts=dead[0].attempt,
                reason=reason,
            )
        if len(dead) < len(messages):
            log.info("message.sent_back", queue=str(generation.queue), count=len(messages) - len(dead), reason=reason)
