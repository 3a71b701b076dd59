"""What the consumers of ``rmq-bench failover`` reported, and what it says about who has which queue. Pure."""

from __future__ import annotations

from typing import NamedTuple

QUIET_S = 1.0  # no queue has moved for so long: the group is at rest


class FirstCall(NamedTuple):
    """A consumer was called for a queue under a lock it had not been called under before."""

    member: int
    epoch: int
    at: float


class Calls:
    """
    The newest first call of each queue.

    Which member has a queue is told by the epochs: they grow with every change of owner.
    """

    def __init__(self, queues: int, quiet_s: float = QUIET_S) -> None:
        self._queues = queues
        self._quiet_s = quiet_s
        self._newest: dict[int, FirstCall] = {}
        self.moved_at = float("-inf")  # when a queue last came to another member

    def add(self, queue_id: int, call: FirstCall) -> None:
        """A consumer reported."""
        known = self._newest.get(queue_id)
        if known is None or call.epoch > known.epoch:
            self._newest[queue_id] = call
            self.moved_at = max(self.moved_at, call.at)

    def of(self, member: int) -> dict[int, FirstCall]:
        """The queues that a member has, each with its first call."""
        return {queue_id: call for queue_id, call in self._newest.items() if call.member == member}

    def at_rest(self, members: int, now: float) -> bool:
        """Whether every queue has an owner, all members have their share, and nothing has moved for a while."""
        held = [len(self.of(member)) for member in {call.member for call in self._newest.values()}]
        fair = len(held) == min(members, self._queues) and max(held) - min(held) <= 1
        return sum(held) == self._queues and fair and now - self.moved_at >= self._quiet_s

    def taken_over(self, lost: dict[int, FirstCall]) -> float | None:
        """When the last of these queues was first called for at somebody else; None until all were."""
        newer = [self._newest[queue_id] for queue_id, call in lost.items() if self._newest[queue_id].epoch > call.epoch]
        return max((call.at for call in newer), default=0.0) if len(newer) == len(lost) else None
