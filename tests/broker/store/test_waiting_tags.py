from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.broker.store.consume_queue import ENTRY, MESSAGES_A_TAG, WaitingTags
from rmq.wire.batch.columns import TagColumn
from rmq.wire.batch.hashing import tag_hash

NAMES = ["new", "paid", "sent"]


def column(codes: Sequence[int], names: list[str] | None = None) -> TagColumn:
    return TagColumn(NAMES if names is None else names, array("H", codes))


def hashes_of(tags: TagColumn | array[int] | None) -> list[int] | None:
    if isinstance(tags, TagColumn):
        return [tags.hashes()[code] for code in tags.codes]
    return None if tags is None else list(tags)


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 95, 96, 200]), st.integers(0, 3), st.booleans()), max_size=12),
    st.data(),
)
@settings(deadline=None, max_examples=100)
def test_short_and_long_batches_have_the_tags_that_they_came_with(
    drawn: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    waiting, model, base = WaitingTags(), [], 0
    for count, first, has_tags in drawn:
        codes = [(first + i) % 4 for i in range(count)]
        if has_tags:
            waiting.add(base, column(codes))
        wanted = [[0, *map(tag_hash, NAMES)][code] for code in codes]
        model.append((base, base + count, wanted if has_tags else None))
        base += count
    bounds = sorted(data.draw(st.sampled_from([first for first, _, _ in model] + [base])) for _ in range(2))

    part = waiting.part(*bounds)

    for first, end, wanted in model:
        assert hashes_of(waiting.of(first, end)) == wanted
        assert hashes_of(part.of(first, end)) == (wanted if bounds[0] <= first < bounds[1] else None)
    assert bool(part) == any(wanted and bounds[0] <= first < bounds[1] for first, _, wanted in model)


def test_what_is_added_later_is_not_in_a_part() -> None:
    waiting = WaitingTags()
    waiting.add(0, column([1]))
    part = waiting.part(0, 1)
    waiting.add(1, column([2]))

    assert part.of(1, 2) is None
    assert waiting.of(1, 2) == array("q", [tag_hash("paid")])


def test_tags_take_no_more_bytes_than_the_entries_of_their_messages() -> None:
    waiting = WaitingTags()
    for base in range(4000):
        waiting.add(base, column([1], ["paid"]))
    assert not waiting._columns
    size = sum(map(sys.getsizeof, (waiting._offsets, waiting._hashes)))
    assert size < 4000 * ENTRY.size

    waiting.add(4000, column([1] * MESSAGES_A_TAG, ["paid"]))
    assert list(waiting._columns) == [4000]
    assert sum(map(sys.getsizeof, (waiting._offsets, waiting._hashes))) == size
