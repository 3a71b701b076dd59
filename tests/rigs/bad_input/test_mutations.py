"""The changed input itself stays small: what tests the broker's bounds must have bounds of its own."""

from __future__ import annotations

from random import Random

from rigs.bad_input.mutations import MOST_BYTES, any_frame


def test_repetitions_of_repetitions_make_no_giant() -> None:
    """This seed repeats a SEND 300 times, and that 300 times again: once it was a frame of 110 MB."""
    rng = Random(2512)

    sizes = [len(any_frame(rng)) for _ in range(rng.choice((1, 1, 4)))]

    assert max(sizes) < 3 * MOST_BYTES
