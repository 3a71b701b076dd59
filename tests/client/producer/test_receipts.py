"""Receipts are made when looked at, whatever part of which batch a message lies in."""

from __future__ import annotations

import pytest

from rmq.client.producer.receipts import Part, Receipts, SendStatus
from rmq.wire.batch.batch import split_message_id

PARTS = [
    Part(3, 100, 4096, 0, 1_700_000_000_000_000, True),
    Part(2, 103, 8192, 5, 1_700_000_000_000_001, False),
]


@pytest.fixture
def receipts() -> Receipts:
    return Receipts("orders", 2, 7, PARTS)


def test_each_message_has_its_own_place(receipts: Receipts) -> None:
    assert len(receipts) == 5
    assert [receipt.queue_offset for receipt in receipts] == [100, 101, 102, 103, 104]
    assert [split_message_id(receipt.message_id) for receipt in receipts] == [
        (7, 4096, 0), (7, 4096, 1), (7, 4096, 2), (7, 8192, 5), (7, 8192, 6),
    ]  # fmt: skip
    assert [receipt.durable for receipt in receipts] == [True, True, True, False, False]
    assert {(receipt.topic, receipt.queue_id, receipt.status) for receipt in receipts} == {
        ("orders", 2, SendStatus.SEND_OK)
    }


def test_they_are_indexed_and_sliced_like_a_list(receipts: Receipts) -> None:
    everything = list(receipts)

    for i in range(-5, 5):
        assert receipts[i] == everything[i]
    assert receipts[1:4] == everything[1:4]
    assert receipts[::-2] == everything[::-2]
    for i in (5, -6):
        with pytest.raises(IndexError, match="there are 5 receipts"):
            receipts[i]


def test_none_is_made_before_it_is_looked_at(receipts: Receipts) -> None:
    assert receipts[0] is not receipts[0]
    assert receipts[0] == receipts[0] != receipts[1]
    assert len({receipts[0], receipts[0], receipts[1]}) == 2
    assert receipts[0] != "a receipt"
    assert "5 messages in orders/2" in repr(receipts)
    assert "orders/2 offset 103" in repr(receipts[3]) and "not yet durable" in repr(receipts[3])


def test_no_parts_are_no_receipts() -> None:
    assert list(Receipts("orders", 0, 7, [])) == []


def test_a_delayed_message_has_an_id_and_no_offset_yet() -> None:
    receipts = Receipts("orders", 2, 7, [Part(2, 100, 4096, 0, 0, True), Part(2, -1, 8192, 3, 0, True)])

    assert [receipt.queue_offset for receipt in receipts] == [100, 101, -1, -1]
    assert [receipt.is_deferred for receipt in receipts] == [False, False, True, True]
    assert [split_message_id(receipt.message_id)[1:] for receipt in receipts[2:]] == [(8192, 3), (8192, 4)]
    assert "orders/2 delayed, " in repr(receipts[3])
