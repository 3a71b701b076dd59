"""
Converts messages of RocketMQ, their names and their bodies to ours. Pure.

Body, tag, keys and the user's properties are kept. What has no field here becomes a property that begins with
``ROCKETMQ_``: RocketMQ's own properties under their names, and ``OFFSET_ID``, ``STORE_TIME``, ``FLAG`` and
``RECONSUME_TIMES`` of the record.

A topic keeps its name. Here only the broker writes to ``%RETRY%group`` and ``%DLQ%group``, so their messages go to the
plain topics ``RETRY-group`` and ``DLQ-group`` (in the namespace of the group, if it has one).

Bodies are those that consumers of RocketMQ see: decompressed if the producer had compressed them. **Decompression is
bounded**: no body becomes more than ``limit`` bytes (and one), whatever its bytes say.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Final

from rmq.wire.batch.hashing import shard
from rmq.wire.batch.layout import MAX_TAG, MAX_TIME
from rmq.wire.errors import BadName
from rmq.wire.model import Message
from rmq.wire.names import check_group, check_topic
from rmq.wire.rocketmq.record import COMPRESSED, BadRecord, Record

from .store_files import BadStore

PREFIX: Final = "ROCKETMQ_"
OFFSET_ID: Final = PREFIX + "OFFSET_ID"
STORE_TIME: Final = PREFIX + "STORE_TIME"
TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
SHARDING: Final = "__SHARDINGKEY"
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


def message_of(
    record: Record, body: bytes, topic: str, due_ms: int | None = None, *, key: str | None = None
) -> Message:
    """
    The message to send to ``topic`` for a record, with the body that consumers saw; ``due_ms`` if it has to wait.

    ``key`` is the one of :func:`key_of`.
    """
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
    return Message(topic, body, key=key, tag=tag, index_keys=keys, properties=properties, deliver_at=deliver_at)


def key_of(properties: Mapping[str, str], queue_id: int, shards: int) -> str | None:
    """
    Return the key that RocketMQ ordered a message by, if it leads to its queue here, too; else None.

    A producer there may have chosen the queue in another way. Then the key stays a property alone: as the key of the
    message it would lead those who send the message again to another queue.
    """
    key = properties.get(SHARDING)
    return key if key and shard(key, shards) == queue_id else None


def born_us(record: Record) -> int:
    """Return when its producer made a message, in microseconds, within the range of the calendar."""
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
    """Return the user's properties as they are, and RocketMQ's own, or those that look like ours, with a prefix."""
    return {
        (f"{PREFIX}USER_{name}" if name.startswith(PREFIX) else PREFIX + name if name in OWN_NAMES else name): value
        for name, value in properties.items()
    }


SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
HALF: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
RETRY_PREFIX: Final = "%RETRY%"
DEAD_PREFIX: Final = "%DLQ%"
GROUP_PREFIXES: Final = (RETRY_PREFIX, DEAD_PREFIX)
_SYSTEM: Final = frozenset(
    {
        SCHEDULE, HALF, "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT", "TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "DefaultCluster_REPLY_TOPIC",
    }
)  # fmt: skip
_SYSTEM_PREFIX: Final = "rmq_sys_"
_REPLIES: Final = "_REPLY_TOPIC"
SYSTEM_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
    }
)  # fmt: skip
_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


def is_system_topic(name: str, clusters: Iterable[str] = ()) -> bool:
    """Whether RocketMQ keeps a topic for itself; ``clusters`` are the names whose reply topics are such."""
    if name in _SYSTEM or name.startswith(_SYSTEM_PREFIX):
        return True
    return name.endswith(_REPLIES) and name.removesuffix(_REPLIES) in clusters


def is_system_group(name: str) -> bool:
    """Whether RocketMQ keeps a group for itself."""
    return name in SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIX)


def new_topic(old: str, mapping: Mapping[str, str]) -> str:
    """
    The topic here that messages of an old one go to.

    Raises:
        BadName: that is no name for a topic here; the sentence says what to do.
    """
    name = mapping.get(old) or _plain(old)
    try:
        check_topic(name)
    except BadName as error:
        raise BadName(f"{error}: choose another one with --map '{old}=NAME', or leave the topic out") from error
    return name


def new_group(old: str, mapping: Mapping[str, str]) -> str:
    """
    The group here that goes on where an old one was.

    Raises:
        BadName: that is no name for a group here; the sentence says what to do.
    """
    name = mapping.get(old, old)
    try:
        check_group(name)
    except BadName as error:
        raise BadName(f"{error}: choose another one with --map-group '{old}=NAME'") from error
    return name


def _plain(old: str) -> str:
    for prefix, word in ((RETRY_PREFIX, "RETRY"), (DEAD_PREFIX, "DLQ")):
        if old.startswith(prefix):
            namespace, separator, group = old.removeprefix(prefix).rpartition("%")
            return f"{namespace}{separator}{word}-{group}"
    return old


CODEC_BITS: Final = 0x700
_CODECS: Final = {0x000: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}
_ZSTD_WINDOW: Final = 64 << 20
_STEP: Final = 256  # of zstd: so few bytes unpack to some MiB at most
Load = Callable[[str], Any]
Unpack = Callable[[bytes, int], bytes]


class BodyTooLarge(Exception):
    """A body that unpacks to more than a message of ours may have."""


def content(record: Record, limit: int, load: Load = import_module) -> bytes:
    """
    The body of a message as its producer was given it.

    Raises:
        BodyTooLarge: it has more than ``limit`` bytes.
        BadRecord: it cannot be unpacked.
        BadStore: it is compressed with a codec whose package is not installed.
    """
    if not record.sysflag & COMPRESSED:
        if len(record.body) > limit:
            raise BodyTooLarge(f"has a body of {len(record.body)} bytes, and a message here has at most {limit}")
        return record.body
    name = _CODECS.get(record.sysflag & CODEC_BITS)
    if name is None:
        raise BadRecord(f"is compressed in an unknown way (sysflag {record.sysflag:#x})")
    try:
        unpack = _UNPACKERS[name](load)
    except ImportError as error:
        text = f"the store holds bodies compressed with {name}: pip install 'rmq[{name}]' to read them"
        raise BadStore(text) from error
    try:
        body = unpack(record.body, limit)
    except MemoryError:
        raise
    except Exception as error:  # each package has errors of its own
        raise BadRecord(f"has a body that is not {name}: {error}") from error
    if len(body) > limit:
        raise BodyTooLarge(f"has a body that unpacks to more than {limit} bytes, which a message here may have")
    return body


def _zlib(_load: Load) -> Unpack:
    def unpack(packed: bytes, limit: int) -> bytes:
        stream = zlib.decompressobj()
        raw = stream.decompress(packed, limit + 1)
        if len(raw) <= limit and not stream.eof:
            raise ValueError("the stream is cut off")
        return raw

    return unpack


def _lz4(load: Load) -> Unpack:
    frame = load("lz4.frame")

    def unpack(packed: bytes, limit: int) -> bytes:
        stream = frame.LZ4FrameDecompressor()
        raw: bytes = stream.decompress(packed, max_length=limit + 1)
        while not stream.eof and len(raw) <= limit:
            more = stream.decompress(b"", max_length=limit + 1 - len(raw))
            if not more:
                raise ValueError("the frame is cut off")
            raw += more
        return raw

    return unpack


def _zstd(load: Load) -> Unpack:
    zstandard = load("zstandard")

    def unpack(packed: bytes, limit: int) -> bytes:
        stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
        raw = bytearray()
        for at in range(0, len(packed), _STEP):
            raw += stream.decompress(packed[at : at + _STEP])
            if stream.eof or len(raw) > limit:
                return bytes(raw)
        raise ValueError("the frame is cut off")

    return unpack


_UNPACKERS: Final[dict[str, Callable[[Load], Unpack]]] = {"zlib": _zlib, "lz4": _lz4, "zstd": _zstd}
