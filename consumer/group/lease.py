"""What this client believes about one queue lock: pure, every method takes the time it needs."""

from __future__ import annotations

from rmq.wire.model import MessageQueue

# The broker gives a queue away `grace` after the last request it answered; we stop believing this much earlier.
GRACE_MARGIN_S = 1.0


class Lease:
    """
    One grant of a queue to this session, told apart from all others by its epoch.

    It is believed until the earlier of two limits, both counted from when a request was *sent*, since what the
    broker did cannot be older than that:

    - the newest granted lock or renewal of it + ``lock_ttl_s``: the broker frees a lease that nobody renews;
    - the newest answered request of any kind + (grace - 1 s): the broker frees the leases of a silent connection.

    At exactly a limit it is still believed. ``lost`` is final.
    """

    __slots__ = ("epoch", "lock_sent_at", "lost", "queue")

    def __init__(self, queue: MessageQueue, epoch: int, lock_sent_at: float) -> None:
        self.queue = queue
        self.epoch = epoch
        self.lock_sent_at = lock_sent_at
        self.lost = False

    def renewed(self, sent_at: float) -> None:
        """A renewal that was sent at ``sent_at`` was granted; an older answer that comes late changes nothing."""
        self.lock_sent_at = max(self.lock_sent_at, sent_at)

    def believed_until(self, *, answered_sent_at: float, lock_ttl_s: float, grace_s: float) -> float:
        """The last moment at which a batch may start under this lease."""
        if self.lost:
            return float("-inf")
        return min(self.lock_sent_at + lock_ttl_s, answered_sent_at + silence_limit(grace_s))


def silence_limit(grace_s: float) -> float:
    """How long after an answered request the broker surely keeps our leases."""
    # A grace so short that the margin would eat it is for tests; half of it is margin then.
    return max(grace_s - GRACE_MARGIN_S, grace_s / 2)
