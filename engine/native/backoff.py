"""How long to wait before the next attempt to reach a broker; pure, so that its bounds are a table in tests."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 0.05
LONGEST_S: Final = 0.8  # below 1 s, so that a broker started after its clients is joined within a second
SHARE_OF_GRACE: Final = 0.4  # below half, so that two attempts fit before the broker gives leases away


def cap(grace_s: float | None) -> float:
    """The longest pause, for the grace of the broker that was last seen."""
    return LONGEST_S if grace_s is None else min(LONGEST_S, SHARE_OF_GRACE * grace_s)


def pause(attempt: int, *, longest_s: float, chance: float) -> float:
    """
    The pause after failed attempt number ``attempt`` (0 is the first).

    Doubles from 50 ms up to ``longest_s``; ``chance`` in [0, 1) spreads it over the upper half, so that the
    clients of a broker that comes back do not all arrive at once.
    """
    full = min(longest_s, FIRST_S * 2.0 ** min(attempt, 16))
    return full * (0.5 + 0.5 * chance)
