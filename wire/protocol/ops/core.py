"""
Every operation, its request and its reply. The numbers never change and are never reused.

Unless said otherwise a reply whose request names several things is a list with one entry for each, in order; an
entry's ``status`` is 0 or the code of why that one was refused.
"""

# ruff: noqa: PLC0414  # `as` makes the greeting part of this module

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from ...errors import OK
from ..hello import AttemptRun as AttemptRun
from ..hello import Hello as Hello
from ..hello import HelloReply as HelloReply
from ..hello import Limits as Limits
from ..hello import ProducerHello as ProducerHello
from ..hello import ProducerOutcome as ProducerOutcome
from ..hello import ProducerResumed as ProducerResumed
from ..hello import ResumedLease as ResumedLease
from ..hello import hello_from_map as hello_from_map
from ..hello import hello_to_map as hello_to_map
from ..hello import other_protocol as other_protocol

PROTOCOL: Final = 1
EMPTY: Final = -1  # the status of a pulled queue with nothing new; not an error
NO_OFFSET: Final = -1
MAX_ENTRIES: Final = 1024  # of one request: queues, leases, progress
MAX_BATCHES: Final = 256  # of one SEND


class Op(IntEnum):
    """Requests a client makes."""

    HELLO = 1
    PING = 2
    SEND = 3
    PULL = 4
    COMMIT = 5
    ACQUIRE = 6
    RENEW = 7
    RELEASE = 8
    JOIN = 9
    LEAVE = 10
    ROUTE = 11
    CREATE_TOPIC = 12
    LIST_TOPICS = 13
    RANGES = 14
    LOCK_STATUS = 15
    ATTEMPT = 16
    DELETE_TOPIC = 17
    GROW_TOPIC = 18
    DESCRIBE_TOPIC = 19
    QUERY_MESSAGES = 20
    GET_MESSAGE = 21
    OFFSETS_AT = 22
    STATS = 23
    DEAD_LETTER = 24
    STARTING = 25
    RESET_OFFSETS = 26
    LIST_GROUPS = 27
    DESCRIBE_GROUP = 28
    MEMBER_INFO = 29
    RUNNING_INFO = 30
    SEND_BACK = 31
    LIST_DELAYS = 32
    LIST_DEAD = 33
    DEAD_STATES = 34
    REPLAY_DEAD = 35
    DROP_DEAD = 36
    HEADS = 37
    CONFIG = 38
    ACCEPT_HISTORY = 39


class Push(IntEnum):
    """What the broker says unasked; a client ignores those it does not know."""

    MEMBERS_CHANGED = 1  # [group, [member ids], version]
    LEASE_FREE = 2  # [group, topic, queue_id]
    TOPIC_CHANGED = 3  # TopicInfo
    CLOSING = 4  # [code, sentence]
    TOPIC_DELETED = 5  # [topic, generation]
    RUNNING_INFO = 6  # [token, group]: answer with the operation of this name


class QueueRef(NamedTuple):
    """A queue of a topic."""

    topic: str
    queue_id: int


class OutgoingBatch(NamedTuple):
    """A batch for a queue of the topic named in it; a ``generation`` other than 0 must be that topic's."""

    queue_id: int
    batch: bytes
    generation: int = 0


class Send(NamedTuple):
    """Batches to append; not atomic: each has its own answer."""

    batches: list[OutgoingBatch]


class SendResult(NamedTuple):
    """Where a batch was stored, or why not."""

    status: int
    base_offset: int = 0
    physical_offset: int = 0
    stored_at: int = 0
    durable: bool = False
    duplicate: bool = False
    text: str | None = None


class PullQueue(NamedTuple):
    """
    One queue of a pull; ``commit_offset`` lets progress ride along.

    ``log_epoch`` is that of the message before ``queue_offset``, as the reader has it; 0: it has none.
    """

    topic: str
    queue_id: int
    queue_offset: int
    epoch: int | None = None
    commit_offset: int = NO_OFFSET
    log_epoch: int = 0


class Pull(NamedTuple):
    """
    Ask for batches; waits up to ``wait_ms`` if there are none. Without a group nothing is fenced or committed.

    ``expression`` is for pulls without a group, of which only batches with such a tag are wanted.
    """

    group: str | None
    wait_ms: int
    max_bytes: int
    queues: list[PullQueue]
    expression: str | None = None


class PullResult(NamedTuple):
    """What a pull found in the queue ``index`` of its list: whole batches, the first may begin before the offset."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    status: int
    next_offset: int
    min_offset: int
    max_offset: int
    batches: bytes
    text: str | None = None


class CommitEntry(NamedTuple):
    """Progress of a group in a queue: the next offset to deliver."""

    topic: str
    queue_id: int
    epoch: int | None
    queue_offset: int


class Commit(NamedTuple):
    """Store progress; answered when it is durable."""

    group: str
    entries: list[CommitEntry]


class Outcome(NamedTuple):
    """Done, or why not."""

    status: int = OK
    text: str | None = None


class Acquire(NamedTuple):
    """Ask for leases that this session does not hold; never renews."""

    group: str
    queues: list[QueueRef]


class Grant(NamedTuple):
    """
    A lease, with all that a new owner needs to begin; or who holds it.

    ``runs`` has every message with failed deliveries, the first of them once more as ``attempt_offset``. ``abandoned``
    leases in a row ended without being given back while the message at ``suspect_offset`` was being processed; if
    there were several, everything before ``careful_until`` is delivered one by one, each announced by STARTING.
    """

    status: int
    epoch: int = 0
    committed_offset: int = NO_OFFSET
    attempt_offset: int = NO_OFFSET
    attempts: int = 0
    text: str | None = None
    runs: list[AttemptRun] = []  # noqa: RUF012  # shared, so nobody may change it in place
    abandoned: int = 0
    suspect_offset: int = NO_OFFSET
    careful_until: int = NO_OFFSET


class LeaseRef(NamedTuple):
    """A lease and its epoch."""

    topic: str
    queue_id: int
    epoch: int


class Renew(NamedTuple):
    """Keep leases; never acquires. ``leaving``: the member gives them back as soon as its running calls have ended."""

    group: str
    leases: list[LeaseRef]
    leaving: bool = False


class LeaseEnd(NamedTuple):
    """A lease to give back, with the last progress made under it."""

    topic: str
    queue_id: int
    epoch: int
    queue_offset: int = NO_OFFSET


class Release(NamedTuple):
    """Commit and give back in one step; giving back what is not held is no error."""

    group: str
    leases: list[LeaseEnd]


class Join(NamedTuple):
    """
    Become (or stay) a member of a group; repeated as heartbeat. ``subscriptions``: topic -> tag expression.

    ``from_end`` are topics that this member joins for the first time, and whose group begins at their end: if nobody
    of it subscribes to one yet and it has no progress there, the end of each of its queues becomes its progress.
    ``log_epoch`` is that of the broker where the member last belonged to the group: if the log lost the group's
    progress since, the group begins where that log and this one part, and not at the end.
    """

    group: str
    ordered: bool
    model: str
    strategy: str
    subscriptions: dict[str, str]
    from_end: list[str] = []  # noqa: RUF012  # shared, so nobody may change it in place
    log_epoch: int = 0


class QueueInfo(NamedTuple):
    """A queue and the broker that has it."""

    queue_id: int
    broker: str


class TopicInfo(NamedTuple):
    """A topic; ``shards`` is the number that keys are divided over."""

    topic: str
    generation: int
    shards: int
    queues: list[QueueInfo]


class JoinReply(NamedTuple):
    """
    The members of the group, sorted, and those of the subscribed topics that exist.

    Of two lists of members the one with the higher ``version`` is the newer one, also beside those that are pushed.
    """

    members: list[str]
    topics: list[TopicInfo]
    version: int = 0


class Leave(NamedTuple):
    """Commit, give back and leave the group in one step."""

    group: str
    leases: list[LeaseEnd]


class Route(NamedTuple):
    """Where a topic's queues are; ``create`` makes it with the broker's default shape."""

    topic: str
    create: bool = False


class CreateTopic(NamedTuple):
    """Make a topic; making it again with the same shape is no error."""

    topic: str
    queues: int


class ListTopics(NamedTuple):
    """A page of the topics by name, behind ``after``; an empty one is the end."""

    after: str = ""


class Ranges(NamedTuple):
    """The offsets that queues hold, the committed one of a group, and where queues part from an earlier log epoch."""

    group: str | None
    queues: list[QueueRef]
    log_epoch: int = 0


class Range(NamedTuple):
    """
    ``[min_offset, max_offset)`` can be read; ``committed`` is -1 for none.

    A reader that keeps ``max_offset`` as its position keeps ``store_id`` and ``log_epoch`` with it (the epoch of the
    last message; 0 if there is none): they show later whether the log is still the same up to there. ``agreed``: the
    offset up to which the queue is as a reader knew it under the log epoch that was asked for; -1 if none was.
    """

    status: int
    min_offset: int = 0
    max_offset: int = 0
    committed: int = NO_OFFSET
    text: str | None = None
    store_id: int = 0
    log_epoch: int = 0
    agreed: int = NO_OFFSET


class HistoryAccepted(NamedTuple):
    """Readers of another history continue in this store; ``before``: that was accepted already."""

    store_id: int
    before: bool


class Stats(NamedTuple):
    """The numbers of the broker, and of so many of the busiest topics (at most 1000 are told)."""

    topics: int = 0


class LockStatus(NamedTuple):
    """The leases of one group or of all."""

    group: str | None = None


class LockRow(NamedTuple):
    """A lease as people see it."""

    group: str
    topic: str
    queue_id: int
    owner: str
    session: str
    epoch: int
    held_for_s: float
    renewed_ago_s: float
    expires_in_s: float
    state: str


class Attempt(NamedTuple):
    """
    Delivery number ``attempts`` of a message failed; answered when that is durable.

    ``runs`` says so of all messages of a batch, that first one included; without it only that one failed.
    """

    group: str
    topic: str
    queue_id: int
    epoch: int
    queue_offset: int
    attempts: int
    runs: list[AttemptRun] = []  # noqa: RUF012  # shared, so nobody may change it in place


class DeadLetter(NamedTuple):
    """
    Copy messages of a queue to the dead-letter topic of the group; answered when that and the progress are durable.

    ``commit_offset`` is progress that is stored in the same step, -1 for none. Asking again does nothing again.
    ``attempts`` tells of each message how many deliveries failed; without it, as many as were reported before.
    """

    group: str
    topic: str
    queue_id: int
    epoch: int
    queue_offsets: list[int]
    commit_offset: int = NO_OFFSET
    reason: str = ""
    attempts: list[int] = []  # noqa: RUF012  # shared, so nobody may change it in place


class Starting(NamedTuple):
    """A message is about to be processed; answered when that, and the progress with it, is durable."""

    group: str
    topic: str
    queue_id: int
    epoch: int
    queue_offset: int
    commit_offset: int = NO_OFFSET


class ResetEntry(NamedTuple):
    """Where a group is to go on in a queue."""

    topic: str
    queue_id: int
    queue_offset: int


class ResetOffsets(NamedTuple):
    """Put a group anywhere in queues, also back; ``dry_run`` only tells what would be done."""

    group: str
    entries: list[ResetEntry]
    dry_run: bool = False


class ResetResult(NamedTuple):
    """Where the group was in a queue and where it goes on, or why not; an offset of -1 is none."""

    status: int
    old_offset: int = NO_OFFSET
    new_offset: int = NO_OFFSET
    text: str | None = None
