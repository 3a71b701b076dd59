"""
What is compiled does what Python does, or leaves it to Python; whatever it is given, it does no harm.

Where nothing could be compiled, the rules are those of the Python code alone.

Messages to send are made and taken apart by what is compiled as by Python; see also test_native.
"""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
import time
import zlib
from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch import batch as batches
from rmq.wire.batch import native
from rmq.wire.batch.batch import Rows, messages_in_line
from rmq.wire.batch.texts import pack_any_bodies, pack_any_codes, pack_any_keys, pack_bodies, pack_codes, pack_keys
from rmq.wire.errors import BadBatch
from rmq.wire.model import Message, StoredMessage, column, gather, gather_any
from rmq.wire.stores import StoreIds

from rigs.batches import STAMP, STORE_ID, sample, stamped

COMPILED: list[ModuleType] = [] if native.native is None else [native.native]
MAKERS: list[Callable[..., Any]] = [messages_in_line]
MAKERS += [lambda *args, module=module: module.make_messages(StoredMessage, *args) for module in COMPILED]


def test_it_is_told_which_of_the_two_does_the_work() -> None:
    assert ("C" if COMPILED else "Python") == native.MADE_BY


# ---- bodies

bodies_of = st.lists(st.binary(max_size=200), max_size=30)


@given(bodies_of)
def test_bodies_are_joined_as_python_does(bodies: list[bytes]) -> None:
    made, expected = pack_bodies(bodies), pack_any_bodies(bodies)

    assert (made.count, made.lengths, b"".join(made.pieces), made.size) == (
        expected.count, expected.lengths, b"".join(expected.pieces), expected.size
    )  # fmt: skip


class Odd(bytes):
    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    "bodies",
    [
        (b"a", b"b"),
        [b"a", bytearray(b"b")],
        [b"a", memoryview(b"b")],
        [b"a", Odd(b"bcd")],
        (body for body in [b"a"]),
        None,
    ],
)
def test_bodies_of_another_kind_are_left_to_python(bodies: Any) -> None:
    assert [module.join_bodies(bodies) for module in COMPILED] == [None] * len(COMPILED)


@pytest.mark.parametrize("wrong", ["text", None, 7])
def test_a_body_that_is_none_is_named(wrong: object) -> None:
    with pytest.raises(TypeError, match=f"a body must be bytes, not {type(wrong).__name__}"):
        pack_bodies([b"right", wrong])  # type: ignore[list-item]


# ---- keys


def test_texts_that_are_shorter_than_their_lengths_are_not_hashed() -> None:
    for module in COMPILED:
        with pytest.raises(ValueError, match="shorter than their lengths"):
            module.hash_texts(b"abc", array("I", [1, 3]))
        with pytest.raises(TypeError):
            module.hash_texts(bytearray(b"abc"), array("I", [3]))
        assert module.hash_texts(b"", array("I")) == b""


keys_of = st.lists(
    st.tuples(st.text(st.characters(max_codepoint=0x2FF, exclude_characters=" "), min_size=1)), min_size=1
)


@given(keys_of)
def test_keys_are_packed_as_python_does(rows: list[tuple[str, ...]]) -> None:
    assert pack_keys(rows) == pack_any_keys(rows)
    (lengths, blob), hashes = pack_keys(rows)
    assert array("I", lengths).tolist() == [len(key.encode()) for (key,) in rows]
    assert blob == "".join(key for (key,) in rows).encode()
    assert array("I", hashes).tolist() == [zlib.crc32(key.encode()) for (key,) in rows]


@pytest.mark.parametrize(
    "rows",
    [
        [("a",), ("b", "c")], [("a",), ()], [["a"]], (("a",),), [("",)], [("a b",)], [("\xe4",)], [(b"a",)],
        [None], None
    ],
)  # fmt: skip
def test_keys_of_another_kind_are_left_to_python(rows: Any) -> None:
    assert [module.pack_keys(rows) for module in COMPILED] == [None] * len(COMPILED)


@pytest.mark.parametrize("key", ["", "a b", " "])
def test_a_key_that_is_not_allowed_is_refused(key: str) -> None:
    with pytest.raises(BadBatch, match="an index key is empty or holds a space"):
        batches.encode("orders", 0, Rows([b"1", b"2"], 1, index_keys=[("good",), (key,)]))


# ---- codes

CODES = {None: 0, "": 0, "paid": 1, "\xe4": 2, "last": 65535}


@given(st.lists(st.sampled_from(list(CODES))))
def test_codes_are_packed_as_python_does(values: list[str | None]) -> None:
    assert pack_codes(values, CODES) == pack_any_codes(values, CODES)
    codes = array("H", pack_codes(values, CODES))
    assert codes.tolist() == [CODES[value] for value in values]
    for module in COMPILED:
        assert module.highest(codes) == max(codes, default=0)


class Text(str):
    pass


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        (("paid",), CODES), (["other"], CODES), ([Text("paid")], CODES), ([["paid"]], CODES), ([1], {1: 1}),
        (["a"], {"a": 65536}), (["a"], {"a": -1}), (["a"], {"a": 1 << 70}), (["a"], {"a": "1"}), (["a"], []),
        (None, CODES),
    ],
)  # fmt: skip
def test_codes_of_another_kind_are_left_to_python(values: Any, codes: Any) -> None:
    assert [module.pack_codes(values, codes) for module in COMPILED] == [None] * len(COMPILED)


@pytest.mark.parametrize("change", [list.clear, lambda values: values.extend(["a"] * 10_000)])
def test_a_list_that_changes_while_it_is_read_does_no_harm(change: Callable[[list[str]], None]) -> None:
    class Key:
        def __hash__(self) -> int:
            return hash("a")

        def __eq__(self, other: object) -> bool:
            change(values)
            return False

    values: list[str] = []
    codes = {Key(): 1, "b": 2, "a": 3}
    for module in COMPILED:
        values[:] = ["a", "b", "a"]
        assert module.pack_codes(values, codes) in (None, bytes((3, 0, 2, 0, 3, 0)))


def test_a_value_without_a_code_is_an_error() -> None:
    with pytest.raises(KeyError):
        pack_codes(["paid", "other"], CODES)


# ---- lengths


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=50))
def test_lengths_are_added_up_and_zeros_counted(numbers: list[int]) -> None:
    for module in COMPILED:
        assert module.tally(array("I", numbers)) == (sum(numbers), numbers.count(0))


def test_what_is_no_column_is_refused() -> None:
    for module in COMPILED:
        for function in (module.tally, module.highest):
            for wrong in (b"123", memoryview(bytes(9))[1:]):
                with pytest.raises(ValueError, match="whole numbers"):
                    function(wrong)
            with pytest.raises(TypeError):
                function("text")


# ---- messages


@pytest.mark.parametrize("make", MAKERS)
@given(bodies=bodies_of, data=st.data())
def test_messages_are_those_of_their_places(
    make: Callable[..., tuple[list[StoredMessage], int]], bodies: list[bytes], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(bodies)))
    end = data.draw(st.integers(start, len(bodies)))
    lengths, origin = array("I", map(len, bodies)), object()
    at = sum(lengths[:start])

    made, following = make(origin, b"".join(bodies), lengths, start, end, at)

    assert [(message.body, message._index, message.attempt) for message in made] == [
        (bodies[i], i, 1) for i in range(start, end)
    ]
    assert all(type(message) is StoredMessage and message._origin is origin for message in made)
    assert following == at + sum(lengths[start:end])


@pytest.mark.parametrize("make", MAKERS)
def test_messages_have_the_log_epoch_of_the_batch_they_lie_in(
    make: Callable[..., tuple[list[StoredMessage], int]],
) -> None:
    for log_epoch in (3, 27_000_000):
        read = batches.read(stamped(sample(), STAMP._replace(log_epoch=log_epoch)), stores=StoreIds(STORE_ID))
        made, _ = make(read._origin, read.bodies, read.columns.lengths, 0, read.header.count, 0)
        assert [message.log_epoch for message in made] == [log_epoch] * read.header.count


@pytest.mark.parametrize("make", MAKERS)
def test_messages_are_collected_like_any_other_object(make: Callable[..., tuple[list[StoredMessage], int]]) -> None:
    origin: list[object] = []
    lengths, bodies = array("I", [300] * 10), bytes(3000)
    before = sys.getrefcount(StoredMessage), sys.getrefcount(bodies)

    made, _ = make(origin, bodies, lengths, 0, 10, 0)
    assert all(gc.is_tracked(message) for message in made)
    assert sys.getrefcount(origin) == 2 + 10
    origin.append(made)  # a cycle
    del made
    gc.collect()
    origin.clear()
    gc.collect()

    assert sys.getrefcount(origin) == 2
    assert (sys.getrefcount(StoredMessage), sys.getrefcount(bodies)) == before


class Other:
    __slots__ = ("_index", "_origin", "attempt", "body")


class Inherited(Other):
    __slots__ = ()


class Mapped(dict[str, str]):
    __slots__ = ("_index", "_origin", "attempt", "body")


class Plain:
    body = _index = _origin = attempt = None


LENGTHS = array("I", [1, 2, 3])


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((Other, None, b"123456", LENGTHS, 0, 4, 0), ValueError),
        ((Other, None, b"123456", LENGTHS, 2, 1, 0), ValueError),
        ((Other, None, b"123456", LENGTHS, -1, 1, 0), ValueError),
        ((Other, None, b"123456", LENGTHS, 0, 3, 1), ValueError),
        ((Other, None, b"123456", LENGTHS, 0, 3, -1), ValueError),
        ((Other, None, b"123456", LENGTHS, 0, 3, 7), ValueError),
        ((Other, None, b"12345", LENGTHS, 0, 3, 0), ValueError),
        ((Other, None, b"123456", bytes(5), 0, 1, 0), ValueError),
        ((Other, None, bytearray(b"123456"), LENGTHS, 0, 3, 0), TypeError),
        ((Other, None, b"123456", None, 0, 3, 0), TypeError),
        ((Other, None, b"123456", LENGTHS, "0", 3, 0), TypeError),
        ((Other, None, b"123456", LENGTHS, 0, 3), TypeError),
        ((Inherited, None, b"123456", LENGTHS, 0, 3, 0), TypeError),
        ((Plain, None, b"123456", LENGTHS, 0, 3, 0), TypeError),
        ((object, None, b"123456", LENGTHS, 0, 3, 0), TypeError),
        ((Mapped, None, b"123456", LENGTHS, 0, 3, 0), TypeError),
        ((None, None, b"123456", LENGTHS, 0, 3, 0), TypeError),
        ((Other, None, b"123456", LENGTHS, 0, 1 << 70, 0), OverflowError),
    ],
)
def test_what_cannot_be_made_is_refused(args: tuple[Any, ...], error: type[Exception]) -> None:
    for module in COMPILED:
        with pytest.raises(error):
            module.make_messages(*args)


# ---- the clock


@pytest.mark.parametrize("module", [each for each in COMPILED if hasattr(each, "boottime")])
def test_the_clock_is_the_one_of_the_system(module: ModuleType) -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = module.boottime()
    after = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert before - 1e-6 <= now <= after + 1e-6


class OddBytes(bytes):
    def __len__(self) -> int:
        return 3


def by_python(*args: Any, **more: Any) -> Message:
    return Message.__new__(Message, *args, **more)


def told(message: Message) -> list[object]:
    """Every field, and of what kind it is: a 0 is not a False."""
    values = [getattr(message, of.name) for of in dataclasses.fields(message)]
    return [(type(value), value) for value in values]


@given(st.text(max_size=20), st.binary(max_size=200))
def test_a_message_with_nothing_but_a_body_is_made_as_python_does(topic: str, body: bytes) -> None:
    made = Message(topic, body)

    assert type(made) is Message
    assert told(made) == told(by_python(topic, body)) == told(Message(topic=topic, body=body))
    assert made.body is body


def test_each_message_has_properties_of_its_own() -> None:
    assert Message("orders", b"x").properties is not Message("orders", b"x").properties


def test_a_message_that_was_made_quickly_cannot_be_changed() -> None:
    message = Message("orders", b"x")

    with pytest.raises(dataclasses.FrozenInstanceError):
        message.body = b"y"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("args", "more"),
    [
        ((), {}),
        (("orders",), {}),
        (("orders", "text"), {}),
        (("orders", bytearray(b"x")), {}),
        (("orders", b"x"), {"tags": "t"}),
        (("orders", b"x"), {"body": b"y"}),
        (("orders", b"x", None, (), None, 0, None, None, 1), {}),
        (("orders", b"x", "a tag"), {}),
    ],
)
def test_what_is_no_message_is_refused_in_the_same_words(args: tuple[Any, ...], more: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as quick:
        Message(*args, **more)
    with pytest.raises((TypeError, ValueError)) as slow:
        by_python(*args, **more)

    assert (quick.type, str(quick.value)) == (slow.type, str(slow.value))


@pytest.mark.parametrize("body", [OddBytes(b"xyz"), b"x"])
@pytest.mark.parametrize("topic", ["orders", type("Text", (str,), {})("orders")])
def test_a_message_keeps_a_topic_and_a_body_of_another_class_as_they_are(topic: str, body: bytes) -> None:
    message = Message(topic, body)

    assert message.topic is topic
    assert message.body is body


def test_a_message_ends_with_what_refers_to_it_and_lets_go_of_what_it_held() -> None:
    body = bytes(1000)
    before = sys.getrefcount(body)

    messages = [Message("orders", body) for _ in range(1000)]
    held = sys.getrefcount(body)
    del messages

    assert (held, sys.getrefcount(body)) == (before + 1000, before)


def test_the_garbage_collector_does_not_look_at_a_message_that_was_made_quickly() -> None:
    assert gc.is_tracked(by_python("orders", b"x"))
    assert gc.is_tracked(Message("orders", b"x")) == (not COMPILED)


def test_a_second_class_of_messages_leaves_the_first_as_it_is() -> None:
    program = (
        "import importlib; from rmq.wire import model; First = model.Message\n"
        "importlib.reload(model); Second = model.Message\n"
        "for cls in (First, Second):\n"
        "    for made in (cls('orders', b'x'), cls('orders', b'x', tag='t')): assert type(made) is cls, cls\n"
        "    assert model.gather((cls('orders', b'x', tag='t'),)) == ([b'x'], 1)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


kinds = st.sampled_from(
    [{}, {"tag": "t"}, {"key": "k"}, {"index_keys": ("a", "b")}, {"properties": {"a": "b"}}, {"delay_level": 2}]
)


@given(st.lists(st.tuples(st.binary(max_size=20), kinds), min_size=1, max_size=30))
def test_messages_are_gathered_as_python_does(rows: list[tuple[bytes, dict[str, Any]]]) -> None:
    messages = tuple(Message("orders", body, **more) for body, more in rows)

    assert gather(messages) == gather_any(messages) == ([body for body, _ in rows], gather(messages)[1])


def test_topics_may_be_equal_without_being_the_same_text() -> None:
    messages = Message("orders", b"a"), Message("".join(["or", "ders"]), b"b")

    assert gather(messages) == ([b"a", b"b"], 0)


@pytest.mark.parametrize("gathering", [gather, gather_any])
def test_messages_of_two_topics_are_not_gathered(gathering: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match="one topic"):
        gathering((Message("orders", b"a"), Message("orders", b"b"), Message("bills", b"c")))


FIELDS = [of.name for of in dataclasses.fields(Message)]


@given(st.lists(kinds, max_size=30), st.sampled_from(FIELDS))
def test_a_field_of_messages_is_taken_as_python_does(rows: list[dict[str, Any]], field: str) -> None:
    messages = tuple(Message("orders", b"x", **more) for more in rows)

    expected = [getattr(message, field) for message in messages]
    assert column(messages, field) == column(list(messages), field) == expected


@pytest.mark.parametrize(
    "args", [([], "body"), ((Message("orders", b"a"), "b"), "body"), ((), "bodies"), ((), b"body"), ((),)]
)
@pytest.mark.parametrize("module", COMPILED)
def test_a_field_of_something_else_is_left_to_python(module: ModuleType, args: tuple[Any, ...]) -> None:
    assert module.message_column(*args) is None


def spoilt(**fields: object) -> Message:
    message = Message("orders", b"a")
    for name, value in fields.items():
        object.__setattr__(message, name, value)
    return message


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        [Message("orders", b"a")],
        (Message("orders", b"a"), "b"),
        (spoilt(extras=1 << 80),),
        (spoilt(extras=-1),),
        (spoilt(extras=None),),
        None,
    ],
)
@pytest.mark.parametrize("module", COMPILED)
def test_what_are_no_messages_is_left_to_python(module: ModuleType, wrong: object) -> None:
    assert module.gather_messages(wrong) is None


class Slots:
    __slots__ = ("body", "topic")


@pytest.mark.parametrize(
    "args", [(Slots, print), (Message,), (int, print), ("Message", print), (Message, 1), (Message, print, 1)]
)
@pytest.mark.parametrize("module", COMPILED)
def test_another_class_is_not_quickened_and_messages_are_made_on(module: ModuleType, args: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        module.quicken_messages(*args)

    assert told(Message("orders", b"x")) == told(by_python("orders", b"x"))
