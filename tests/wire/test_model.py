"""Values that users make and get."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch import batch, layout
from rmq.wire.deferral import Delay
from rmq.wire.model import ConsumeStatus, Message, MessageQueue, from_us
from rmq.wire.stores import MAX_LOG_EPOCH, StoreIds

from rigs.batches import BORN_AT, FULL, STAMP, STORE_ID, sample, stamped
from rigs.stored import stored_message


def test_a_queue_reads_as_topic_and_number() -> None:
    assert str(MessageQueue("orders", 3)) == "orders/3"


def test_a_message_needs_topic_and_body_only() -> None:
    message = Message("orders", b"paid")

    assert (message.tag, message.index_keys, message.properties) == (None, (), {})


def test_messages_do_not_share_their_properties() -> None:
    assert Message("orders", b"").properties is not Message("orders", b"").properties


@pytest.mark.parametrize(
    ("fields", "error", "why"),
    [
        ({"body": "text"}, TypeError, "body must be bytes, not str"),
        ({"body": bytearray(b"x")}, TypeError, "body must be bytes, not bytearray"),
        ({"index_keys": "o-17"}, TypeError, r"index_keys must be a tuple of texts: \('o-17',\)"),
        ({"index_keys": ("",)}, ValueError, "empty or holds white space"),
        ({"index_keys": ("a", "b c")}, ValueError, "'b c' is empty or holds white space"),
        ({"index_keys": ("a\t",)}, ValueError, "empty or holds white space"),
        ({"tag": 5}, TypeError, "the tag 5 must be a text"),
        ({"tag": ""}, ValueError, "the tag '' is empty"),
        ({"tag": "a|b"}, ValueError, "the tag 'a|b'"),
        ({"tag": "a b"}, ValueError, "the tag 'a b'"),
        ({"tag": "t" * 256}, ValueError, "'tttttttttttttttttttt'... has 256 bytes: at most 255"),
        ({"tag": "ö" * 128}, ValueError, "has 256 bytes"),
        ({"properties": {"": "x"}}, ValueError, "the name of a property is empty"),
        ({"properties": {"a": 1}}, TypeError, "the property 'a' must have a text"),
        ({"properties": {1: "a"}}, TypeError, "the property 1 must have a text"),
        ({"delay_level": -1}, ValueError, "delay_level must be 1 to 65535"),
        ({"delay_s": -1}, ValueError, "delay_s must be 0 or more"),
        ({"deliver_at": "noon"}, TypeError, "deliver_at must be a datetime"),
        ({"delay_s": 1, "delay_level": 1}, ValueError, "give one of"),
    ],
)
def test_what_cannot_be_sent_is_refused_when_it_is_made(
    fields: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        Message(**{"topic": "orders", "body": b"", **fields})


def test_a_full_message_is_accepted() -> None:
    message = Message("orders", b"x", tag="paid", index_keys=("a", "größe"), properties={"trace": ""})

    assert (message.tag, message.index_keys, message.properties) == ("paid", ("a", "größe"), {"trace": ""})


def test_a_message_knows_what_its_delay_comes_to_also_when_it_is_changed() -> None:
    message = Message("orders", b"", delay_level=3)

    assert (message.delay, Message("orders", b"").delay) == (Delay(level=3), None)
    assert replace(message, delay_level=0, delay_s=1.5).delay == Delay(after_us=1_500_000)
    assert replace(message, delay_level=0).delay is None
    assert message != Message("orders", b"")


def test_a_copy_tells_the_id_of_what_it_was_copied_from() -> None:
    """A batch that was delayed is copied as a whole; a dead letter is a message alone, from anywhere in a batch."""
    original = batch.read(sample(), stores=StoreIds(STORE_ID))
    whole = STAMP._replace(physical_offset=8192, origin=batch.handle(STAMP.physical_offset, 0))
    delayed = batch.read(stamped(sample(), whole), stores=StoreIds(STORE_ID))
    alone = whole._replace(origin=batch.handle(STAMP.physical_offset, 2))
    copied = batch.read(
        stamped(batch.encode("orders", 0, batch.Rows([b"x"], BORN_AT)), alone), stores=StoreIds(STORE_ID)
    )

    ids = [message.message_id for message in original.messages()]
    assert [message.copy_of for message in original.messages()] == [None] * 3
    assert [message.copy_of for message in delayed.messages()] == ids
    assert not set(ids) & {message.message_id for message in delayed.messages()}
    assert [message.copy_of for message in copied.messages()] == ids[2:]


def test_a_message_that_waits_for_its_time_has_no_offset_yet() -> None:
    parked = STAMP._replace(kind=layout.KIND_PARKED, base_offset=BORN_AT)
    (message,) = batch.read(
        stamped(batch.encode("orders", 2, batch.Rows([b"x"], BORN_AT), delay_level=1), parked),
        stores=StoreIds(STORE_ID),
    ).messages()

    assert (message.queue_offset, message.copy_of) == (-1, None)


def test_a_received_message_tells_everything_about_itself() -> None:
    messages = batch.read(sample(), stores=StoreIds(STORE_ID)).messages()
    last = messages[2]

    assert (last.topic, last.queue_id, last.queue_offset) == ("orders", 2, STAMP.base_offset + 2)
    assert last.message_id == "0123456789abcdef" + f"{(4096 // 8) << 12 | 2:016x}"
    assert (last.body, last.tag, last.index_keys) == (b"paid \x00\xff", "bezahlt-€", ("o-17", "größe"))
    assert (last.key, last.properties) == ("😀", {"trace": "", "währung": "€"})
    assert last.born_at == datetime(2023, 11, 14, 22, 13, 20, 2, UTC)
    assert last.stored_at == datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC)
    assert last.attempt == 1 + 65535, "deliveries before the batch was made count, as for consumers and Spark"
    assert repr(last) == "<StoredMessage orders/2 offset 1002, 7 bytes>"


@pytest.mark.parametrize("log_epoch", [1, 27_000_000, MAX_LOG_EPOCH])
def test_a_received_message_has_the_log_epoch_of_its_batch_also_when_it_is_copied(log_epoch: int) -> None:
    read = batch.read(stamped(sample(), STAMP._replace(log_epoch=log_epoch)), stores=StoreIds(STORE_ID))
    first, *_, last = [*read.messages(), *read.pick([0, 2])]

    assert (first.log_epoch, last.log_epoch) == (log_epoch, log_epoch)
    assert [other.log_epoch for other in (copy.copy(last), copy.deepcopy(last))] == [log_epoch, log_epoch]
    assert pickle.loads(pickle.dumps(last)).log_epoch == log_epoch


def test_properties_are_the_callers_own() -> None:
    (first, *_) = batch.read(sample(), stores=StoreIds(STORE_ID)).messages()

    first.properties["trace"] = "changed"

    assert FULL.properties is not None
    assert first.properties == FULL.properties[0]


@pytest.mark.parametrize(
    ("us", "moment"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (BORN_AT + 1, datetime(2023, 11, 14, 22, 13, 20, 1, UTC)),
        (layout.MAX_TIME - 1, datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)),
    ],
)
def test_microseconds_are_exact(us: int, moment: datetime) -> None:
    assert from_us(us) == moment


def test_a_listener_answers_by_name() -> None:
    assert {status.name for status in ConsumeStatus} >= {"SUCCESS", "SUSPEND", "COMMIT", "ROLLBACK"}


@pytest.mark.parametrize(
    ("topic", "properties", "shown"),
    [
        ("orders", {}, "orders"),
        ("orders", {"RMQ_ORIGIN_TOPIC": "other"}, "orders"),
        ("%RETRY%billing", {"RMQ_ORIGIN_TOPIC": "orders"}, "orders"),
        ("%RETRY%billing", {}, "%RETRY%billing"),
        ("%DLQ%billing", {"RMQ_ORIGIN_TOPIC": "orders"}, "%DLQ%billing"),
    ],
)
def test_a_message_that_is_tried_again_shows_the_topic_of_its_original(
    topic: str, properties: dict[str, str], shown: str
) -> None:
    rows = batch.Rows([b"x"], BORN_AT, properties=[properties])
    stored = batch.read(stamped(batch.encode(topic, 0, rows)), stores=StoreIds(STORE_ID))

    assert stored.pick([0])[0].topic == shown
    assert stored.pick([0])[0].stored_topic == topic


def test_only_a_message_that_was_put_off_says_when_it_is_due() -> None:
    parked = stored_message("orders", position=8, due_at=BORN_AT)
    stored = stored_message("orders", offset=7, position=8)

    assert (parked.due_at, parked.queue_offset) == (from_us(BORN_AT), -1)
    assert (stored.due_at, stored.queue_offset) == (None, 7)


def test_a_message_cannot_be_changed() -> None:
    message = Message("orders", b"paid")

    with pytest.raises(FrozenInstanceError):
        message.body = b"not paid"  # type: ignore[misc]  # also told by whoever checks types
    with pytest.raises(FrozenInstanceError):
        del message.tag
    assert Message.__dataclass_params__.frozen, "what is read by tools that look at dataclasses"  # type: ignore[attr-defined]


def test_a_message_survives_being_pickled_and_copied() -> None:
    message = Message("orders", b"paid", tag="a", index_keys=("k",), properties={"n": "v"}, delay_level=3)

    for again in (pickle.loads(pickle.dumps(message)), copy.copy(message)):
        assert again == message
        assert (again.delay, again.extras) == (message.delay, message.extras) == (Delay(level=3), 15)


def test_a_message_is_of_one_class_only() -> None:
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Mine", (Message,), {})


@pytest.mark.parametrize("key", [5, b"k", None])
def test_a_key_that_is_no_text_is_refused(key: object) -> None:
    with pytest.raises(TypeError, match="must be a text"):
        Message("orders", b"paid", index_keys=(key,))  # type: ignore[arg-type]


@given(st.text(min_size=1, max_size=5))
def test_white_space_of_any_kind_is_refused_in_keys_and_tags(text: str) -> None:
    if any(character.isspace() for character in text):
        for more in ({"index_keys": (text,)}, {"tag": text}):
            with pytest.raises(ValueError, match="white space"):
                Message("orders", b"paid", **more)  # type: ignore[arg-type]
    else:
        assert Message("orders", b"paid", index_keys=(text,)).index_keys == (text,)
