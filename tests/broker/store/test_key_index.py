"""
The key index over files: what a search finds, names as a gap, or leaves out.

Blocks of the key index: what goes in is found, and nothing else.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.offline.verify import Verification
from rmq.broker.store import key_index
from rmq.broker.store.files import Files
from rmq.broker.store.key_index import (
    HEADER,
    PIECE,
    Block,
    Hit,
    IndexGap,
    KeyEntry,
    KeyIndex,
    KeySearch,
    cut,
    hash_column,
    pack,
    parse_head,
)
from rmq.wire.batch.columns import Columns

from ..builders import Opened
from rigs.batches import little, quick
from rigs.disk.faulty import UnreadableFiles

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


def wanted(value: int, *, since: int = 0, until: int = EVER, before: int = EVER) -> KeySearch:
    return KeySearch(value, since, until, before)


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


def entry(batch: Batch) -> KeyEntry:
    return KeyEntry(batch.position, batch.stored_at, little("I", batch.hashes))


def make(directory: Path, log: list[Batch], *, block: int = 4, flushed: bool = True) -> KeyIndex:
    index = KeyIndex(Files(), directory, block_hashes=block)
    fill(index, log)
    if flushed:
        index.flush()
    return index


def answered(index: KeyIndex, log: list[Batch], what: KeySearch) -> list[int]:
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


def model(log: list[Batch], what: KeySearch) -> list[int]:
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
    log: list[Batch], what: KeySearch, block: int, flushed: bool
) -> None:
    with TemporaryDirectory() as folder:
        index = make(Path(folder), log, block=block, flushed=flushed)
        plain = [place for place in index.search(what, segments_of(log)) if isinstance(place, IndexGap)]

        assert plain == []
        assert answered(index, log, what) == model(log, what)


@quick
@given(any_log(), searches, st.data())
def test_damage_is_named_and_never_answered_from(log: list[Batch], what: KeySearch, data: st.DataObject) -> None:
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
def test_a_file_that_ends_too_soon_or_is_missing_is_a_gap(
    log: list[Batch], what: KeySearch, data: st.DataObject
) -> None:
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
    index.extend(0, [KeyEntry(0, 1, little("I", [7]))], 0, 64)

    assert list(index.search(wanted(7), [(0, 128)])) == [Hit(0)]
    assert index.end == 64


def test_a_range_that_was_left_out_is_a_gap(directory: Path) -> None:
    index = KeyIndex(Files(), directory)
    index.extend(0, [KeyEntry(0, 1, little("I", [7]))], 0, 64)
    index.extend(0, [KeyEntry(128, 1, little("I", [7]))], 128, 192)

    assert list(index.search(wanted(7), [(0, 192)])) == [Hit(128), IndexGap(64, 128), Hit(0)]
    index.flush()
    assert list(index.search(wanted(7), [(0, 192)])) == [Hit(128), IndexGap(64, 128), Hit(0)]
    assert index.damaged == 2


def test_indexing_again_what_is_indexed_changes_nothing(directory: Path) -> None:
    index = KeyIndex(Files(), directory)
    entries = [KeyEntry(0, 1, little("I", [7])), KeyEntry(64, 1, little("I", [7]))]
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
    entries = [KeyEntry(64 * i, i, little("I", [7])) for i in range(6)]

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
    index.extend(0, [KeyEntry(64 * i, 1, little("I", [i])) for i in range(3)], 0, 192)
    index.extend(0, [KeyEntry(256, 1, little("I", [4]))], 256, 320)
    index.flush()
    path = directory / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[72 + 60] ^= 1  # in the columns of the second block
    path.write_bytes(content)

    assert list(index.listed(0)) == [
        (0, little("I", [0])),
        IndexGap(64, 128),
        (128, little("I", [2])),
        IndexGap(192, 256),
        (256, little("I", [4])),
    ]
    assert index.cut(0, 320) == 64


# Few different bytes, so that hashes are found where one ends and the next begins as well.
hashes = st.lists(st.sampled_from([0, 1, 0x0101, 0x010000, 0x01000001, 0xFFFFFFFF]), min_size=1, max_size=5)


@st.composite
def any_entries(draw: st.DrawFn) -> list[KeyEntry]:
    """Batches with keys as they lie in a log, with room for others between them."""
    entries, position, stored_at = [], draw(st.integers(0, 10)) * 8, 1000
    for column in draw(st.lists(hashes, max_size=12)):
        entries.append(KeyEntry(position, stored_at, little("I", column)))
        position += 8 * draw(st.integers(1, 9))
        stored_at += draw(st.integers(0, 3))
    return entries


def end_of(entries: list[KeyEntry]) -> int:
    return entries[-1].position + 8 if entries else 96


def holders(entries: list[KeyEntry], value: int) -> list[int]:
    """The model: who has a hash, newest first."""
    wanted = little("I", [value])
    return [
        entry.position
        for entry in reversed(entries)
        if wanted in [entry.hashes[i : i + 4] for i in range(0, len(entry.hashes), 4)]
    ]


def parsed(data: bytes) -> Block | None:
    head = parse_head(data)
    if head is None:
        return None
    block = Block(head, data[HEADER : HEADER + head.column_size])
    return block if block.is_sound() else None


@quick
@given(any_entries(), st.integers(1, 8))
def test_blocks_cover_the_range_without_a_gap_and_never_split_a_batch(entries: list[KeyEntry], limit: int) -> None:
    blocks = pack(entries, 0, end_of(entries), limit)

    assert [block.head.first for block in blocks] == [0, *(block.head.end for block in blocks[:-1])]
    assert blocks[-1].head.end == end_of(entries)
    assert [entry for block in blocks for entry in block.entries()] == [(e.position, e.hashes) for e in entries]
    assert all(block.head.hashes - len(list(block.entries())[-1][1]) // 4 < limit for block in blocks if block.columns)


@quick
@given(any_entries(), st.sampled_from([0, 1, 0x0100, 0x0101, 0x01000001, 0xFFFFFFFF]), st.integers(1, 8))
def test_a_hash_is_found_in_the_batches_that_have_it(entries: list[KeyEntry], value: int, limit: int) -> None:
    blocks = pack(entries, 0, end_of(entries), limit)

    assert [at for block in reversed(blocks) for at in block.matches(value)] == holders(entries, value)


@quick
@given(any_entries())
def test_a_block_comes_back_from_its_bytes(entries: list[KeyEntry]) -> None:
    (block,) = pack(entries, 0, end_of(entries))

    assert parsed(block.packed()) == block


@quick
@given(any_entries(), st.data())
def test_a_changed_byte_is_noticed_wherever_it_is(entries: list[KeyEntry], data: st.DataObject) -> None:
    (block,) = pack(entries, 0, end_of(entries))
    packed = bytearray(block.packed())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))

    assert parsed(bytes(packed)) is None


@quick
@given(any_entries(), st.data())
def test_a_block_that_ends_too_soon_is_none(entries: list[KeyEntry], data: st.DataObject) -> None:
    (block,) = pack(entries, 0, end_of(entries))
    packed = block.packed()

    assert parsed(packed[: data.draw(st.integers(0, len(packed) - 1))]) is None


@quick
@given(any_entries(), st.integers(0, 500))
def test_a_block_cut_at_a_position_speaks_of_what_lies_below(entries: list[KeyEntry], position: int) -> None:
    (block,) = pack(entries, 0, end_of(entries))

    kept = cut(block, position)

    below = [entry for entry in entries if entry.position < position]
    assert list(kept.entries()) == [(entry.position, entry.hashes) for entry in below]
    assert kept.head.end == min(position, end_of(entries))
    assert parsed(kept.packed()) == kept
    if below:
        assert kept.head.oldest <= below[0].stored_at <= below[-1].stored_at <= kept.head.newest


def test_a_hash_over_the_seam_of_two_pieces_is_found() -> None:
    for before in range(PIECE // 4 - 2, PIECE // 4 + 3):
        column = little("I", [7]) * before + little("I", [0xA1B2C3D4]) + little("I", [7]) * 9
        (block,) = pack([KeyEntry(8, 1, little("I", [7])), KeyEntry(16, 1, column)], 0, 24)

        assert block.matches(0xA1B2C3D4) == [16]


def test_a_batch_is_found_once_however_often_it_has_the_hash() -> None:
    (block,) = pack([KeyEntry(8, 1, little("I", [5, 5])), KeyEntry(16, 1, little("I", [5, 1, 5]))], 0, 24)

    assert block.matches(5) == [16, 8]


def test_the_header_never_changes() -> None:
    """A change here needs another version."""
    (block,) = pack([KeyEntry(4096, 1_700_000_000_123_456, hash_column(array("I", [0xA1B2C3D4])))], 1024, 8192)

    assert (key_index.VERSION, block.packed().hex()) == (
        2,
        "524d4b49" "0002" "0000" + block.packed()[8:16].hex() + "00000001" "00000001"
        "0000000000000400" "0000000000002000" "00060a2418202240" "00060a2418202240"
        "0010000000000000" "00000000" "d4c3b2a1",
    )  # fmt: skip


# ---- files of an older version, which had no hashes of keys


@pytest.fixture
def old_store(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[int]]:
    """A stopped store of several segments, whose key index is as the first version wrote it; and its positions."""
    return memory_path, make_old_store(memory_path, monkeypatch, messages=9, segment_bytes=900)


def make_old_store(path: Path, monkeypatch: pytest.MonkeyPatch, *, messages: int, **settings: int) -> list[int]:
    """Make a stopped store whose key index is as the first version wrote it; return the positions of its messages."""
    with monkeypatch.context() as old:
        old.setattr(key_index, "VERSION", 1)
        old.setattr(Columns, "searchable_hashes", lambda columns: columns.index_key_hashes)
        opened = Opened(path, **settings)
        placed = [opened.append(b"%d" % i, index_keys=[(f"i-{i}",)], keys=[f"o-{i}"]) for i in range(messages)]
        opened.checkpoint()
        opened.close()
    return [place.physical_offset for place in placed]


def versions(path: Path) -> list[int]:
    return [int.from_bytes(file.read_bytes()[4:6], "big") for file in sorted((path / "index").iterdir())]


def test_files_of_an_older_version_are_rebuilt_at_a_start(old_store: tuple[Path, list[int]]) -> None:
    path, positions = old_store
    assert set(versions(path)) == {1} and len(versions(path)) > 2
    log = {file: file.read_bytes() for file in (path / "commitlog").iterdir()}

    opened = Opened(path, segment_bytes=900)
    opened.checkpoint()

    ranges = opened.store.reader().ranges()
    for i, position in enumerate(positions):
        for key in (f"i-{i}", f"o-{i}"):
            assert list(opened.store.keys.search(wanted(crc32(key.encode())), ranges)) == [Hit(position)]
    opened.close()
    assert set(versions(path)) == {2}
    assert all(file.read_bytes().startswith(data) for file, data in log.items()), "the log does not change"
    assert Verification(path).run().findings == []


def test_a_start_that_ends_early_leaves_the_files_it_did_not_come_to(old_store: tuple[Path, list[int]]) -> None:
    path, _ = old_store
    index = KeyIndex(Files(), path / "index")
    starts = index.segments()

    index.recover(starts, starts[0], from_scratch=False)

    assert [index.has_older_format(segment) for segment in starts] == [False, *[True] * (len(starts) - 1)]
    assert index.is_outdated()


def test_a_crash_before_the_first_checkpoint_does_not_end_the_rebuilding(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (position,) = make_old_store(memory_path, monkeypatch, messages=1)
    Opened(memory_path).store.abandon()

    for _ in range(2):  # the second start begins at a checkpoint
        opened = Opened(memory_path)
        opened.checkpoint()
        places = opened.store.keys.search(wanted(crc32(b"o-0")), opened.store.reader().ranges())
        assert list(places) == [Hit(position)]
        opened.close()

    assert opened.recovered.read_from > position
    assert not (memory_path / "index" / key_index.REBUILD).exists()


@pytest.mark.parametrize("segment_bytes", [900, 1 << 30])
def test_a_log_that_cannot_be_read_leaves_gaps_until_it_can(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, segment_bytes: int
) -> None:
    positions = make_old_store(memory_path, monkeypatch, messages=9, segment_bytes=segment_bytes)
    first = min((memory_path / "index").iterdir()).name
    disk = UnreadableFiles(f"commitlog/{first}", 300, 400)

    for _ in range(2):
        opened = Opened(memory_path, segment_bytes=segment_bytes, files=disk)
        assert opened.recovered.read_from > positions[-1]
        opened.checkpoint()
        places = list(opened.store.keys.search(wanted(crc32(b"o-0")), opened.store.reader().ranges()))
        assert all(any(place.first <= at < place.end for place in places) for at in positions)
        assert not any(isinstance(place, Hit) for place in places)
        opened.close()

    disk.repair()
    opened = Opened(memory_path, segment_bytes=segment_bytes, files=disk)
    opened.checkpoint()
    places = list(opened.store.keys.search(wanted(crc32(b"o-0")), opened.store.reader().ranges()))
    assert places == [Hit(positions[0])]
    assert not opened.store.keys.is_outdated()
    opened.close()


def test_a_verification_names_files_of_an_older_version(old_store: tuple[Path, list[int]]) -> None:
    path, _ = old_store

    findings = Verification(path).run().findings

    assert len(findings) == len(versions(path))
    assert {finding.text for finding in findings} == {
        "it has the format of an older version; the next start rebuilds it"
    }
