"""
Whatever comes in: the broker answers or closes with a code, meets no defect, and changes nothing that it refused.

The numbers of examples add up to more than 5,000; ``tests/chaos/input.py`` runs the same for as
long as its options say. An example is named by its seed, which determines the input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rigs.bad_input.mutations import any_batch, any_bytes, any_frame, valid
from rigs.bad_input.target import FuzzPeer, Target
from rigs.batches import settings_of
from rigs.raw_peer import request

seeds = st.integers(0, (1 << 64) - 1)


def examples(count: int) -> settings:
    """A smaller seed makes no simpler input: there is nothing to shrink."""
    return settings(settings_of(count), phases=(Phase.explicit, Phase.reuse, Phase.generate))


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with Target() as target:
        yield target


@pytest.fixture(autouse=True)
def kept(target: Target) -> Iterator[None]:
    """After all examples of a property: nothing is left of them, and what was stored before is there."""
    yield
    target.check_kept()


@examples(1500)
@given(seed=seeds, greeted=st.booleans())
def test_any_bytes_are_answered_or_end_the_connection_with_a_code(target: Target, seed: int, greeted: bool) -> None:
    peer = target.member() if greeted else FuzzPeer(target)

    target.judge(peer, any_bytes(Random(seed)))

    target.finish(peer)


@examples(2500)
@given(seed=seeds)
def test_valid_frames_with_something_changed_are_answered_or_end_the_connection_with_a_code(
    target: Target, seed: int
) -> None:
    rng, peer = Random(seed), target.member()

    for _ in range(rng.choice((1, 1, 4))):
        if target.judge(peer, any_frame(rng, target.epoch)) == "closed":
            break

    target.finish(peer)


@examples(1500)
@given(seed=seeds)
def test_valid_batches_with_something_changed_are_stored_or_refused_and_the_connection_goes_on(
    target: Target, seed: int
) -> None:
    rng, peer = Random(seed), target.member()

    for _ in range(rng.choice((1, 1, 4))):
        assert target.judge(peer, any_batch(rng)) == "served"

    target.finish(peer)


@examples(200)
@given(seed=seeds)
def test_bad_input_between_good_requests_keeps_none_of_them_from_being_served(target: Target, seed: int) -> None:
    rng, peer = Random(seed), target.member()
    numbers = range(2000, 2006)

    data = b""
    for number in numbers:
        data += request(number, *valid(rng, target.epoch)) + any_batch(rng)
    answered = Counter(answer[1] for answer in peer.give(data))

    assert not peer.connection.closing
    assert all(answered[number] <= 1 for number in numbers)
    target.finish(peer)


def test_the_changed_input_is_of_every_kind(target: Target) -> None:
    """A mutation that is always refused for the same reason would prove little."""
    found: Counter[tuple[str, str]] = Counter()
    for seed in range(600):
        rng, peer = Random(seed), target.member()
        maker = (any_bytes, any_frame, any_batch)[seed % 3]
        found[maker.__name__, target.judge(peer, maker(rng))] += 1
        target.finish(peer)

    assert found["any_frame", "served"] > 20
    assert found["any_frame", "refused"] > 20
    assert found["any_frame", "closed"] > 20
    assert found["any_bytes", "closed"] > 50
