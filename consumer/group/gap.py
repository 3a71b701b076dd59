"""Messages that a group did not get and never will: what the broker says about them, and what comes of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rmq.wire.errors import Damaged, MessagesLost, OffsetOutOfRange, OtherHistory, code_name
from rmq.wire.protocol.ops.core import PullResult

FIRST_PAUSE_S = 5.0  # before a stopped queue is asked for again; doubles
MOST_PAUSE_S = 30.0
REMIND_S = 300.0  # a queue that stays stopped is reported this often


@dataclass(frozen=True, slots=True)
class Gap:
    """
    The messages from ``from_offset`` to before ``end_offset`` cannot be read, and the reason.

    In a copy of the store (``OTHER_HISTORY``) they are others than those that this reader has read.
    """

    status: int
    from_offset: int
    end_offset: int

    @property
    def count(self) -> int:
        """How many messages are missing."""
        return self.end_offset - self.from_offset

    @property
    def reason(self) -> str:
        """The broker's word for it."""
        # An offset below the log is the same loss, in the words of a broker that does not look closer.
        return code_name(MessagesLost.code if self.status == OffsetOutOfRange.code else self.status)

    def __str__(self) -> str:
        return f"{self.reason}: offsets {self.from_offset} to {self.end_offset - 1}"

    def advice(self) -> str:
        """Return what an operator has to do before the queue continues."""
        if self.status == OtherHistory.code:
            return (
                "the broker's store is a copy and is not known to have the messages that were read from "
                f"{self.from_offset} on: to get all that it has from there on, run `rmq-admin broker accept-history`"
            )
        cause = "a part of the log is damaged" if self.status == Damaged.code else "retention was faster than the group"
        return f'{cause}: to go on at {self.end_offset} without them, run with on_gap = "skip"'


@dataclass(slots=True)
class Stopped:
    """A queue that waits at a gap: how often it was found there, and when that was last reported."""

    gap: Gap
    told_at: float = float("-inf")
    times: int = 0

    def found_again(self, now: float) -> bool:
        """The same answer came; says whether somebody should be told."""
        self.times += 1
        if now - self.told_at < REMIND_S:
            return False
        self.told_at = now
        return True

    @property
    def pause_s(self) -> float:
        """How long to wait before the queue is asked for again."""
        return min(FIRST_PAUSE_S * 2.0 ** min(self.times - 1, 16), MOST_PAUSE_S)


def gap_of(asked: int, result: PullResult) -> Gap | None:
    """The gap that an answer to a pull at ``asked`` tells of; None if it tells of none, or not where that ends."""
    end = result.next_offset
    if result.status == OtherHistory.code:
        return Gap(result.status, min(end, asked), asked)
    if result.status in (MessagesLost.code, OffsetOutOfRange.code):
        end = max(end, result.min_offset) if asked < result.min_offset else asked
    elif result.status != Damaged.code:
        return None
    return Gap(result.status, asked, end) if end > asked else None
