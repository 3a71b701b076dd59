from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rmq.broker.store.readers import Readers
from rmq.broker.store.segment import Segment

from ..builders import descriptors_limited_to


def segments(path: Path, count: int) -> list[Segment]:
    for i in range(count):
        (path / f"{8 * i:020d}").write_bytes(b"%08d" % i)
    return [Segment.open(file) for file in sorted(path.iterdir())]


def test_any_number_of_segments_is_read_through_a_few_descriptors(tmp_path: Path) -> None:
    readers, before = Readers(3), len(os.listdir("/proc/self/fd"))
    made = segments(tmp_path, 10)

    for _ in range(2):
        for i, segment in enumerate(made):
            assert readers.read(segment, 8 * i, 8) == b"%08d" % i
            assert readers.read(segment, 8 * i + 6, 100) == b"%02d" % i

    assert len(os.listdir("/proc/self/fd")) == before + 3
    readers.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_read_last_stays_open(tmp_path: Path) -> None:
    readers = Readers(2)
    first, second, third = segments(tmp_path, 3)
    readers.read(first, 0, 8)
    readers.read(second, 8, 8)
    readers.read(first, 0, 8)
    readers.read(third, 16, 8)
    for segment in (first, second, third):
        segment.path.unlink()  # only an open file can still be read

    assert readers.read(first, 0, 8) == b"00000000"
    assert readers.read(third, 16, 8) == b"00000002"
    with pytest.raises(FileNotFoundError):
        readers.read(second, 8, 8)
    readers.close()


def test_without_free_descriptors_it_goes_on_with_those_it_has(tmp_path: Path) -> None:
    readers = Readers()
    first, second, third = segments(tmp_path, 3)
    with descriptors_limited_to(0), pytest.raises(OSError) as failure:
        readers.read(first, 0, 8)
    assert failure.value.errno == errno.EMFILE

    readers.read(first, 0, 8)
    with descriptors_limited_to(0):
        assert [readers.read(segment, segment.start, 8) for segment in (second, third)] == [b"00000001", b"00000002"]

    assert len(readers) == 1
    readers.close()
