"""How long a peer may keep the broker waiting, as a table."""

from __future__ import annotations

import pytest

from rmq.broker.net.limits import Peer, PeerLimits, PeerTimeouts
from rmq.wire.errors import FrameStalled, HelloTimeout, SlowReader

LIMITS = PeerLimits(hello_s=10.0, stall_s=30.0)
IDLE = Peer(greeted=True, unfinished=None, contended=False, unread=0, taken=0)
MIB = 1 << 20


@pytest.mark.parametrize(
    ("peer", "waited_s", "verdict"),
    [
        (IDLE, 1e9, None),
        (IDLE._replace(greeted=False), 10.0, None),
        (IDLE._replace(greeted=False), 10.001, HelloTimeout),
        (IDLE._replace(unread=1), 30.0, None),
        (IDLE._replace(unread=1), 30.001, SlowReader),
        (IDLE._replace(unread=1, taken=1), 30.001, None),
        (IDLE._replace(unfinished=0), 30.0, None),
        (IDLE._replace(unfinished=0), 30.001, FrameStalled),
        (IDLE._replace(unfinished=16 * MIB), 46.0, None),
        (IDLE._replace(unfinished=16 * MIB), 46.001, FrameStalled),
        (IDLE._replace(unfinished=16 * MIB, contended=True), 21.0, None),
        (IDLE._replace(unfinished=16 * MIB, contended=True), 21.001, FrameStalled),
    ],
)
def test_patience_ends_strictly_after_its_time(peer: Peer, waited_s: float, verdict: type[Exception] | None) -> None:
    found = PeerTimeouts(100.0).judge(100.0 + waited_s, peer, LIMITS)

    assert (found is None) if verdict is None else isinstance(found, verdict)


def test_another_frame_has_its_own_time_and_reading_a_little_is_progress() -> None:
    patience = PeerTimeouts(0.0)
    patience.frame_began(20.0)

    assert patience.judge(45.0, IDLE._replace(unfinished=0, unread=5, taken=1), LIMITS) is None
    assert isinstance(patience.judge(80.0, IDLE._replace(unread=5, taken=1), LIMITS), SlowReader)


def test_while_others_wait_for_memory_nobody_has_more_time_than_otherwise() -> None:
    contended = IDLE._replace(unfinished=0, contended=True)

    assert PeerTimeouts(0.0).judge(2.0, contended, PeerLimits(10.0, 2.0)) is None
    assert isinstance(PeerTimeouts(0.0).judge(2.001, contended, PeerLimits(10.0, 2.0)), FrameStalled)
