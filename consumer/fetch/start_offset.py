"""Where a group without progress begins in a queue, decided once and recorded; and the pause after a failed request."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.errors import (
    OK,
    BadRequest,
    ConnectionLost,
    Refused,
    RequestTimeout,
    RmqError,
    TooManyInFlight,
    code_name,
)
from rmq.wire.model import MessageQueue

from ..config import FIRST, LAST, ConsumerConfig, parse_start, to_us
from ..group.assignment import Assignment
from ..group.rebalancer import Rebalancer
from ..group.topics import GONE

log = get_logger("rmq.consumer")


class StartOffset:
    """
    A queue that came into being after the group subscribed is read from 0, any other from where ``start_from`` says:
    its first message, or the first that was stored at a time or later. For ``last`` the broker records the ends of all
    queues of a topic when the first member of the group names it, so that members that join later agree.

    A read that fails is repeated: guessing would skip messages or deliver them again.
    """

    def __init__(
        self, config: ConsumerConfig, broker: GroupClient, *, topics: Rebalancer, progressed: Callable[[], None]
    ) -> None:
        self._config = config
        self._broker = broker
        self._topics = topics
        self._progressed = progressed

    async def find(self, assignment: Assignment) -> None:
        """Decide, have the cache begin there, and have it reported; returns early only if the assignment drops."""
        queue = assignment.queue
        while not assignment.dropped:
            assignment.pulled_at = self._broker.now()
            is_new = self._topics.is_new(queue)
            try:
                start = 0 if is_new else await self._read(queue)
            except RmqError as error:
                if says_gone(error):
                    self._topics.topic_missing(queue.topic, assignment.topic_generation)
                    return assignment.lose(str(error))
                log.warning("start.unknown", queue=str(queue), error=str(error))
                await after_failure(assignment, error, self._broker, pause_s=self._config.lock_retry_s)
                continue
            log.info("start.found", queue=str(queue), queue_offset=start)
            assignment.cache.skip_to(start)
            if self._wanted(queue) == FIRST and not is_new:
                assignment.found_start = start
            self._progressed()
            return

    async def _read(self, queue: MessageQueue) -> int:
        start = self._wanted(queue)
        if start == LAST:
            return 0  # the end was recorded for all queues there were when the group came: this one is younger
        if isinstance(start, datetime):
            return await self._search(queue, start)
        kept = await self._broker.range(queue)
        if kept.status != OK:
            raise Refused(kept.text or code_name(kept.status), code=kept.status)
        return _checked(queue, kept.min_offset)

    def _wanted(self, queue: MessageQueue) -> str | datetime:
        """What the group failed at is for it, whenever it was given back."""
        return FIRST if queue.topic == self._broker.retry_topic else parse_start(self._config.start_from)

    async def _search(self, queue: MessageQueue, time: datetime) -> int:
        found = await self._broker.offset_at(queue, to_us(time))
        if found.status != OK:
            raise Refused(found.text or code_name(found.status), code=found.status)
        return _checked(queue, found.offset)


def _checked(queue: MessageQueue, start: int) -> int:
    if start < 0:
        raise BadRequest(f"the broker says that {queue} begins at {start}")
    return start


BUSY_S = 0.1  # a broker that has enough to do with us is asked again after this


def says_gone(error: RmqError) -> bool:
    """Whether a request was refused because the topic or the queue does not exist any more."""
    return isinstance(error, Refused) and error.code in GONE


async def after_failure(assignment: Assignment, error: RmqError, broker: GroupClient, *, pause_s: float) -> None:
    """
    Wait until asking again makes sense: at once, when there is a connection, or after a pause.

    It is ``pause_s`` for what an operator has to repair, and 100 ms for a broker that is busy.

    A drop of the assignment ends it; cancelling is safe.
    """
    if isinstance(error, RequestTimeout):
        return
    if isinstance(error, ConnectionLost):
        try:
            return await broker.link.wait_connected()
        except RmqError:
            pass  # closed for good: what closed it drops us
    elif isinstance(error, Refused) and error.code == TooManyInFlight.code:
        pause_s = min(BUSY_S, pause_s)
    else:
        log.error("pull.refused", queue=str(assignment.queue), error=str(error))
    await assignment.pause(pause_s)
