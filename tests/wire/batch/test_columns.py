"""The meta of a batch: what the judge accepts, every accessor can read."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any
from zlib import crc32

import msgpack
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from rmq.wire.batch import batch, layout
from rmq.wire.batch.batch import Rows
from rmq.wire.batch.columns import (
    Columns,
    TextColumn,
    check_columns,
    check_times,
    hash_any_texts,
    hash_texts,
    tag_names,
)
from rmq.wire.batch.hashing import tag_bloom, tag_hash
from rmq.wire.errors import BadBatch, Refused
from rmq.wire.stores import StoreIds

from rigs.batches import BORN_AT, FULL, STORE_ID, assemble, little, parts_of, quick, sample, settings_of

COUNT = 3
NAMES = ["lengths", "tags", "index_keys", "index_key_hashes", "keys", "properties", "born_at", "attempts"]


def with_columns(changes: dict[str, Any], *more: object) -> bytes:
    """The full sample with some columns replaced, everything around them right."""
    parts = parts_of(sample())
    for name, value in changes.items():
        parts[NAMES.index(name)] = value
    tags = parts[1][0] if type(parts[1]) is list and parts[1] and type(parts[1][0]) is list else []
    bloom = tag_bloom([tag for tag in tags if type(tag) is str])
    bodies = b"".join(FULL.bodies)
    return assemble(msgpack.packb([*parts, *more]), bodies, count=COUNT, bloom=bloom)


def check(changes: dict[str, Any]) -> Columns:
    return batch.check(with_columns(changes), stamped=True).columns


def text_column(*texts: bytes) -> list[bytes]:
    return [little("I", [len(text) for text in texts]), b"".join(texts)]


def use_every_accessor(data: bytes) -> None:
    """Read all that can be read; a batch that was accepted must not raise, nor contradict itself."""
    read = batch.read(data, stores=StoreIds(STORE_ID))
    columns = read.columns
    keys = [key for i in range(COUNT) for key in columns.index_keys_of(i)]
    assert all(keys)
    assert len(keys) == (0 if columns.index_key_hashes is None else len(columns.index_key_hashes))
    for i, message in enumerate(read.messages()):
        assert columns.properties is None or len(message.properties) == columns.properties.counts[i]
        assert message.tag is None or message.tag
        assert message.key is None or message.key
        assert message.born_at <= message.born_at.max.replace(tzinfo=message.born_at.tzinfo)
        assert 0 <= columns.attempts_of(i) <= 65535
        assert repr(message)
    if columns.tags is not None:
        assert len(columns.tags.hashes()) == len(columns.tags.names) + 1


def test_columns_can_be_added_behind_those_known() -> None:
    data = with_columns({}, b"later", {"much": "later"})

    assert batch.check(data, stamped=True).columns.tag(0) == "created"


def test_the_tags_of_a_batch_are_read_from_its_meta_alone() -> None:
    for data in (sample(), with_columns({"tags": None})):
        header = layout.parse_header(data)
        meta = memoryview(data)[header.header_size : header.header_size + header.meta_size]
        tags = check_columns(meta, header).tags

        assert tag_names(meta) == ([] if tags is None else tags.names)


@pytest.mark.parametrize("hashing", [hash_texts, hash_any_texts])
def test_a_batch_is_searched_by_its_index_keys_and_by_its_keys(hashing: Callable[[TextColumn], array[int]]) -> None:
    texts = ["o-1", "o-1", "", "o-1", "größe", "größe", "o-2"]
    encoded = [text.encode() for text in texts]
    column = TextColumn(array("I", map(len, encoded)), b"".join(encoded))

    assert list(hashing(column)) == [crc32(text.encode()) for text in ("o-1", "o-1", "größe", "o-2")]


@given(st.lists(st.sampled_from(["", "a", "b", "ab", "o-17", "größe" * 5])))
def test_texts_are_hashed_as_python_does(texts: list[str]) -> None:
    encoded = [text.encode() for text in texts]
    column = TextColumn(array("I", map(len, encoded)), b"".join(encoded))

    assert hash_texts(column) == hash_any_texts(column)


def test_hashes_are_the_same_without_the_compiled_module(monkeypatch: pytest.MonkeyPatch) -> None:
    column = TextColumn(array("I", [2, 2, 0, 2]), b"o1o1o2")
    made = hash_texts(column)
    monkeypatch.setattr("rmq.wire.batch.columns.native", None)

    assert list(hash_texts(column)) == list(made) == [crc32(b"o1"), crc32(b"o2")]


def test_the_key_hashes_are_the_crc_of_each_key() -> None:
    columns = check({})

    assert columns.index_key_hashes is not None
    assert list(columns.index_key_hashes) == [crc32(b"o-17"), crc32(b"o-17"), crc32("größe".encode())]


def test_the_tag_hashes_begin_with_no_tag() -> None:
    columns = check({})

    assert columns.tags is not None
    assert columns.tags.hashes() == [0, tag_hash("bezahlt-€"), tag_hash("created")]
    assert list(columns.tags.codes) == [2, 0, 1]


def test_absent_columns_read_as_nothing() -> None:
    absent = dict.fromkeys(("tags", "index_keys", "index_key_hashes", "keys", "properties", "attempts"))
    columns = check({**absent, "born_at": BORN_AT})

    for i in range(COUNT):
        assert (columns.tag(i), columns.index_keys_of(i), columns.key(i)) == (None, (), None)
        assert (columns.properties_of(i), columns.attempts_of(i), columns.born_at_of(i)) == ({}, 0, BORN_AT)


def test_answers_are_the_same_when_asked_again() -> None:
    columns = check({})

    for _ in range(2):
        assert columns.index_keys_of(2) == ("o-17", "größe")
        assert columns.key(2) == "😀"
        assert columns.properties_of(2) == {"trace": "", "währung": "€"}


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("lengths", None, "the column lengths is not 3 numbers of 4 bytes"),
        ("lengths", little("I", [7, 7]), "the column lengths is not 3 numbers"),
        ("lengths", bytes(13), "the column lengths is not 3 numbers"),
        ("lengths", [7, 0, 7], "the column lengths is not 3 numbers"),
        ("lengths", "x" * 12, "the column lengths is not 3 numbers"),
        ("lengths", little("I", [7, 0, 8]), "the lengths add up to 15, the bodies have 14 bytes"),
        ("lengths", little("I", [0xFFFFFFFF, 15, 0]), "the lengths add up to 4294967310"),
        ("tags", 0, "the column tags is not a dictionary and codes"),
        ("tags", [["a"]], "the column tags is not a dictionary and codes"),
        ("tags", [["a"], little("H", [0, 1, 1]), None], "the column tags is not a dictionary and codes"),
        ("tags", [None, bytes(6)], "the dictionary of the column tags is not a list of texts"),
        ("tags", [[b"a"], bytes(6)], "the dictionary of the column tags is not a list of texts"),
        ("tags", [[["a"]], bytes(6)], "the dictionary of the column tags is not a list of texts"),
        ("tags", [[""], bytes(6)], "a name of the column tags is empty"),
        ("tags", [["a", "a"], bytes(6)], "a name of the column tags is there twice"),
        ("tags", [["x" * 256], bytes(6)], "a name of the column tags is over the limit of 255 bytes"),
        ("tags", [["a", "b", "c", "d"], bytes(6)], "the column tags has 4 names, and 3 places that could use one"),
        ("tags", [["a"], bytes(5)], "the column tags is not 3 numbers of 2 bytes"),
        ("tags", [["a"], little("H", [0, 2, 1])], "a tag code 2 lies outside of 1 tags"),
        ("tags", [[], little("H", [0, 0, 1])], "a tag code 1 lies outside of 0 tags"),
        ("index_keys", b"x", "the column index_keys is not lengths and bytes"),
        ("index_keys", [bytes(12)], "the column index_keys is not lengths and bytes"),
        ("index_keys", [bytes(12), "text"], "the column index_keys is not lengths and bytes"),
        ("index_keys", [bytes(8), b""], "the column index_keys is not 3 numbers of 4 bytes"),
        ("index_keys", text_column(b"a", b"b", b"\xff"), "the column index_keys is not UTF-8"),
        ("index_keys", text_column(b"\xed\xa0\x80", b"", b""), "the column index_keys is not UTF-8"),  # a surrogate
        ("index_keys", text_column(b"a\xc3", b"\xb6", b""), "a text of the column index_keys ends within a character"),
        ("index_keys", [little("I", [1, 1, 2]), b"abc"], "the column index_keys has 3 bytes, its lengths add up to 4"),
        ("index_keys", text_column(b"a", b"b", b""), "the column index_key_hashes is not 2 numbers"),
        ("index_keys", text_column(b"a b", b"c", b"d e"), "the column index_key_hashes is not 5 numbers"),
        ("index_keys", text_column(b"a  b", b"", b""), "an index key is empty or holds a space"),
        ("index_keys", text_column(b" a b", b"", b""), "an index key is empty or holds a space"),
        ("index_keys", text_column(b"", b"a b ", b""), "an index key is empty or holds a space"),
        ("index_keys", text_column(b"a ", b"b", b""), "an index key is empty or holds a space"),
        ("index_keys", text_column(b"a", b" b", b""), "an index key is empty or holds a space"),
        ("index_keys", text_column(b" ", b"", b""), "an index key is empty or holds a space"),
        ("index_keys", None, "there are hashes of index keys and no index keys"),
        ("index_key_hashes", None, "the column index_key_hashes is not 3 numbers of 4 bytes"),
        ("index_key_hashes", bytes(16), "the column index_key_hashes is not 3 numbers of 4 bytes"),
        ("keys", text_column(b"a", b"\x80", b""), "the column keys is not UTF-8"),
        ("keys", {}, "the column keys is not lengths and bytes"),
        ("born_at", None, "the column born_at is not 3 numbers of 8 bytes"),
        ("born_at", True, "the column born_at is not 3 numbers of 8 bytes"),
        ("born_at", 1.5, "the column born_at is not 3 numbers of 8 bytes"),
        ("born_at", -1, "the time -1 of born_at is not between 1970 and 9999"),
        ("born_at", layout.MAX_TIME, "of born_at is not between 1970 and 9999"),
        ("born_at", (1 << 64) - 1, "of born_at is not between 1970 and 9999"),
        ("born_at", little("q", [0, -5, 0]), "the time -5 of born_at is not between 1970 and 9999"),
        ("born_at", little("q", [0, 0, layout.MAX_TIME]), "of born_at is not between 1970 and 9999"),
        ("born_at", little("q", [0, -1 << 63, 0]), "of born_at is not between 1970 and 9999"),
        ("born_at", little("q", [(1 << 63) - 1, 0, 0]), "of born_at is not between 1970 and 9999"),
        ("attempts", bytes(4), "the column attempts is not 3 numbers of 2 bytes"),
        ("attempts", [0, 0, 0], "the column attempts is not 3 numbers of 2 bytes"),
    ],
)
def test_a_column_that_could_not_be_read_is_refused(column: str, value: object, why: str) -> None:
    with pytest.raises(BadBatch, match=why):
        check({column: value})


def test_times_up_to_the_last_that_a_calendar_shows_are_taken() -> None:
    times = [layout.MAX_TIME - 1, 1 << 56, (1 << 56) - 1]

    columns = check({"born_at": little("q", times)})

    assert [columns.born_at_of(i) for i in range(3)] == times


def test_a_meta_full_of_names_that_nobody_uses_is_refused_before_they_are_built() -> None:
    names = [f"{i:x}" for i in range(30_000)]

    with pytest.raises(BadBatch, match=r"the meta is not msgpack: it holds more than \d+ values"):
        check({"properties": [names, bytes(6), b"", b"", b""]})


def test_every_message_may_have_properties_of_its_own_names() -> None:
    rows = [{f"{i:x}-{j}": "" for j in range(8)} for i in range(4096)]

    data = batch.encode("orders", 0, Rows([b""] * 4096, BORN_AT, properties=rows))

    assert batch.check(data, stamped=False).columns.properties_of(4095) == rows[4095]


def properties(names: object, counts: list[int], codes: list[int], *values: bytes) -> list[object]:
    lengths, blob = text_column(*values)
    return [names, little("H", counts), little("H", codes), lengths, blob]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "the column properties is not names, counts"),
        ([["a"], bytes(6), b"", b"", ""], "the column properties is not names, counts"),
        (properties("ab", [0, 0, 0], []), "the dictionary of the column properties is not a list of texts"),
        (properties(["a", 1], [2, 0, 0], [0, 1], b"", b""), "column properties is not a list of texts"),
        (properties(["a", ""], [2, 0, 0], [0, 1], b"", b""), "a name of the column properties is empty"),
        (properties(["a", "b"], [1, 0, 0], [0], b""), "properties has 2 names, and 1 places that could use one"),
        (properties(["a", "a"], [1, 0, 1], [0, 1], b"", b""), "a name of the column properties is there twice"),
        (properties(["a"], [1, 0], [0], b"x"), "the column properties is not 3 numbers of 2 bytes"),
        (properties(["a"], [1, 0, 1], [0], b"x"), "the column properties is not 2 numbers of 2 bytes"),
        (properties(["a"], [1, 0, 0], [0], b"x", b"y"), "the column properties is not 1 numbers of 4 bytes"),
        (properties(["a"], [1, 0, 0], [1], b"x"), "a property code 1 lies outside of 1 names"),
        (properties([], [1, 0, 0], [0], b"x"), "a property code 0 lies outside of 0 names"),
        (properties(["a"], [1, 0, 0], [0], b"\xff"), "the column properties is not UTF-8"),
        (properties(["a", "b"], [2, 0, 0], [0, 1], b"\xc3", b"\xb6"), "ends within a character"),
        (properties(["a"], [2, 0, 0], [0, 0], b"x", b"y"), "a message has a property twice"),
        (properties(["a", "b"], [1, 2, 0], [0, 1, 1], b"", b"", b""), "a message has a property twice"),
        (properties(["a"], [2, 2, 2], [0] * 6, *[b""] * 6), "a message has a property twice"),
    ],
)
def test_properties_that_could_not_be_read_are_refused(value: object, why: str) -> None:
    with pytest.raises(BadBatch, match=why):
        check({"properties": value})


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (properties(["a", "b"], [2, 0, 1], [1, 0, 0], b"1", b"2", b"3"), [{"b": "1", "a": "2"}, {}, {"a": "3"}]),
        (properties(["a"], [1, 1, 1], [0, 0, 0], b"1", b"2", b"3"), [{"a": "1"}, {"a": "2"}, {"a": "3"}]),
        (properties(["a", "b"], [1, 1, 1], [0, 1, 0], b"", b"2", b""), [{"a": ""}, {"b": "2"}, {"a": ""}]),
        (properties(["a", "b"], [0, 2, 0], [0, 1], b"", b""), [{}, {"a": "", "b": ""}, {}]),
    ],
)
def test_properties_are_read_in_their_order(value: object, rows: list[dict[str, str]]) -> None:
    columns = check({"properties": value})

    assert [list(columns.properties_of(i).items()) for i in range(COUNT)] == [list(row.items()) for row in rows]


@pytest.mark.parametrize("meta", [b"", b"\xc1", msgpack.packb(list(range(7))), msgpack.packb({}), b"\xc0", b"\x98"])
def test_a_meta_that_is_no_array_of_columns_is_refused(meta: bytes) -> None:
    with pytest.raises(BadBatch, match=r"the meta is not (msgpack|an array of 8 columns)"):
        batch.check(assemble(meta, b"", count=1), stamped=True)


def test_a_meta_of_millions_of_empty_arrays_is_refused_before_it_is_built() -> None:
    run = b"\xdc\xff\xff" + b"\x90" * 65535
    parts = parts_of(sample(Rows([b""], BORN_AT)))
    meta = b"\x99" + b"".join(map(msgpack.packb, parts)) + b"\xdc\x00\x30" + run * 48

    with pytest.raises(BadBatch, match="values"):
        batch.check(assemble(meta, b"", count=1), stamped=True)


@pytest.mark.parametrize("bloom", [1, tag_bloom(["created"])])
def test_a_bloom_that_is_not_of_the_tags_is_refused(bloom: int) -> None:
    parts = parts_of(sample())
    data = assemble(msgpack.packb(parts), b"".join(FULL.bodies), count=COUNT, bloom=bloom)
    with pytest.raises(BadBatch, match="the tag bloom does not match the tags"):
        batch.check(data, stamped=True)

    parts[1] = None
    data = assemble(msgpack.packb(parts), b"".join(FULL.bodies), count=COUNT, bloom=bloom)
    with pytest.raises(BadBatch, match="there is a tag bloom and no tags"):
        batch.check(data, stamped=True)


# Columns that are nearly right: small numbers, a few names, bytes cut anywhere in "a €".

u16s = st.lists(st.integers(0, 3), min_size=2, max_size=4).map(lambda numbers: little("H", numbers))
blobs = st.lists(st.sampled_from([b"", b"a", b" ", "€".encode(), b"\xe2\x82", b"\xac", b"a b"]), min_size=3, max_size=3)
few_names = st.lists(st.sampled_from(["a", "b", "", "€", 1]), max_size=4)
leaves = st.none() | st.integers(-1, 3) | st.binary(max_size=13) | st.text(max_size=3) | st.booleans() | st.floats()
wild = leaves | st.lists(leaves | st.lists(leaves, max_size=3), max_size=5)


@st.composite
def near_properties(draw: st.DrawFn) -> list[object]:
    counts = draw(st.lists(st.integers(0, 3), min_size=COUNT, max_size=COUNT))
    total = sum(counts)
    codes = draw(st.lists(st.integers(0, 3), min_size=total, max_size=total))
    cut = draw(
        st.lists(st.sampled_from([b"", b"a", "€".encode(), b"\xe2", b"\x82\xac"]), min_size=total, max_size=total)
    )
    return properties(draw(few_names), counts, codes, *cut)


@st.composite
def near_keys(draw: st.DrawFn) -> dict[str, Any]:
    column = text_column(*draw(blobs))
    total = sum(len([key for key in text.split(b" ") if key]) for text in _texts(column))
    return {"index_keys": column, "index_key_hashes": bytes(4 * (total + draw(st.sampled_from([0, 0, 0, 1]))))}


def _texts(column: list[bytes]) -> list[bytes]:
    lengths = memoryview(column[0]).cast("I").tolist()
    return [column[1][a:b] for a, b in pairwise([0, *accumulate(lengths)])]


near: dict[str, st.SearchStrategy[Any]] = {
    "lengths": st.permutations([7, 0, 7]).map(lambda numbers: little("I", numbers)),
    "tags": st.tuples(few_names, u16s).map(list),
    "keys": blobs.map(lambda texts: text_column(*texts)),
    "properties": near_properties(),
    "born_at": st.integers() .filter(lambda n: -(1 << 63) <= n < 1 << 64)
    | st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=3, max_size=3).map(lambda ns: little("q", ns)),
    "attempts": u16s,
}  # fmt: skip
changes: st.SearchStrategy[dict[str, Any]] = st.one_of(
    *[values.map(lambda value, name=name: {name: value}) for name, values in near.items()],  # type: ignore[misc]
    near_keys(),
    st.dictionaries(st.sampled_from(NAMES), wild, min_size=1, max_size=2),
)


@settings_of(400)
@given(changes)
def test_what_the_judge_accepts_every_accessor_reads(changed: dict[str, Any]) -> None:
    data = with_columns(changed)

    try:
        batch.check(data, stamped=True)
    except Refused as error:
        event("refused")
        assert error.text
        return
    event("accepted")
    use_every_accessor(data)


@quick
@given(st.binary(max_size=60))
def test_a_meta_of_garbage_raises_only_refusals(meta: bytes) -> None:
    with pytest.raises(Refused):
        batch.check(assemble(meta, b"", count=1), stamped=True)


@given(st.lists(st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, layout.MAX_TIME)), min_size=1))
def test_times_of_a_column_are_judged_one_by_one_whatever_they_are(times: list[int]) -> None:
    if all(0 <= time < layout.MAX_TIME for time in times):
        check_times("born_at", array("q", times))
    else:
        with pytest.raises(BadBatch, match="not between 1970 and 9999"):
            check_times("born_at", array("q", times))
