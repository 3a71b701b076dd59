"""A batch of the floor carries bodies of any length."""

from __future__ import annotations

from rmq.bench.floor.frames import HEADER, packed, unpacked


def test_a_batch_is_unpacked_to_what_was_packed() -> None:
    bodies = [b"", b"a", b"bc" * 40_000]

    batch = b"".join(packed(3, bodies))
    payload = memoryview(batch)[HEADER.size :]
    lengths, row = unpacked(payload)

    assert HEADER.unpack_from(batch) == (len(payload), 3, 3, 0)
    assert list(lengths) == [0, 1, 80_000]
    assert row == b"".join(bodies)
