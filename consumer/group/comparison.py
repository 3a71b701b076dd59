"""What we hold compared with what we should: what leaves, what is taken anew, and what is missing. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from rmq.wire.model import MessageQueue

from .assignment import Generation

NEVER = float("-inf")


class Comparison(NamedTuple):
    """What has to change; all that is held and in neither list stays as it is."""

    leaving: list[Generation]  # not ours any more
    expired: list[Generation]  # ours, but nobody pulls them
    missing: list[MessageQueue]  # ours, and not held


def compare(
    generations: Mapping[MessageQueue, Generation],
    wanted: Collection[MessageQueue],
    *,
    now: float,
    pull_expiry_s: float,
) -> Comparison:
    """
    Compare; what was dropped before is neither leaving nor expired once more, and missing when it is gone.

    Expired is a queue that was not pulled for *longer* than ``pull_expiry_s`` and has no known reason for that.
    """
    held = [generation for generation in generations.values() if not generation.dropped]
    return Comparison(
        [generation for generation in held if generation.queue not in wanted],
        [
            generation
            for generation in held
            if generation.queue in wanted and is_pull_expired(generation, now=now, pull_expiry_s=pull_expiry_s)
        ],
        sorted(queue for queue in wanted if queue not in generations),
    )


def is_pull_expired(generation: Generation, *, now: float, pull_expiry_s: float) -> bool:
    """Whether a queue stands still for no known reason; one that was never pulled is still being begun."""
    waits = generation.paused or generation.stopped is not None or generation.crash_loop is not None
    return not waits and generation.pulled_at != NEVER and now - generation.pulled_at > pull_expiry_s
