"""``Passing``: failed messages that nobody could have delivered again are told of, and passed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq.runtime.logging import get_logger
from rmq.wire.model import StoredMessage

from ..group.assignment import Generation
from .send_backs import Fate

log = get_logger("rmq.consumer")


class Passing:
    """
    In place of :class:`~rmq.consumer.dispatch.send_backs.SendBacks` for broadcasting: others have the message
    anyway.
    """

    async def give_back(
        self,
        generation: Generation,
        messages: Sequence[StoredMessage],
        *,
        progress: Callable[[], int],
        delay_level: int = 0,
        reason: str = "",
    ) -> Fate:
        """Let the queue go on behind them, at once and whether the broker is there or not."""
        if generation.lease.lost:
            return Fate.LOST
        log.warning(
            "message.passed",
            queue=str(generation.queue),
            queue_offset=messages[0].queue_offset,
            count=len(messages),
            attempts=messages[0].attempt,
            reason=reason,
        )
        return Fate.GIVEN_BACK
