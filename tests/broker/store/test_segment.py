"""T.broker.store.test_segment"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rmq.broker.store.files import Files
from rmq.broker.store.segment import EXTENT, IOV_MAX, TAIL, Readers, Segment
from rmq.wire.batch.layout import Buffer

from ..builders import descriptors_limited_to, files_limited_to
from rigs.disk.faulty import FaultyFiles


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
def test_rewriting_puts_the_same_bytes_after_a_position_once_more(
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


def make(path: Path, count: int) -> list[str]:
    for i in range(count):
        (path / f"{8 * i:020d}").write_bytes(b"%08d" % i)
    return [str(file) for file in sorted(path.iterdir())]


def read(readers: Readers, path: str) -> bytes:
    return os.pread(readers.fd(path), 8, 0)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_any_number_of_files_is_read_through_a_few_descriptors(tmp_path: Path) -> None:
    readers, before = Readers(Files(), 3), descriptors()
    made = make(tmp_path, 10)

    for _ in range(2):
        assert [read(readers, path) for path in made] == [b"%08d" % i for i in range(10)]

    assert descriptors() == before + 3
    readers.close()
    assert descriptors() == before


def test_what_was_read_last_stays_open(tmp_path: Path) -> None:
    readers = Readers(Files(), 2)
    first, second, third = make(tmp_path, 3)
    for path in (first, second, first, third):
        read(readers, path)
    for path in (first, second, third):
        Path(path).unlink()  # only an open file can still be read

    assert read(readers, first) == b"00000000"
    assert read(readers, third) == b"00000002"
    with pytest.raises(FileNotFoundError):
        read(readers, second)
    readers.close()


def test_without_free_descriptors_it_goes_on_with_those_it_has(tmp_path: Path) -> None:
    readers = Readers(Files())
    first, second, third = make(tmp_path, 3)
    with descriptors_limited_to(0), pytest.raises(OSError) as failure:
        read(readers, first)
    assert failure.value.errno == errno.EMFILE

    read(readers, first)
    with descriptors_limited_to(0):
        assert [read(readers, path) for path in (second, third)] == [b"00000001", b"00000002"]

    assert len(readers) == 1
    readers.close()


def test_a_file_that_is_about_to_go_keeps_no_descriptor(tmp_path: Path) -> None:
    readers, before = Readers(Files()), descriptors()
    paths = make(tmp_path, 3)
    for path in paths:
        read(readers, path)

    readers.forget(paths[0])
    readers.forget("never read")

    assert (len(readers), descriptors()) == (2, before + 2)
    readers.close()
