"""The pause after a request of a queue's puller failed, before the same is asked again."""

from __future__ import annotations

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger
from rmq.wire.errors import ConnectionLost, Refused, RequestTimeout, RmqError, TooManyInFlight

from ..group.assignment import Generation
from ..group.topics import GONE

log = get_logger("rmq.consumer")

BUSY_S = 0.1  # a broker that has enough to do with us is asked again after this


def says_gone(error: RmqError) -> bool:
    """Whether a request was refused because there is no such topic or queue any more."""
    return isinstance(error, Refused) and error.code in GONE


async def after_failure(generation: Generation, error: RmqError, broker: GroupClient, *, pause_s: float) -> None:
    """
    Wait until asking again makes sense: at once, when there is a connection, or after a pause.

    It is ``pause_s`` for what needs somebody to repair it, and 100 ms for a broker that is busy.

    A drop of the generation ends it; cancelling is safe.
    """
    if isinstance(error, RequestTimeout):
        return
    if isinstance(error, ConnectionLost):
        try:
            return await broker.link.wait_connected()
        except RmqError:
            pass  # closed for good: whoever closed it drops us
    elif isinstance(error, Refused) and error.code == TooManyInFlight.code:
        pause_s = min(BUSY_S, pause_s)
    else:
        log.error("pull.refused", queue=str(generation.queue), error=str(error))
    await generation.pause(pause_s)
