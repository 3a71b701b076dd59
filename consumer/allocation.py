"""Which queues of a topic are ours: a pure function that every member computes alike."""

from __future__ import annotations

from collections.abc import Sequence

from rmq.wire.model import MessageQueue


def evenly(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """
    The contiguous run of the sorted ``queues`` that falls to ``member`` among the sorted ``members``.

    RocketMQ's averaging strategy: 10 queues over 4 members are runs of 3, 3, 2 and 2. A member that is not in the
    list gets nothing.
    """
    if member not in members:
        return []
    rank = sorted(members).index(member)
    size, larger = divmod(len(queues), len(members))
    start = rank * size + min(rank, larger)
    return sorted(queues)[start : start + size + (rank < larger)]
