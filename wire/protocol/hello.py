"""
The greeting: the first request of a connection and its reply.

Both are maps, not arrays, so that two versions which share few fields still understand each other well enough to
say so. Values inside a map (limits, leases, producer) are arrays, as everywhere else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import BadRequest
from ..stores import FormerStore, StoreIds
from .codec import decode


class ProducerHello(NamedTuple):
    """Who sends, and the first sequence number whose outcome it does not know."""

    producer_id: int
    producer_epoch: int
    first_unresolved: int


class Hello(NamedTuple):
    """The client's greeting; a map on the wire."""

    proto: list[int]
    client: str
    version: str
    session: bytes
    features: list[str] = []  # noqa: RUF012  # shared, so nobody may change it in place
    auth: Any = None
    namespace: str | None = None
    producer: ProducerHello | None = None


class AttemptRun(NamedTuple):
    """Each message from ``from_offset`` to before ``end_offset`` was delivered ``attempts`` times in vain."""

    from_offset: int
    end_offset: int
    attempts: int


class ResumedLease(NamedTuple):
    """A lease the session still holds; ``runs`` as in a grant."""

    group: str
    topic: str
    queue_id: int
    epoch: int
    committed_offset: int
    attempt_offset: int
    attempts: int
    runs: list[AttemptRun] = []  # noqa: RUF012  # shared, so nobody may change it in place


class Limits(NamedTuple):
    """What the broker accepts, and its timers."""

    max_frame: int
    max_batch: int
    max_in_flight: int
    grace_s: float
    ping_s: float
    lock_lease_s: float = 60.0
    member_expiry_s: float = 120.0


class ProducerOutcome(NamedTuple):
    """What became of a number: stored there, or refused for good with a code and a sentence."""

    status: int
    base_offset: int = 0
    physical_offset: int = 0
    stored_at: int = 0
    durable: bool = False
    text: str | None = None


class ProducerResumed(NamedTuple):
    """
    What became of a producer's unresolved numbers.

    ``outcomes`` are those of the numbers from ``first`` to the one before ``next_sequence``, at most 256. What became
    of unresolved numbers below ``first`` is not known any more; numbers from ``next_sequence`` on were not used.
    ``known`` is False if the broker knew nothing of this producer: it is new, or was forgotten.
    """

    next_sequence: int
    known: bool
    first: int
    outcomes: list[ProducerOutcome]


class HelloReply(NamedTuple):
    """The broker's greeting; a map on the wire."""

    proto: int
    broker: str
    cluster: str
    store_id: int
    log_epoch: int
    member: str  # the id of this session in group member lists
    limits: Limits
    leases: list[ResumedLease] = []  # noqa: RUF012
    features: list[str] = []  # noqa: RUF012  # shared, so nobody may change it in place
    producer: ProducerResumed | None = None  # for a hello that named one
    start_id: int = 0  # random, of this start of the broker; 0 from a broker that has none
    former: list[FormerStore] = []  # noqa: RUF012

    def is_rolled_back(self, before: HelloReply) -> bool:
        """
        Return whether the store was rolled back to before the start of the broker that greeted ``before``.

        Log epochs only rise. A lower one, or the same one of another start, is that of an older copy of the store that
        could not be recognised as one.
        """
        is_other_start = self.log_epoch == before.log_epoch and self.start_id != before.start_id
        return self.store_id == before.store_id and (self.log_epoch < before.log_epoch or is_other_start)

    @property
    def stores(self) -> StoreIds:
        """The ids of the store, which message ids are made of."""
        return StoreIds(self.store_id, self.former)


def hello_to_map(hello: Hello | HelloReply) -> dict[str, Any]:
    """A greeting as it travels."""
    fields = hello._asdict()
    if isinstance(hello, HelloReply):
        for name in ("producer", "start_id", "former"):
            if not fields[name]:
                del fields[name]  # what does not apply is left out
    return fields


def hello_from_map(shape: type[Any], value: object) -> Any:
    """
    A greeting received; unknown fields are ignored.

    Raises:
        BadRequest: a known field has a wrong type or a needed one is missing.
    """
    if type(value) is not dict:
        raise BadRequest("the hello is not a map")
    known = {**shape._field_defaults, **value}
    for name in shape._fields:
        if name not in known:
            raise BadRequest(f"{shape.__name__}: {name} is missing")
    return decode(shape, [known[name] for name in shape._fields])


def other_protocol(who: str, spoken: list[int]) -> str:
    """The sentence of two sides that share no protocol; ``spoken`` is the range that is not ours."""
    first, last = (spoken[0], spoken[-1]) if spoken else ("none", "none")
    shown = f"{first}" if first == last else f"{first} to {last}"
    return f"{who} {shown}: run the same version of rmq on both sides"
