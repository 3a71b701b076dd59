"""Messages to send are made and taken apart by what is compiled as by Python; see also test_native."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch import native
from rmq.wire.model import Message, column, gather, gather_any

COMPILED: list[ModuleType] = [] if native.native is None else [native.native]


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


kinds = st.sampled_from([{}, {"tag": "t"}, {"keys": ("a", "b")}, {"properties": {"a": "b"}}, {"delay_level": 2}])


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
