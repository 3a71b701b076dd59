"""
``agree``: find out whether a broker that started again still has what our progress is about.

While a queue is pulled, its pulls show that. One that is given up is not pulled any more: without asking, what was
done of it since would be given back as if it had not been done.
"""

from __future__ import annotations

from collections.abc import Iterable

from rmq.client.log import get_logger
from rmq.wire.errors import OK, Damaged, Fenced, MessagesLost, Refused
from rmq.wire.ops import EMPTY, NO_OFFSET, PullQueue

from .generation import Generation
from .group_client import GroupClient

log = get_logger("rmq.consumer")

AGREEING = (OK, EMPTY, Damaged.code, MessagesLost.code)  # answers of a broker that has compared its log with ours


async def agree(generations: Iterable[Generation], broker: GroupClient) -> None:
    """Ask for each of which that is not known; raises what a request does, but for refusals."""
    for generation in generations:
        cache, log_epoch = generation.cache, broker.log_epoch
        offset = cache.commit_offset
        if generation.lease.lost or generation.agrees(log_epoch) or offset == NO_OFFSET:
            continue
        asked = PullQueue(*generation.queue, offset, generation.epoch, NO_OFFSET, cache.log_epochs.before(offset))
        try:
            answer = await broker.probe(asked)
        except Fenced as error:
            generation.lose(error.text)
        except Refused as error:
            log.warning("progress.unproven", queue=str(generation.queue), queue_offset=offset, error=str(error))
        else:
            if answer is not None and answer.status in AGREEING and broker.log_epoch == log_epoch:
                generation.agreed = log_epoch
