"""What a turn does before its next batch, and how long a failed message waits: pure, so that every rule is a row."""

from __future__ import annotations

from enum import Enum

from ..config import SUSPEND_MAX_S, SUSPEND_MIN_S

RELOCK_FIRST_S = 0.01  # a turn whose lease could not be proven any more asks for a renewal after this,
RELOCK_ENTRY_S = 0.1  # and one that found it so when it began after this
YIELD_S = 0.01  # a turn whose window is over comes back after this
SLICE_S = 0.002  # a task that works on the loop gives it back after this


class Step(Enum):
    """What comes next."""

    RUN = "run"  # give the listener its next batch
    STOP = "stop"  # the queue is not ours any more
    RELOCK = "relock"  # the lease is not proven: no batch before it is
    YIELD = "yield"  # others may have the slot, or the loop has to catch up
    RELOCK_ENTRY = "relock at entry"  # the same, before the first batch of a turn
    WAIT = "wait"  # the broker has not answered: come back in a while
    PAUSE = "pause"  # the user wants no batch to start


def next_step(
    *,
    dropped: bool,
    now: float,
    believed_until: float,
    began: float,
    max_continuous_s: float,
    turn_share_s: float = 0.0,
    others_wait: bool = False,
    entering: bool = False,
    paused: bool = False,
    stalled: bool = False,
) -> Step:
    """
    Decide between two batches; a running listener is never interrupted.

    Both limits are strict: at exactly ``believed_until`` and at exactly ``max_continuous_s`` the turn goes on.
    """
    if dropped:
        return Step.STOP
    if paused:
        return Step.PAUSE
    if now > believed_until:
        return Step.RELOCK_ENTRY if entering else Step.RELOCK
    if stalled or now - began > max_continuous_s:
        return Step.YIELD
    if turn_share_s and others_wait and now - began > turn_share_s:
        return Step.YIELD
    return Step.RUN


def retry_pause(attempt: int, asked_s: float | None, suspend_s: float) -> float:
    """
    The pause after delivery number ``attempt`` of a message failed.

    What the listener asked for, else ``suspend_s`` doubled with every attempt; always from 10 ms to 30 s.
    """
    if asked_s is not None and asked_s >= 0:
        return _clamp(asked_s)
    return _clamp(_clamp(suspend_s) * 2.0 ** min(attempt - 1, 32))


def _clamp(seconds: float) -> float:
    return min(max(seconds, SUSPEND_MIN_S), SUSPEND_MAX_S)
