"""Blocks of the key index: what goes in is found, and nothing else."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.store import key_index
from rmq.broker.store.key_index import HEADER, PIECE, Block, Entry, cut, hash_column, pack, parse_head

from support.batches import little, quick

# Few different bytes, so that hashes are found where one ends and the next begins as well.
hashes = st.lists(st.sampled_from([0, 1, 0x0101, 0x010000, 0x01000001, 0xFFFFFFFF]), min_size=1, max_size=5)


@st.composite
def any_entries(draw: st.DrawFn) -> list[Entry]:
    """Batches with keys as they lie in a log, with room for others between them."""
    entries, position, stored_at = [], draw(st.integers(0, 10)) * 8, 1000
    for column in draw(st.lists(hashes, max_size=12)):
        entries.append(Entry(position, stored_at, little("I", column)))
        position += 8 * draw(st.integers(1, 9))
        stored_at += draw(st.integers(0, 3))
    return entries


def end_of(entries: list[Entry]) -> int:
    return entries[-1].position + 8 if entries else 96


def holders(entries: list[Entry], value: int) -> list[int]:
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
def test_blocks_cover_the_range_without_a_gap_and_never_split_a_batch(entries: list[Entry], limit: int) -> None:
    blocks = pack(entries, 0, end_of(entries), limit)

    assert [block.head.first for block in blocks] == [0, *(block.head.end for block in blocks[:-1])]
    assert blocks[-1].head.end == end_of(entries)
    assert [entry for block in blocks for entry in block.entries()] == [(e.position, e.hashes) for e in entries]
    assert all(block.head.hashes - len(list(block.entries())[-1][1]) // 4 < limit for block in blocks if block.columns)


@quick
@given(any_entries(), st.sampled_from([0, 1, 0x0100, 0x0101, 0x01000001, 0xFFFFFFFF]), st.integers(1, 8))
def test_a_hash_is_found_in_the_batches_that_have_it(entries: list[Entry], value: int, limit: int) -> None:
    blocks = pack(entries, 0, end_of(entries), limit)

    assert [at for block in reversed(blocks) for at in block.matches(value)] == holders(entries, value)


@quick
@given(any_entries())
def test_a_block_comes_back_from_its_bytes(entries: list[Entry]) -> None:
    (block,) = pack(entries, 0, end_of(entries))

    assert parsed(block.packed()) == block


@quick
@given(any_entries(), st.data())
def test_a_changed_byte_is_noticed_wherever_it_is(entries: list[Entry], data: st.DataObject) -> None:
    (block,) = pack(entries, 0, end_of(entries))
    packed = bytearray(block.packed())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))

    assert parsed(bytes(packed)) is None


@quick
@given(any_entries(), st.data())
def test_a_block_that_ends_too_soon_is_none(entries: list[Entry], data: st.DataObject) -> None:
    (block,) = pack(entries, 0, end_of(entries))
    packed = block.packed()

    assert parsed(packed[: data.draw(st.integers(0, len(packed) - 1))]) is None


@quick
@given(any_entries(), st.integers(0, 500))
def test_a_block_cut_at_a_position_speaks_of_what_lies_below(entries: list[Entry], position: int) -> None:
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
        (block,) = pack([Entry(8, 1, little("I", [7])), Entry(16, 1, column)], 0, 24)

        assert block.matches(0xA1B2C3D4) == [16]


def test_a_batch_is_found_once_however_often_it_has_the_hash() -> None:
    (block,) = pack([Entry(8, 1, little("I", [5, 5])), Entry(16, 1, little("I", [5, 1, 5]))], 0, 24)

    assert block.matches(5) == [16, 8]


def test_the_header_never_changes() -> None:
    """A change here needs another version."""
    (block,) = pack([Entry(4096, 1_700_000_000_123_456, hash_column(array("I", [0xA1B2C3D4])))], 1024, 8192)

    assert (key_index.VERSION, block.packed().hex()) == (
        1,
        "524d4b49" "0001" "0000" + block.packed()[8:16].hex() + "00000001" "00000001"
        "0000000000000400" "0000000000002000" "00060a2418202240" "00060a2418202240"
        "0010000000000000" "00000000" "d4c3b2a1",
    )  # fmt: skip
