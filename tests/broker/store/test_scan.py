from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq.broker.store.files import Files
from rmq.broker.store.scan import Bad, Good, Scan, Unreadable, UnreadableRange, read_needed, read_or_zeros
from rmq.wire.batch import layout
from rmq.wire.batch.layout import KIND_TRANSACTION

from ..builders import Opened, segment_files
from rigs.batches import patched
from rigs.disk.faulty import FaultyFiles, UnreadableFiles, flip

BODIES = [b"a" * 10, b"b" * 300, b"c", b"d" * 50]


def build(path: Path) -> tuple[Path, list[int]]:
    """A segment, and where its batches begin and the last one ends."""
    opened = Opened(path)
    bounds = [opened.append(body).physical_offset for body in BODIES]
    bounds.append(opened.store.log.written)
    opened.store.abandon()
    return segment_files(path)[0], bounds


@contextmanager
def scanning(path: Path, files: Files | None = None, **more: int) -> Iterator[Scan]:
    files = files or Files()
    fd = files.open(path)
    try:
        yield Scan(files, fd, int(path.name), path.stat().st_size, **more)
    finally:
        files.close(fd)


def test_sound_batches_come_one_after_the_other(memory_path: Path) -> None:
    segment, bounds = build(memory_path)

    with scanning(segment) as scan:
        found = list(scan.batches(0))
        assert [good.checked.header.physical_offset for good in found if isinstance(good, Good)] == bounds[:-1]
        assert b"".join(bytes(good.data) for good in found if isinstance(good, Good)) == segment.read_bytes()
        assert [header.physical_offset for header in scan.headers(0)] == bounds[:-1]
        assert [header.physical_offset for header in scan.headers_in_line(bounds[1])] == bounds[1:-1]


def test_the_walk_ends_with_the_first_that_is_not_sound(memory_path: Path) -> None:
    segment, bounds = build(memory_path)
    for at in range(bounds[1], bounds[2]):
        flip(segment, at)
        with scanning(segment) as scan:
            *good, bad = list(scan.batches(0))
            assert len(good) == 1
            assert isinstance(bad, Bad)
            assert (bad.position, bad.newer) == (bounds[1], False), at
            if bad.header is not None:  # then it can be believed
                assert (bad.header.base_offset, bad.header.count) == (1, 1)
                assert bad.position + bad.header.size == bounds[2]
            assert bounds[2] in [header.physical_offset for header in scan.headers(bounds[1])]
            assert [header.physical_offset for header in scan.headers_in_line(bounds[1])][-2:] == bounds[2:-1]
        flip(segment, at)


def test_damage_after_a_header_leaves_the_header(memory_path: Path) -> None:
    segment, bounds = build(memory_path)
    flip(segment, bounds[2] - 20)

    with scanning(segment) as scan:
        bad = scan.judge(bounds[1])

    assert isinstance(bad, Bad)
    assert bad.header is not None
    assert bad.header.base_offset == 1


def test_what_a_newer_version_wrote_is_distinguished_from_damage(memory_path: Path) -> None:
    segment, bounds = build(memory_path)
    whole = segment.read_bytes()
    newer = patched(whole[bounds[1] : bounds[2]], 64, ">B", KIND_TRANSACTION)
    segment.write_bytes(whole[: bounds[1]] + newer + whole[bounds[2] :])

    with scanning(segment) as scan:
        bad = scan.judge(bounds[1])

    assert isinstance(bad, Bad)
    assert bad.newer


@pytest.mark.parametrize("size", range(20))
def test_a_few_bytes_are_no_header(memory_path: Path, size: int) -> None:
    segment, bounds = build(memory_path)
    whole = segment.read_bytes()
    segment.write_bytes(whole + whole[:size])

    with scanning(segment) as scan:
        assert scan.header(bounds[-1]) is None
        assert list(scan.headers(bounds[-1])) == []
        assert isinstance(scan.judge(bounds[-1]), Bad)


def test_batches_are_found_over_the_borders_of_what_is_read_at_once(memory_path: Path) -> None:
    opened = Opened(memory_path)
    places = [opened.append(b"x" * (size << 20)).physical_offset for size in (0, 3, 1, 4, 2, 0, 4)]
    opened.store.abandon()
    (segment,) = segment_files(memory_path)

    for more in (0, 8, 200 << 10, 1 << 20):
        with scanning(segment, window=layout.MAX_BATCH + more) as scan:
            assert [header.physical_offset for header in scan.headers(0)] == places
            assert [header.physical_offset for header in scan.headers(8)] == places[1:]
            assert [good.checked.header.physical_offset for good in scan.batches(0) if isinstance(good, Good)] == places


def test_a_header_at_another_place_than_it_says_is_none(memory_path: Path) -> None:
    segment, _ = build(memory_path)
    segment.write_bytes(bytes(8) + segment.read_bytes())

    with scanning(segment) as scan:
        assert scan.header(8) is None
        assert list(scan.headers(0)) == []


@pytest.mark.parametrize(
    ("at", "size", "read"),
    [
        (0, 16384, b"x" * 4096 + bytes(4096) + b"x" * 8192),
        (4000, 200, b"x" * 96 + bytes(104)),  # the sectors are those of the file, wherever reading begins
        (8100, 4192, bytes(92) + b"x" * 4100),
        (16334, 100, b"x" * 50 + bytes(50)),
    ],
)
@pytest.mark.parametrize("short", [True, False], ids=["short reads", "failed reads"])
def test_only_the_sectors_that_the_disk_cannot_read_are_zeros(
    tmp_path: Path, at: int, size: int, read: bytes, short: bool
) -> None:
    (tmp_path / "x").write_bytes(b"x" * 16384)
    files = UnreadableFiles("x", 4096, 8192, short=short)
    fd = files.open_to_read(tmp_path / "x")

    assert read_or_zeros(files, fd, size, at) == read
    files.close(fd)


def test_bytes_that_are_needed_are_returned_as_they_are_or_refused_with_their_range(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * 16384)
    files = UnreadableFiles("x", 4096, 12288)
    fd = files.open_to_read(tmp_path / "x")
    ended = r"/x: bytes 16384 to 16434 cannot be read \(the file is shorter than the file system says\)"

    with pytest.raises(Unreadable, match=r"/x: bytes 4096 to 12288 cannot be read \(Input/output error\)"):
        read_needed(files, fd, 16384, 0, tmp_path / "x")
    with pytest.raises(Unreadable, match=ended):
        read_needed(files, fd, 100, 16334, tmp_path / "x")
    assert read_needed(files, fd, 50, 16334, tmp_path / "x") == b"x" * 50
    files.close(fd)


def test_a_scan_reports_what_it_could_not_read(memory_path: Path) -> None:
    opened = Opened(memory_path)
    places = [opened.append(b"x" * 3000).physical_offset for _ in range(8)]
    opened.store.abandon()
    (segment,) = segment_files(memory_path)
    found: list[UnreadableRange] = []
    files = UnreadableFiles(segment.name, 8192, 12288)
    fd = files.open_to_read(segment)

    scan = Scan(files, fd, 0, segment.stat().st_size, on_unreadable=found.append)
    headers = [header.physical_offset for header in scan.headers(0)]

    assert headers == [place for place in places if not 8192 <= place < 12288]
    assert set(found) == {UnreadableRange(8192, 12288)}
    files.close(fd)


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT])
def test_another_error_than_a_bad_place_is_raised(tmp_path: Path, number: int) -> None:
    """A reader would take zeros for damage, and go on after it."""
    (tmp_path / "x").write_bytes(b"x" * 10)
    files = FaultyFiles()
    fd = files.open_to_read(tmp_path / "x")
    files.fail("read", "x", number)

    with pytest.raises(OSError):
        read_or_zeros(files, fd, 10, 0)
    files.close(fd)
