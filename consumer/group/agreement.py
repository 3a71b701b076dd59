"""
Whether a broker that started anew has what our progress is about: asked where no pull would show it any more.

While a queue is ours, its pulls find that out (see :meth:`~rmq.consumer.group.assignment.Generation.agrees`). One
that is
given up has none: what was done in it while the broker was away would not be said, and done again by the next owner.
"""

from __future__ import annotations

from typing import Final

from rmq.engine.native.group import GroupClient
from rmq.wire.errors import OK, Damaged, Fenced, MessagesLost
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, PullQueue

from .assignment import Generation

AGREEING: Final = (
    OK,
    EMPTY,
    Damaged.code,
    MessagesLost.code,
)  # answers of a broker that has compared its log with ours


async def agree(generation: Generation, broker: GroupClient, *, timeout_s: float) -> None:
    """
    Ask for what follows our progress, only for the answer; nothing is asked of a broker that is known to agree.

    Raises:
        RmqError: there is no answer.
    """
    log_epoch, cache = broker.log_epoch, generation.cache
    at = cache.commit_offset
    if at < 0 or generation.lease.lost or generation.agrees(log_epoch):
        return
    wanted = PullQueue(*generation.queue, at, generation.epoch, NO_OFFSET, cache.log_epochs.before(at))
    try:
        result = await broker.pull(wanted, wait_s=0.0, max_bytes=1, timeout_s=timeout_s)
    except Fenced as error:
        generation.lose(error.text)
        return
    if result is not None and result.status in AGREEING:
        generation.agreed = log_epoch
