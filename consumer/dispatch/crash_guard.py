"""
Care with queues that lost several owners in a row, most likely to a message that ends its process.

Such a queue is delivered message by message, each announced to the broker before its call, and one such call at a time
in the whole consumer: if the process ends, the broker knows at which message. A message that is convicted is not given
to a listener again: it becomes a dead letter where ``max_attempts`` is set, else its queue stops, with its lease kept.
"""

from __future__ import annotations

import asyncio

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.errors import Fenced, Refused, RmqError
from rmq.wire.model import StoredMessage
from rmq.wire.protocol.ops.core import NO_OFFSET

from ..config import ConsumerConfig
from ..group.assignment import NO_LIMIT, REMIND_S, Assignment

log = get_logger("rmq.consumer")

ADVICE = (
    "this message crashes its consumer: fix the listener, then reset the offset of the queue to it (retry) or past it "
    "(skip); with max_attempts it would become a dead letter"
)


class CrashGuard:
    """Decides about suspected messages, and announces them. ``calls`` is locked for each careful call."""

    def __init__(self, config: ConsumerConfig, broker: GroupClient) -> None:
        self._config = config
        self._broker = broker
        self.calls = asyncio.Lock()

    def judge(self, assignment: Assignment) -> None:
        """Stop a queue from the start, if it may not be delivered from."""
        suspicion = assignment.suspicion
        if (
            suspicion is not None
            and suspicion.convicted(self._config.crash_limit)
            and self._config.max_attempts == NO_LIMIT
        ):
            assignment.crash_loop = str(suspicion)

    async def stand_still(self, assignment: Assignment) -> None:
        """Report a stopped queue, now and every 300 s, until it is dropped."""
        while not assignment.dropped:
            assert assignment.suspicion is not None
            log.error(
                "queue.stopped",
                queue=str(assignment.queue),
                reason="CRASH_LOOP",
                queue_offset=assignment.suspicion.suspect_offset,
                abandoned=assignment.suspicion.abandoned,
                advice=ADVICE,
            )
            await assignment.pause(REMIND_S)

    def is_convicted(self, assignment: Assignment, message: StoredMessage) -> bool:
        """Whether a message must not be given to the listener again, since it ended too many processes."""
        suspicion, max_attempts = assignment.suspicion, self._config.max_attempts
        if suspicion is None or max_attempts == NO_LIMIT:
            return False
        if suspicion.convicted(self._config.crash_limit) and message.queue_offset >= suspicion.suspect_offset:
            return True
        return message.attempt > max_attempts  # each end of a process counts as a delivery

    def is_over(self, assignment: Assignment, message: StoredMessage) -> bool:
        """Whether a message and all after it may be delivered as ever."""
        suspicion = assignment.suspicion
        if suspicion is None:
            return True
        return not suspicion.convicted(self._config.crash_limit) and not suspicion.careful(message.queue_offset)

    async def announce(self, assignment: Assignment, message: StoredMessage) -> bool:
        """Have it recorded that a message is given to the listener next; says whether it may be."""
        agrees = assignment.agrees(self._broker.log_epoch)
        progress = assignment.cache.commit_offset if agrees else NO_OFFSET
        try:
            await self._broker.starting(assignment.queue, assignment.epoch, message.queue_offset, progress)
        except Fenced as error:
            assignment.lose(error.text)
            return False
        except RmqError as error:
            report = log.error if isinstance(error, Refused) else log.debug
            report("starting.failed", queue=str(assignment.queue), error=str(error))
            return False
        if agrees:
            assignment.reported = progress
        return True
