"""What a way to consume has in common with the others: how the queues of a consumer are begun and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from ..group.assignment import Assignment


class ConsumeService(Protocol):
    """
    Whoever gives the messages of the queues to the listener.

    :class:`~rmq.consumer.dispatch.orderly.OrderlyScheduler` does so one after the other,
    :class:`~rmq.consumer.dispatch.concurrent.ConcurrentService` many at a time.
    """

    @property
    def turns(self) -> int:
        """How many calls, or stays with a queue, are running: while there are any, progress is made."""
        ...

    def start(self, assignment: Assignment) -> None:
        """Begin to give a queue's messages to the listener; the puller fills its cache from now on."""
        ...

    async def finish(self, assignment: Assignment, *, within_s: float | None = None) -> None:
        """
        Return when nothing of a dropped assignment runs any more; running calls end first and are recorded.

        After ``within_s`` seconds (None: never) they are cancelled.
        """
        ...

    def owners(self) -> Sequence[asyncio.Task[None] | None]:
        """The tasks that call the listener."""
        ...
