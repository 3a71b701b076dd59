"""How long a peer may keep the broker waiting: with its hello, within a frame, and with reading its answers. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from rmq.wire.errors import Fatal, FrameStalled, HelloTimeout, SlowReader

BYTES_PER_S: Final = 1 << 20  # a frame must come at this rate, beyond the time that any frame has
CONTENDED_S: Final = 5.0  # that time, while others wait for the memory an unfinished frame holds


class Limits(NamedTuple):
    """What the operator allows."""

    hello_s: float
    stall_s: float


class Peer(NamedTuple):
    """What can be seen of a peer at some moment."""

    greeted: bool
    unfinished: int | None  # size of the frame we wait for, None if we wait for none
    contended: bool  # whether others wait for the memory of unfinished frames
    unread: int  # bytes of answers that it has not taken
    taken: int  # bytes of answers that it has taken, ever


class Patience:
    """
    The broker's patience with one peer.

    A peer that takes even a little of its answers is waited for; one that sends a frame byte by byte is not, since an
    unfinished frame holds memory that others need.
    """

    __slots__ = ("_frame_at", "_opened_at", "_taken", "_taken_at")

    def __init__(self, now: float) -> None:
        self._opened_at = now
        self._frame_at = now
        self._taken = 0
        self._taken_at = now

    def frame_began(self, now: float) -> None:
        """Another frame than before is unfinished, or its wait so far was not the peer's fault."""
        self._frame_at = now

    @property
    def heard_at(self) -> float:
        """When the peer last began or ended a frame."""
        return self._frame_at

    def judge(self, now: float, peer: Peer, limits: Limits) -> Fatal | None:
        """Why the connection has to end, if it has to. Called about once a second."""
        if not peer.greeted:
            late = now - self._opened_at > limits.hello_s
            return HelloTimeout(f"no hello within {limits.hello_s:g} s") if late else None
        if not peer.unread or peer.taken > self._taken:
            self._taken, self._taken_at = peer.taken, now
        elif now - self._taken_at > limits.stall_s:
            return SlowReader(f"answers were not read for {limits.stall_s:g} s")
        if peer.unfinished is None:
            return None
        allowed = min(limits.stall_s, CONTENDED_S) if peer.contended else limits.stall_s
        allowed += peer.unfinished / BYTES_PER_S
        waited = now - self._frame_at
        return FrameStalled(f"a frame was begun and not finished within {allowed:.0f} s") if waited > allowed else None
