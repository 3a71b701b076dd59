"""The key index over files: what a search finds, names as a gap, or leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.store.files import Files
from rmq.broker.store.key_index import Entry, Gap, Hit, KeyIndex, Wanted

from support.batches import little, quick

EVER = 1 << 60
SEGMENT = 400


class Batch(NamedTuple):
    """A batch of a log: keys or none."""

    position: int
    end: int
    stored_at: int
    hashes: list[int]


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder) / "index"


def wanted(value: int, *, since: int = 0, until: int = EVER, before: int = EVER) -> Wanted:
    return Wanted(value, since, until, before)


@st.composite
def any_log(draw: st.DrawFn) -> list[Batch]:
    log, position, stored_at = [], 0, 1000
    for _ in range(draw(st.integers(0, 25))):
        size = 8 * draw(st.integers(1, 12))
        if position // SEGMENT != (position + size - 1) // SEGMENT:  # a batch lies within a segment
            position = (position // SEGMENT + 1) * SEGMENT
        log.append(Batch(position, position + size, stored_at, draw(st.lists(st.integers(1, 4), max_size=4))))
        position += size
        stored_at += draw(st.integers(0, 3))
    return log


def segments_of(log: list[Batch]) -> list[tuple[int, int]]:
    starts = sorted({batch.position // SEGMENT * SEGMENT for batch in log})
    return [(start, min(start + SEGMENT, log[-1].end)) for start in starts]


def fill(index: KeyIndex, log: list[Batch], group: int = 3) -> None:
    """Feed a log in groups, as the worker does; each within one segment."""
    for start, stop in segments_of(log):
        inside = [batch for batch in log if start <= batch.position < stop]
        first = start
        for i in range(0, len(inside), group):
            part = inside[i : i + group]
            end = part[-1].end if i + group < len(inside) else stop
            index.extend(start, [entry(batch) for batch in part if batch.hashes], first, end)
            first = end


def entry(batch: Batch) -> Entry:
    return Entry(batch.position, batch.stored_at, little("I", batch.hashes))


def make(directory: Path, log: list[Batch], *, block: int = 4, flushed: bool = True) -> KeyIndex:
    index = KeyIndex(Files(), directory, block_hashes=block)
    fill(index, log)
    if flushed:
        index.flush()
    return index


def answered(index: KeyIndex, log: list[Batch], what: Wanted) -> list[int]:
    """What somebody finds who reads hits and looks through gaps, newest first; nothing may come twice."""
    found: list[int] = []
    for place in index.search(what, segments_of(log)):
        if isinstance(place, Hit):
            found.append(place.position)
        else:
            found += [
                b.position for b in reversed(log) if place.first <= b.position < place.end and what.hash in b.hashes
            ]
    times = {batch.position: batch.stored_at for batch in log}
    return [at for at in found if what.since_us <= times[at] < what.until_us and at < what.before]


def model(log: list[Batch], what: Wanted) -> list[int]:
    return [
        batch.position
        for batch in reversed(log)
        if what.hash in batch.hashes
        and what.since_us <= batch.stored_at < what.until_us
        and batch.position < what.before
    ]


searches = st.builds(
    wanted,
    st.integers(1, 5),
    since=st.integers(995, 1040),
    until=st.integers(995, 1040) | st.just(EVER),
    before=st.integers(0, 200).map(lambda n: 8 * n) | st.just(EVER),
)


@quick
@given(any_log(), searches, st.integers(1, 9), st.booleans())
def test_a_search_finds_what_a_walk_over_the_log_finds(
    log: list[Batch], what: Wanted, block: int, flushed: bool
) -> None:
    with TemporaryDirectory() as folder:
        index = make(Path(folder), log, block=block, flushed=flushed)
        plain = [place for place in index.search(what, segments_of(log)) if isinstance(place, Gap)]

        assert plain == []
        assert answered(index, log, what) == model(log, what)


@quick
@given(any_log(), searches, st.data())
def test_damage_is_named_and_never_answered_from(log: list[Batch], what: Wanted, data: st.DataObject) -> None:
    """Any byte of any file: the answer is what it was, since what a damaged block said is looked up in the log."""
    with TemporaryDirectory() as folder:
        make(Path(folder), log)
        index = KeyIndex(Files(), Path(folder))
        if log:
            last = segments_of(log)[-1]
            index.extend(last[0], [], last[1], last[1])
        files = sorted(Path(folder).iterdir())
        if files:
            path = data.draw(st.sampled_from(files))
            content = bytearray(path.read_bytes())
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
            path.write_bytes(content)

        assert answered(index, log, what) == model(log, what)


@quick
@given(any_log(), searches, st.data())
def test_a_file_that_ends_too_soon_or_is_missing_is_a_gap(log: list[Batch], what: Wanted, data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        index = make(Path(folder), log)
        files = sorted(Path(folder).iterdir())
        if files:
            path = data.draw(st.sampled_from(files))
            length = data.draw(st.none() | st.integers(0, path.stat().st_size - 1))
            if length is None:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:length])

        assert answered(index, log, what) == model(log, what)


@quick
@given(any_log().filter(bool), st.data())
def test_recovery_cuts_at_any_position_and_goes_on_from_what_is_covered(log: list[Batch], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        make(Path(folder), log, block=data.draw(st.integers(1, 9)))
        start, stop = segments_of(log)[-1]
        path = Path(folder) / f"{start:020d}"
        if data.draw(st.booleans()):  # a torn or damaged end besides
            content = bytearray(path.read_bytes())
            content[data.draw(st.integers(0, len(content) - 1))] ^= 255
            path.write_bytes(content)
        position = data.draw(st.sampled_from([batch.position for batch in log if batch.position >= start]))

        index = KeyIndex(Files(), Path(folder))
        covered = index.cut(start, position)

        assert start <= covered <= position
        inside = [batch for batch in log if start <= batch.position and batch.hashes]
        assert list(index.listed(start) if path.exists() else []) == [
            (batch.position, little("I", batch.hashes)) for batch in inside if batch.position < covered
        ]
        index.extend(start, [entry(batch) for batch in inside if batch.position >= covered], covered, stop)
        for value in range(1, 6):
            assert answered(index, log, wanted(value)) == model(log, wanted(value))
        assert index.end == stop


def test_what_is_not_indexed_yet_is_left_out_of_a_search(directory: Path) -> None:
    index = KeyIndex(Files(), directory)
    index.extend(0, [Entry(0, 1, little("I", [7]))], 0, 64)

    assert list(index.search(wanted(7), [(0, 128)])) == [Hit(0)]
    assert index.end == 64


def test_a_range_that_was_left_out_is_a_gap(directory: Path) -> None:
    index = KeyIndex(Files(), directory)
    index.extend(0, [Entry(0, 1, little("I", [7]))], 0, 64)
    index.extend(0, [Entry(128, 1, little("I", [7]))], 128, 192)

    assert list(index.search(wanted(7), [(0, 192)])) == [Hit(128), Gap(64, 128), Hit(0)]
    index.flush()
    assert list(index.search(wanted(7), [(0, 192)])) == [Hit(128), Gap(64, 128), Hit(0)]
    assert index.damaged == 2


def test_indexing_again_what_is_indexed_changes_nothing(directory: Path) -> None:
    index = KeyIndex(Files(), directory)
    entries = [Entry(0, 1, little("I", [7])), Entry(64, 1, little("I", [7]))]
    index.extend(0, entries, 0, 128)
    index.extend(0, entries, 0, 128)

    assert list(index.search(wanted(7), [(0, 128)])) == [Hit(64), Hit(0)]


def test_a_search_of_the_newest_does_not_read_what_is_old(directory: Path) -> None:
    """stored_at never falls: the first block that is too old ends the search."""
    log = [Batch(80 * i, 80 * i + 80, 1000 + i, [1]) for i in range(40)]
    index = make(directory, log)
    (directory / f"{0:020d}").unlink()

    found = list(index.search(wanted(1, since=1030), segments_of(log)))

    assert found[:10] == [Hit(80 * i) for i in reversed(range(30, 40))]
    assert len(found) < 15


def test_the_file_of_a_segment_goes_with_it(directory: Path) -> None:
    index = make(directory, [Batch(0, 64, 1, [1]), Batch(400, 464, 2, [1])])
    assert index.segments() == [0, 400]
    assert index.covered(0) == 400

    index.drop(0)
    index.drop(0)

    assert index.segments() == [400]
    assert list(index.search(wanted(1), [(400, 464)])) == [Hit(400)]


class Full(Files):
    """A disk that takes a few bytes and no more, until it is told otherwise."""

    full = True

    def write_all(self, fd: int, content: bytes | bytearray | memoryview, at: int) -> None:
        if self.full:
            super().write_all(fd, memoryview(content)[:20], at)
            raise OSError(28, "No space left on device")
        super().write_all(fd, content, at)


def test_what_a_full_disk_refuses_is_found_in_memory_and_written_later(directory: Path) -> None:
    disk = Full()
    index = KeyIndex(disk, directory, block_hashes=2)
    entries = [Entry(64 * i, i, little("I", [7])) for i in range(6)]

    with pytest.raises(OSError, match="No space"):
        index.extend(0, entries, 0, 384)
    assert list(index.search(wanted(7), [(0, 384)])) == [Hit(64), Hit(0)]

    disk.full = False
    index.extend(0, entries, 0, 384)
    index.flush()

    assert list(index.search(wanted(7), [(0, 384)])) == [Hit(64 * i) for i in reversed(range(6))]
    again = KeyIndex(Files(), directory)
    again.extend(0, [], 384, 384)
    assert list(again.search(wanted(7), [(0, 384)])) == [Hit(64 * i) for i in reversed(range(6))]


def test_a_file_lists_what_it_says_and_where_it_says_nothing(directory: Path) -> None:
    index = KeyIndex(Files(), directory, block_hashes=1)
    index.extend(0, [Entry(64 * i, 1, little("I", [i])) for i in range(3)], 0, 192)
    index.extend(0, [Entry(256, 1, little("I", [4]))], 256, 320)
    index.flush()
    path = directory / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[72 + 60] ^= 1  # in the columns of the second block
    path.write_bytes(content)

    assert list(index.listed(0)) == [
        (0, little("I", [0])),
        Gap(64, 128),
        (128, little("I", [2])),
        Gap(192, 256),
        (256, little("I", [4])),
    ]
    assert index.cut(0, 320) == 64
