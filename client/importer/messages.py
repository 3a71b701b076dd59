"""
A RocketMQ message as a message of ours. Pure.

Body, tag, keys and the user's properties are kept as they are. What has no field here becomes a property that begins
with ``ROCKETMQ_``: RocketMQ's own properties under their names, and ``OFFSET_ID``, ``STORE_TIME``, ``FLAG`` and
``RECONSUME_TIMES`` of the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from rmq.wire.batch.layout import MAX_TAG, MAX_TIME
from rmq.wire.model import Message
from rmq.wire.rocketmq.record import Record

PREFIX: Final = "ROCKETMQ_"
OFFSET_ID: Final = PREFIX + "OFFSET_ID"
STORE_TIME: Final = PREFIX + "STORE_TIME"
TAGS: Final = "TAGS"
KEYS: Final = "KEYS"

OWN_NAMES: Final = frozenset(
    {
        "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET",
        "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME",
        "MSG_REGION", "TRACE_ON", "UNIQ_KEY", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT",
        "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE", "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
    }
)  # fmt: skip
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = MAX_TIME // 1000 - 1


def message_of(record: Record, body: bytes, topic: str, due_ms: int | None = None) -> Message:
    """The message to send to ``topic`` for a record, with the body that consumers saw; ``due_ms`` if it has to wait."""
    tag, keys = _tag(record.properties), _keys(record.properties)
    properties = _properties(record.properties)
    if tag is not None:
        del properties[PREFIX + TAGS]
    if keys:
        del properties[PREFIX + KEYS]
    properties[OFFSET_ID] = record.offset_id
    properties[STORE_TIME] = str(record.stored_at)
    if born_us(record) != record.born_at * 1000:
        properties[PREFIX + "BORN_TIME"] = str(record.born_at)
    if record.flag:
        properties[PREFIX + "FLAG"] = str(record.flag)
    if record.reconsume_times:
        properties[PREFIX + "RECONSUME_TIMES"] = str(record.reconsume_times)
    deliver_at = None if due_ms is None else _EPOCH + timedelta(milliseconds=min(max(due_ms, 0), _LAST_MS))
    return Message(topic, body, tag=tag, keys=keys, properties=properties, deliver_at=deliver_at)


def born_us(record: Record) -> int:
    """When its producer made a message, in microseconds, as far as a calendar can tell."""
    return min(max(record.born_at, 0), _LAST_MS) * 1000


def identity(properties: Mapping[str, str]) -> str | None:
    """What names the record that an imported message was made of; None of one that was not imported."""
    offset_id, stored_at = properties.get(OFFSET_ID), properties.get(STORE_TIME)
    return f"{offset_id} {stored_at}" if offset_id and stored_at else None


def identity_of(record: Record) -> str:
    """The same of a record itself."""
    return f"{record.offset_id} {record.stored_at}"


def _tag(properties: Mapping[str, str]) -> str | None:
    """The tag, if it can be one here; else it stays a property."""
    tag = properties.get(TAGS)
    if tag is None or "|" in tag or any(c.isspace() for c in tag) or len(tag.encode()) > MAX_TAG:
        return None
    return tag


def _keys(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The keys, if they can be such here; else they stay a property."""
    keys = [key for key in properties.get(KEYS, "").split(" ") if key]
    return () if any(c.isspace() for key in keys for c in key) else tuple(keys)


def _properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Those of the user as they are, RocketMQ's own behind the prefix, and so one that only looks like ours."""
    return {
        (f"{PREFIX}USER_{name}" if name.startswith(PREFIX) else PREFIX + name if name in OWN_NAMES else name): value
        for name, value in properties.items()
    }
