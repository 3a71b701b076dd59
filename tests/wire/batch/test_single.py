"""A batch of one plain message is the one that the general way makes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from rmq.wire.batch import layout
from rmq.wire.batch.batch import OLDEST, SMALL, ProducerMark, Rows, encode, encode_single

MARKS = st.builds(
    ProducerMark, st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 16) - 1)
)


@given(
    st.text(max_size=30).filter(lambda text: len(text.encode(errors="ignore")) == len(text.encode(errors="replace"))),
    st.integers(0, (1 << 32) - 1),
    st.binary(max_size=60),
    st.integers(OLDEST, layout.MAX_TIME - 1),
    MARKS,
)
@example("orders", 3, bytes(SMALL), OLDEST, ProducerMark(1, 2, 3))
@example("orders", 3, bytes(SMALL + 1), OLDEST, ProducerMark(1, 2, 3))
def test_it_has_the_same_bytes(topic: str, queue_id: int, body: bytes, born_at: int, by: ProducerMark) -> None:
    parts = encode_single(topic, queue_id, body, born_at, by)

    assert b"".join(parts) == encode(topic, queue_id, Rows([body], born_at), by=by)


def test_a_long_body_is_not_copied() -> None:
    body = bytes(SMALL + 1)

    assert encode_single("orders", 0, body, OLDEST, ProducerMark())[1] is body
