"""``Unleased``: in place of leases, for a consumer whose queues are nobody's: what nobody gave does not run out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .assignment import Generation

NEVER = float("-inf")


class Unleased:
    """
    What :class:`~rmq.consumer.group.leases.LeaseKeeper` is to others: a queue is ours until something ends its stay.

    That is a topic that was deleted, a log that lost what the listener has, or another store. ``begun`` is told of each
    queue that is taken.
    """

    def __init__(self, begun: Callable[[Generation], None]) -> None:
        self._begun = begun

    def added(self, generation: Generation) -> None:
        """A queue was taken."""
        generation.lease.lock_sent_at = NEVER  # nobody locked it
        generation.watched(lambda: generation.lease.lost)
        self._begun(generation)

    def believed_until(self, generation: Generation) -> float:
        """The last moment at which a batch of the generation may start."""
        return NEVER if generation.lease.lost else float("inf")

    def believed(self, generation: Generation) -> bool:
        """Whether a batch may start."""
        return not generation.lease.lost

    def proven(self, generation: Generation) -> None:
        """Whoever doubted may go on."""
        generation.resumed()

    def connected(self) -> None:
        """Nothing follows from that."""

    async def renew_one(self, generation: Generation) -> None:
        """Nothing has to be renewed."""

    async def renew_these(self, generations: Sequence[Generation]) -> None:
        """Nothing has to be renewed."""
