"""Messages made a few at a time are the messages of the batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmq.consumer.fetch.process_queue import UnreadBatch
from rmq.consumer.group.tag_filter import Subscription
from rmq.wire.batch import batch
from rmq.wire.batch.compression import CODECS, Codec
from rmq.wire.stores import StoreIds

from support.batches import FULL, STORE_ID, any_rows, quick, stamped


@quick
@given(any_rows(), st.integers(995, 1010), st.integers(1, 4), st.sampled_from([None, CODECS.by_name("zlib")]))
def test_reading_in_pieces_gives_what_reading_at_once_gives(
    rows: batch.Rows, from_offset: int, most: int, codec: Codec | None
) -> None:
    rows = rows._replace(bodies=[body * 20 for body in rows.bodies])
    whole = batch.read(stamped(batch.encode("orders", 2, rows, codec=codec)), stores=StoreIds(STORE_ID))
    unread = UnreadBatch(whole, from_offset)
    expected = whole.messages(from_offset)
    assert max(unread.left, 0) == len(expected)

    made = []
    while unread.left > 0:
        made += unread.read(most, Subscription())

    assert [(m.queue_offset, m.body, m.tag, m.keys) for m in made] == [
        (m.queue_offset, m.body, m.tag, m.keys) for m in expected
    ]
    assert unread.end_offset == 1000 + len(rows.bodies)


def test_only_wanted_messages_are_made_and_carry_their_deliveries() -> None:
    whole = batch.read(stamped(batch.encode("orders", 2, FULL)), stores=StoreIds(STORE_ID))
    unread = UnreadBatch(whole, 0)

    (message,) = unread.read(10, Subscription("bezahlt-€"))

    assert (message.queue_offset, message.attempt) == (1002, 65536)
    assert unread.left == 0
