from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.store.commitlog import OVERHEAD, Recent

from support.batches import quick


@quick
@given(st.lists(st.integers(1, 50), max_size=60), st.integers(0, 200))
def test_the_newest_batches_stay_and_their_size_is_bounded(sizes: list[int], limit: int) -> None:
    limit *= OVERHEAD // 10
    recent, position = Recent(limit), 0
    added = []
    for size in sizes:
        recent.add(position, b"h" * (size // 2), memoryview(bytearray(size - size // 2)))
        added.append((position, size))
        position += size

        assert recent.size <= limit
        kept = [entry for entry in added if recent.get(entry[0]) is not None]
        assert kept == added[len(added) - len(kept) :]  # the newest, without a hole
        assert recent.size == sum(size + OVERHEAD for _, size in kept)
        if len(kept) < len(added):  # one more would be too much
            assert recent.size + added[-len(kept) - 1][1] + OVERHEAD > limit


def test_a_batch_comes_back_as_it_was_given() -> None:
    recent = Recent(1000)
    rest = memoryview(b"rest")

    recent.add(800, b"head", rest)

    assert recent.get(800) == (b"head", rest)
    assert recent.get(801) is None


def test_a_batch_larger_than_all_that_may_stay_is_not_kept() -> None:
    recent = Recent(OVERHEAD + 10)
    recent.add(0, b"12345", memoryview(b""))
    recent.add(5, b"1234567890", memoryview(b"1"))

    assert (recent.get(0), recent.get(5), recent.size) == (None, None, 0)


def test_memory_is_bounded_however_small_the_batches_are() -> None:
    recent, limit = Recent(1 << 20), 1 << 20
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for i in range(5000):
            batch = bytes(bytearray(168))
            recent.add((1 << 40) + 168 * i, bytes(bytearray(72)), memoryview(batch)[72:])
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert taken < 1.3 * limit


def test_batches_of_one_frame_count_as_the_frame_that_they_keep_in_memory() -> None:
    recent, frame, other = Recent(10_000), bytearray(4000), bytearray(3000)

    recent.add(0, b"head", memoryview(frame)[72:100])
    recent.add(100, b"head", memoryview(frame)[172:200])
    assert recent.size == 2 * (4 + OVERHEAD) + 4000
    recent.add(200, b"head", memoryview(other)[72:100])
    assert recent.size == 3 * (4 + OVERHEAD) + 7000
    recent.add(300, b"head", memoryview(bytearray(800))[72:100])
    assert recent.get(0) is None
    assert recent.size == 3 * (4 + OVERHEAD) + 7800, "the second one keeps the frame"


def test_a_frame_is_in_memory_and_counts_until_the_last_of_its_batches_is_gone() -> None:
    recent, frame = Recent(10_000), bytearray(4000)
    for position in (0, 100, 200):
        recent.add(position, b"head", memoryview(frame)[position : position + 28])

    recent.add(300, b"head", memoryview(bytearray(5000))[72:100])

    assert [recent.get(position) is not None for position in (0, 100, 200, 300)] == [False, False, False, True]
    assert recent.size == 4 + OVERHEAD + 5000


def test_a_frame_that_did_not_fit_is_counted_anew_with_its_next_batch() -> None:
    recent, frame = Recent(3000), bytearray(4000)

    for position in (0, 100):
        recent.add(position, b"head", memoryview(frame)[position : position + 28])

    assert (recent.get(0), recent.get(100), recent.size) == (None, None, 0)
