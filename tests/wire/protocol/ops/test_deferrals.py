"""The shapes of delays: fields that never move, drawn in the document, and back from the wire."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.errors import BadRequest
from rmq.wire.protocol.codec import decode
from rmq.wire.protocol.ops import deferrals
from rmq.wire.protocol.ops.deferrals import DelayPage, DelayRow, ListDelays

from rigs.batches import quick

DOCUMENT = Path(__file__).parents[4] / "docs" / "protocol.md"

# Fields may be added at the end, with a default; never moved, renamed or taken away.
FIELDS = {
    "DelayPage": "batches messages rows next_due_at=0 next_position=0 is_last=True",
    "DelayRow": "due_at position topic queue_id delay_level messages parked_at message_id",
    "ListDelays": "due_at=0 position=0 limit=100 topic=None",
}
SHAPES: dict[str, Any] = {
    name: kind for name, kind in inspect.getmembers(deferrals, inspect.isclass) if hasattr(kind, "_fields")
}


def described(kind: Any) -> str:
    defaults = kind._field_defaults
    return " ".join(f"{name}={defaults[name]!r}" if name in defaults else name for name in kind._fields)


def test_fields_keep_their_places_and_defaults() -> None:
    assert {name: described(kind) for name, kind in SHAPES.items()} == FIELDS


@pytest.mark.parametrize("name", FIELDS)
def test_every_shape_is_documented_field_by_field(name: str) -> None:
    (drawn,) = re.findall(rf"^{name} +(\[.*(?:\n  .*)*)", DOCUMENT.read_text(), re.MULTILINE)
    hints = get_type_hints(SHAPES[name])
    plain = [field for field, hint in hints.items() if get_origin(hint) not in (list, dict)]

    assert re.findall(r"\b([a-z_]+) (?:str|int|bool|float|bin)\b", drawn)[: len(plain)] == plain


numbers = st.integers(-1, (1 << 63) - 1)
texts = st.text(max_size=5)
rows = st.builds(DelayRow, numbers, numbers, texts, numbers, numbers, numbers, numbers, texts)
payloads: st.SearchStrategy[Any] = st.one_of(
    st.builds(ListDelays, numbers, numbers, numbers, st.none() | texts),
    st.builds(DelayPage, numbers, numbers, st.lists(rows, max_size=2), numbers, numbers, st.booleans()),
    rows,
)


@quick
@given(payloads)
def test_every_payload_comes_back(payload: Any) -> None:
    assert decode(type(payload), msgpack.unpackb(msgpack.packb(payload))) == payload


@pytest.mark.parametrize("shape", [DelayPage, DelayRow])
def test_an_empty_payload_is_refused_where_something_is_needed(shape: Any) -> None:
    with pytest.raises(BadRequest, match=f"{shape.__name__}: {shape._fields[0]} is missing"):
        decode(shape, [])


def test_an_empty_payload_lists_from_the_first_delay_on() -> None:
    assert decode(ListDelays, []) == ListDelays(0, 0, 100, None)
