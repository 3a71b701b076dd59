from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rmq.broker.store.files import Files
from rmq.broker.store.segment import EXTENT, IOV_MAX, TAIL, Segment
from rmq.wire.batch.layout import Buffer

from ..builders import files_limited_to
from ..faulty_files import FaultyFiles


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    segment = Segment.create(Files(), tmp_path, 4096)
    yield segment
    segment.close()


def test_a_segment_is_named_by_its_start_in_20_digits(segment: Segment) -> None:
    assert segment.path.name == "00000000000000004096"
    assert (segment.start, segment.size, segment.end) == (4096, 0, 4096)


def test_what_is_appended_lies_in_the_file_in_its_order(segment: Segment) -> None:
    segment.append([b"one", b"two"], 6)
    segment.append([memoryview(b"three")], 5)

    assert segment.path.read_bytes() == b"onetwothree"
    assert segment.end == 4096 + 11


def test_an_opened_segment_has_the_size_of_its_file(segment: Segment) -> None:
    segment.append([b"12345678"], 8)

    opened = Segment.open(Files(), segment.path)

    assert (opened.start, opened.size, opened.synced, opened.name_synced) == (4096, 8, 8, True)
    assert not opened.is_open


def test_a_segment_opened_for_a_while_is_then_as_it_was(segment: Segment) -> None:
    segment.append([b"12345678"], 8)
    closed = Segment.open(Files(), segment.path)

    with closed.opened() as fd, segment.opened():
        assert Files().read(fd, 8, 0) == b"12345678"

    assert (closed.is_open, segment.is_open) == (False, True)
    closed.close()  # once more is no error


def test_more_buffers_than_one_call_takes_arrive_in_order(segment: Segment) -> None:
    buffers = [bytes((i % 251,)) for i in range(2 * IOV_MAX + 7)]

    segment.append(buffers, len(buffers))

    assert segment.path.read_bytes() == b"".join(buffers)


def test_a_short_write_is_completed(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.at_most = 3
    segment = Segment.create(files, tmp_path, 0)

    segment.append([b"ab", b"cdefg", b"h"], 8)
    segment.append([b"ij"], 2)

    assert segment.path.read_bytes() == b"abcdefghij"
    segment.close()


def test_a_failed_append_leaves_the_file_as_it_was(segment: Segment) -> None:
    segment.append([b"kept"], 4)

    with files_limited_to(10), pytest.raises(OSError) as failure:
        segment.append([b"lost" * 10], 40)

    assert failure.value.errno == errno.EFBIG
    assert segment.path.read_bytes() == b"kept"
    segment.append([b" on"], 3)
    assert segment.path.read_bytes() == b"kept on"


def test_truncating_lowers_what_counts_as_synced(segment: Segment) -> None:
    segment.append([b"12345678"], 8)
    segment.sync()
    segment.synced = 8

    segment.truncate(4)

    assert (segment.size, segment.synced, segment.path.read_bytes()) == (4, 4, b"1234")


@pytest.mark.parametrize(("position", "rewritten"), [(0, b"abcdefgh"), (4096 + 5, b"fgh"), (4096 + 8, b"")])
def test_rewriting_puts_the_same_bytes_behind_a_position_once_more(
    tmp_path: Path, position: int, rewritten: bytes
) -> None:
    class Recording(FaultyFiles):
        def write(self, fd: int, buffers: Sequence[Buffer], at: int) -> int:
            done = super().write(fd, buffers, at)
            written.append(b"".join(buffers)[:done])
            return done

    written: list[bytes] = []
    files = Recording()
    files.at_most = 3
    segment = Segment.create(files, tmp_path, 4096)
    segment.append([b"abcdefgh"], 8)
    written.clear()

    segment.rewrite(position)

    assert b"".join(written) == rewritten
    assert segment.path.read_bytes() == b"abcdefgh"
    segment.close()


def test_what_a_failed_append_left_is_cut_before_the_next(tmp_path: Path) -> None:
    files = FaultyFiles()
    segment = Segment.create(files, tmp_path, 0)
    segment.append([b"kept"], 4)
    files.fail("write", "", errno.ENOSPC, times=1, after=5)
    files.fail("truncate", "", errno.EIO, times=2)

    with pytest.raises(OSError) as failure:
        segment.append([b"lost!"], 5)
    assert failure.value.errno == errno.ENOSPC
    with pytest.raises(OSError) as failure:
        segment.append([b"not yet"], 7)  # it would stand before what is left of the other
    assert failure.value.errno == errno.EIO
    segment.append([b" on"], 3)

    assert (segment.size, segment.path.read_bytes()) == (7, b"kept on")
    segment.close()


def test_all_but_the_end_is_written_out_early_and_only_once(tmp_path: Path) -> None:
    class Recording(Files):
        def begin_writeback(self, fd: int, size: int, at: int) -> None:
            super().begin_writeback(fd, size, at)
            parts.append((at, at + size))

    parts: list[tuple[int, int]] = []
    segment = Segment.create(Recording(), tmp_path, 4096)
    for size in (TAIL, EXTENT - 1, 1, 5, EXTENT - 5, 3 * EXTENT + 7):
        segment.append([bytes(size)], size)
        segment.begin_writeback()

    assert parts == [(0, EXTENT), (EXTENT, 2 * EXTENT), (2 * EXTENT, 5 * EXTENT)]
    segment.close()
