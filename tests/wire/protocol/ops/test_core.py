"""Operations: numbers that never change, and the bytes of the frames every client needs first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch import batch
from rmq.wire.errors import BadRequest
from rmq.wire.protocol import frames, hello
from rmq.wire.protocol.codec import decode, decode_list
from rmq.wire.protocol.ops import core as ops
from rmq.wire.protocol.ops import messages
from rmq.wire.protocol.ops import topics as topic_ops
from rmq.wire.protocol.ops.core import EMPTY, NO_OFFSET, Op, Push

from rigs.batches import MARK, MINIMAL, golden, quick, sample
from rigs.shapes import DOCUMENT, check_documented, described, shapes_of

GOLDEN = Path(__file__).parents[2] / "golden"


def test_operations_keep_their_numbers() -> None:
    assert {op.name: op.value for op in Op} == {
        "HELLO": 1, "PING": 2, "SEND": 3, "PULL": 4, "COMMIT": 5, "ACQUIRE": 6, "RENEW": 7, "RELEASE": 8, "JOIN": 9,
        "LEAVE": 10, "ROUTE": 11, "CREATE_TOPIC": 12, "LIST_TOPICS": 13, "RANGES": 14, "LOCK_STATUS": 15, "ATTEMPT": 16,
        "DELETE_TOPIC": 17, "GROW_TOPIC": 18, "DESCRIBE_TOPIC": 19, "QUERY_MESSAGES": 20, "GET_MESSAGE": 21,
        "OFFSETS_AT": 22, "STATS": 23, "DEAD_LETTER": 24, "STARTING": 25, "RESET_OFFSETS": 26, "LIST_GROUPS": 27,
        "DESCRIBE_GROUP": 28, "MEMBER_INFO": 29, "RUNNING_INFO": 30, "SEND_BACK": 31, "LIST_DELAYS": 32,
        "LIST_DEAD": 33, "DEAD_STATES": 34, "REPLAY_DEAD": 35, "DROP_DEAD": 36, "HEADS": 37, "CONFIG": 38,
        "ACCEPT_HISTORY": 39,
    }  # fmt: skip


def test_pushes_keep_their_numbers() -> None:
    pushes = {push.name: push.value for push in Push}

    assert pushes == {
        "MEMBERS_CHANGED": 1, "LEASE_FREE": 2, "TOPIC_CHANGED": 3, "CLOSING": 4, "TOPIC_DELETED": 5, "RUNNING_INFO": 6,
    }  # fmt: skip


def test_constants_of_the_protocol_never_change() -> None:
    assert (ops.PROTOCOL, EMPTY, NO_OFFSET) == (1, -1, -1)
    assert (frames.REQUEST, frames.REPLY, frames.PUSH) == (0, 1, 2)


# Fields may be added at the end, with a default; never moved, renamed or taken away.
FIELDS = {
    "Acquire": "group queues",
    "Attempt": "group topic queue_id epoch queue_offset attempts runs=[]",
    "AttemptRun": "from_offset end_offset attempts",
    "Commit": "group entries",
    "CommitEntry": "topic queue_id epoch queue_offset",
    "CreateTopic": "topic queues",
    "DeadLetter": "group topic queue_id epoch queue_offsets commit_offset=-1 reason='' attempts=[]",
    "DeletedTopic": "topic generation",
    "DeleteTopic": "topic generation=0",
    "DescribeTopic": "topic",
    "FoundBatch": "batch indexes",
    "GetMessage": "message_id",
    "Grant": (
        "status epoch=0 committed_offset=-1 attempt_offset=-1 attempts=0 text=None runs=[] abandoned=0"
        " suspect_offset=-1 careful_until=-1"
    ),
    "GroupState": "group members committed",
    "GrowTopic": "topic queues",
    "Head": "status queue_offset=0 stored_at=0 handle=0 text=None",
    "HeadAt": "topic queue_id queue_offset",
    "HistoryAccepted": "store_id before",
    "Heads": "entries",
    "Hello": "proto client version session features=[] auth=None namespace=None producer=None",
    "HelloReply": "proto broker cluster store_id log_epoch member limits leases=[] features=[] producer=None"
    " start_id=0 former=[]",
    "Join": "group ordered model strategy subscriptions from_end=[] log_epoch=0",
    "JoinReply": "members topics version=0",
    "LeaseEnd": "topic queue_id epoch queue_offset=-1",
    "LeaseRef": "topic queue_id epoch",
    "Leave": "group leases",
    "Limits": "max_frame max_batch max_in_flight grace_s ping_s lock_lease_s=60.0 member_expiry_s=120.0",
    "LockRow": "group topic queue_id owner session epoch held_for_s renewed_ago_s expires_in_s state",
    "ListTopics": "after=''",
    "LockStatus": "group=None",
    "Stats": "topics=0",
    "OffsetAt": "status offset=0 min_offset=0 max_offset=0 text=None",
    "OffsetsAt": "time_us queues",
    "Outcome": "status=0 text=None",
    "OutgoingBatch": "queue_id batch generation=0",
    "ProducerHello": "producer_id producer_epoch first_unresolved",
    "ProducerOutcome": "status base_offset=0 physical_offset=0 stored_at=0 durable=False text=None",
    "ProducerResumed": "next_sequence known first outcomes",
    "Pull": "group wait_ms max_bytes queues expression=None",
    "PullQueue": "topic queue_id queue_offset epoch=None commit_offset=-1 log_epoch=0",
    "PullResult": "index status next_offset min_offset max_offset batches text=None",
    "QueryMessages": "topic key since_us=-1 until_us=-1 limit=64 before=0",
    "QueryReply": "found before=0 lag_bytes=0",
    "QueueInfo": "queue_id broker",
    "QueueRef": "topic queue_id",
    "QueueState": "queue_id broker min_offset max_offset",
    "Range": "status min_offset=0 max_offset=0 committed=-1 text=None store_id=0 log_epoch=0 agreed=-1",
    "Ranges": "group queues log_epoch=0",
    "Release": "group leases",
    "Renew": "group leases leaving=False",
    "ResetEntry": "topic queue_id queue_offset",
    "ResetOffsets": "group entries dry_run=False",
    "ResetResult": "status old_offset=-1 new_offset=-1 text=None",
    "ResumedLease": "group topic queue_id epoch committed_offset attempt_offset attempts runs=[]",
    "Route": "topic create=False",
    "Send": "batches",
    "SendResult": "status base_offset=0 physical_offset=0 stored_at=0 durable=False duplicate=False text=None",
    "Starting": "group topic queue_id epoch queue_offset commit_offset=-1",
    "TopicDescription": "topic generation shards created_at more_groups queues groups",
    "TopicInfo": "topic generation shards queues",
}
SHAPES = shapes_of(ops, messages, topic_ops)


def test_fields_keep_their_places_and_defaults() -> None:
    assert {name: described(kind) for name, kind in SHAPES.items()} == FIELDS


def test_every_operation_and_push_is_documented() -> None:
    text = DOCUMENT.read_text()

    for member in (*Op, *Push):
        assert f"| {member.value} | {member.name} |" in text


@pytest.mark.parametrize(
    "name", sorted(set(FIELDS) - {"Hello", "HelloReply", "Limits", "ProducerHello", "ResumedLease"})
)
def test_every_shape_is_documented_field_by_field(name: str) -> None:
    check_documented(SHAPES[name])


BATCH = bytes(batch.encode("orders", 2, MINIMAL, by=MARK))
FRAMES = {
    "ping_request": frames.pack(frames.REQUEST, 2, Op.PING, []),
    "ping_reply": frames.pack(frames.REPLY, 2, 0, []),
    "send_request": frames.pack(frames.REQUEST, 3, Op.SEND, ops.Send([ops.OutgoingBatch(2, BATCH, 3)])),
    "send_reply": frames.pack(
        frames.REPLY, 3, 0, [ops.SendResult(0, 1000, 4096, 1_700_000_000_123_456, durable=True)]
    ),
    "pull_request": frames.pack(
        frames.REQUEST, 4, Op.PULL,
        ops.Pull("billing", 15_000, 1 << 20, [ops.PullQueue("orders", 2, 1000, (3 << 32) | 1, 1000, 3)]),
    ),
    "pull_reply": frames.pack(frames.REPLY, 4, 0, [ops.PullResult(0, 0, 1001, 0, 1001, sample(MINIMAL))]),
    "error_reply": frames.pack(frames.REPLY, 5, 121, ["the topic 'orders' does not exist"]),
    "push": frames.pack(frames.PUSH, 0, Push.LEASE_FREE, ["billing", "orders", 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMES)
def test_the_bytes_of_a_frame_never_change(name: str) -> None:
    """A change here needs another protocol number."""
    assert FRAMES[name] == golden(GOLDEN / f"{name}.hex")


def test_every_golden_file_is_used() -> None:
    batches = {"batch_full", "batch_minimal", "batch_zlib", "batch_lz4", "batch_zstd", "batch_parked"}
    used = {*FRAMES, *batches, "hello_request", "hello_reply", "hello_reply_producer"}

    assert {path.stem for path in GOLDEN.iterdir()} == used


def test_the_golden_frames_decode_to_what_they_mean() -> None:
    def payload(name: str) -> Any:
        return frames.unpack(golden(GOLDEN / f"{name}.hex")[4:])[3]

    assert decode(ops.Send, payload("send_request")).batches == [ops.OutgoingBatch(2, BATCH, 3)]
    assert decode_list(ops.SendResult, payload("send_reply"))[0].durable
    assert decode(ops.Pull, payload("pull_request")).queues[0].epoch == (3 << 32) | 1
    assert decode_list(ops.PullResult, payload("pull_reply"))[0].batches == sample(MINIMAL)


numbers = st.integers(-1, (1 << 63) - 1)
texts = st.text(max_size=5)
queues = st.lists(st.builds(ops.QueueRef, texts, numbers), max_size=3)
ends = st.lists(st.builds(ops.LeaseEnd, texts, numbers, numbers, numbers), max_size=3)
optional_text = st.none() | texts
pulled = st.builds(ops.PullQueue, texts, numbers, numbers, st.none() | numbers, numbers, numbers)
committed = st.builds(ops.CommitEntry, texts, numbers, st.none() | numbers, numbers)
topics = st.builds(
    ops.TopicInfo, texts, numbers, numbers, st.lists(st.builds(ops.QueueInfo, numbers, texts), max_size=3)
)
seconds = st.floats(0, 1e9)
runs = st.lists(st.builds(hello.AttemptRun, numbers, numbers, numbers), max_size=3)
found = st.builds(messages.FoundBatch, st.binary(max_size=5), st.lists(numbers, max_size=3))
payloads: st.SearchStrategy[Any] = st.one_of(
    st.builds(ops.Send, st.lists(st.builds(ops.OutgoingBatch, numbers, st.binary(max_size=5), numbers), max_size=3)),
    st.builds(ops.SendResult, numbers, numbers, numbers, numbers, st.booleans(), st.booleans(), optional_text),
    st.builds(ops.Pull, optional_text, numbers, numbers, st.lists(pulled, max_size=3), optional_text),
    st.builds(
        ops.PullResult, numbers, numbers, numbers, numbers, numbers, st.binary(max_size=5), optional_text
    ),
    st.builds(ops.Commit, texts, st.lists(committed, max_size=3)),
    st.builds(ops.Outcome, numbers, optional_text),
    st.builds(ops.Acquire, texts, queues),
    st.builds(
        ops.Grant, numbers, numbers, numbers, numbers, numbers, optional_text, runs, numbers, numbers, numbers
    ),
    st.builds(
        ops.DeadLetter, texts, texts, numbers, numbers, st.lists(numbers, max_size=3), numbers, texts,
        st.lists(numbers, max_size=3),
    ),
    st.builds(ops.Starting, texts, texts, numbers, numbers, numbers, numbers),
    st.builds(
        ops.ResetOffsets, texts, st.lists(st.builds(ops.ResetEntry, texts, numbers, numbers), max_size=3), st.booleans()
    ),
    st.builds(ops.ResetResult, numbers, numbers, numbers, optional_text),
    st.builds(ops.Renew, texts, st.lists(st.builds(ops.LeaseRef, texts, numbers, numbers), max_size=3), st.booleans()),
    st.builds(ops.Release, texts, ends),
    st.builds(ops.Leave, texts, ends),
    st.builds(
        ops.Join, texts, st.booleans(), texts, texts, st.dictionaries(texts, texts, max_size=3),
        st.lists(texts, max_size=3), numbers,
    ),
    st.builds(ops.JoinReply, st.lists(texts, max_size=3), st.lists(topics, max_size=2), st.integers(0, 1 << 60)),
    st.builds(ops.Route, texts, st.booleans()),
    st.builds(ops.CreateTopic, texts, numbers),
    st.builds(ops.Ranges, optional_text, queues, numbers),
    st.builds(ops.Range, numbers, numbers, numbers, numbers, optional_text, numbers, numbers, numbers),
    st.builds(ops.ListTopics, texts),
    st.builds(ops.LockStatus, optional_text),
    st.builds(ops.Stats, numbers),
    st.builds(
        ops.LockRow, texts, texts, numbers, texts, texts, numbers, seconds, seconds, seconds, texts
    ),
    st.builds(ops.Attempt, texts, texts, numbers, numbers, numbers, numbers, runs),
    st.builds(topic_ops.DeleteTopic, texts, numbers),
    st.builds(topic_ops.DeletedTopic, texts, numbers),
    st.builds(topic_ops.GrowTopic, texts, numbers),
    st.builds(topic_ops.DescribeTopic, texts),
    st.builds(
        topic_ops.TopicDescription, texts, numbers, numbers, numbers, numbers,
        st.lists(st.builds(topic_ops.QueueState, numbers, texts, numbers, numbers), max_size=3),
        st.lists(st.builds(topic_ops.GroupState, texts, numbers, st.lists(numbers, max_size=3)), max_size=3),
    ),
    st.builds(messages.QueryMessages, optional_text, texts, numbers, numbers, numbers, numbers),
    st.builds(messages.QueryReply, st.lists(found, max_size=3), numbers, numbers),
    st.builds(messages.GetMessage, texts),
    st.builds(messages.OffsetsAt, numbers, queues),
    st.builds(messages.OffsetAt, numbers, numbers, numbers, numbers, optional_text),
)  # fmt: skip


@quick
@given(payloads)
def test_every_payload_comes_back(payload: Any) -> None:
    assert decode(type(payload), msgpack.unpackb(msgpack.packb(payload))) == payload


@pytest.mark.parametrize(
    "shape", [kind for name, kind in SHAPES.items() if name not in ("ListTopics", "LockStatus", "Outcome", "Stats")]
)
def test_an_empty_payload_is_refused_where_something_is_needed(shape: Any) -> None:
    with pytest.raises(BadRequest, match=f"{shape.__name__}: {shape._fields[0]} is missing"):
        decode(shape, [])


def test_an_empty_payload_does_where_nothing_is_needed() -> None:
    assert decode(ops.LockStatus, []) == ops.LockStatus(None)
    assert decode(ops.ListTopics, []) == ops.ListTopics("")
    assert decode(ops.Outcome, []) == ops.Outcome(0, None)
