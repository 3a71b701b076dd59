"""
Which queues of a topic are this member's: pure functions that every member computes alike.

All members see the same queues and the same members, both sorted, so that none has to ask the others. What differs
between members is only their own name; the exception is ``by_config``, whose list each member has of its own.
``Shares`` computes the share of this member topic by topic; a topic whose strategy fails stays as it is.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from rmq.runtime.logging import get_logger
from rmq.wire.errors import BadName, ConfigError
from rmq.wire.model import MessageQueue
from rmq.wire.names import check_readable, unwrap
from rmq.wire.protocol.ops.core import QueueInfo
from rmq.wire.zones import check_zone, zone_of_broker, zone_of_member

VIRTUAL_NODES: Final = 10
MAX_VIRTUAL_NODES: Final = 1000
MAX_NAME: Final = 64  # characters of a strategy's name that a broker takes
_DIGEST: Final = 16
KNOWN: Final = (
    "average, circle, consistent_hash[:NODES], config:TOPIC/ID,..., machine_room:ZONE,... "
    "or machine_room_nearby[:STRATEGY]"
)


class PlacedQueue(NamedTuple):
    """A queue and the broker that has it; they are sorted by topic, broker and number."""

    topic: str
    broker: str
    queue_id: int

    @property
    def queue(self) -> MessageQueue:
        """The queue without its place."""
        return MessageQueue(self.topic, self.queue_id)


Queues = Sequence[PlacedQueue]
Allocate = Callable[[Queues, Sequence[str], str], Iterable[PlacedQueue]]


@dataclass(frozen=True, slots=True)
class Strategy:
    """
    A way to share queues out, and the name by which the members of a group know that they agree on it.

    ``allocate(queues, members, member)`` gets the queues of one topic and all members, both sorted, and returns the
    queues of ``member``. It must say the same for the same arguments in every process: the broker refuses a member
    whose strategy has another name than the group's, and cannot see more. One that raises is asked again with the next
    pass; until then the member keeps what it has of that topic.
    """

    name: str
    allocate: Allocate

    def share(self, queues: Iterable[PlacedQueue], members: Iterable[str], member: str) -> set[MessageQueue]:
        """
        The queues of ``member``; none if it is not among the members.

        Raises:
            ValueError: a member has no name, or the strategy named a queue that is not there.
        """
        offered, everybody = sorted(queues), sorted(members)
        if not member or "" in everybody:
            raise ValueError("a member without a name cannot be given queues")
        if member not in everybody:
            return set()
        ours = set(self.allocate(offered, everybody, member))
        if strange := ours.difference(offered):
            raise ValueError(
                f"the strategy {self.name!r} gave {min(strange)}, which is none of the queues it was given"
            )
        return {placed.queue for placed in ours}


# The strategies: queues and members come sorted, and the member is one of them


def average(queues: Queues, members: Sequence[str], member: str) -> list[PlacedQueue]:
    """A contiguous run for each: 10 queues over 4 members are runs of 3, 3, 2 and 2."""
    rank = members.index(member)
    size, larger = divmod(len(queues), len(members))
    start = rank * size + min(rank, larger)
    return list(queues[start : start + size + (rank < larger)])


def circle(queues: Queues, members: Sequence[str], member: str) -> list[PlacedQueue]:
    """One after the other: 10 queues over 4 members are {0, 4, 8}, {1, 5, 9}, {2, 6} and {3, 7}."""
    return list(queues[members.index(member) :: len(members)])


def consistent_hash(
    queues: Queues, members: Sequence[str], member: str, *, nodes: int = VIRTUAL_NODES
) -> list[PlacedQueue]:
    """By a hash ring: when a member comes or goes, only the queues that it gets or had move. Shares are uneven."""
    ring = sorted((_hash(f"{name}-{node}"), name) for name in members for node in range(nodes))
    places = [place for place, _ in ring]

    def owner(queue: PlacedQueue) -> str:
        key = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"
        return ring[bisect_left(places, _hash(key)) % len(ring)][1]

    return [queue for queue in queues if owner(queue) == member]


def by_config(
    queues: Queues, members: Sequence[str], member: str, *, wanted: Collection[MessageQueue]
) -> list[PlacedQueue]:
    """Those of a fixed list, whatever the other members. What two members list goes to the first that locks it."""
    return [queue for queue in queues if queue.queue in wanted]


def machine_room(queues: Queues, members: Sequence[str], member: str, *, zones: Collection[str]) -> list[PlacedQueue]:
    """Only queues at brokers of these zones, shared evenly; those of other zones go to no member."""
    near = [queue for queue in queues if zone_of_broker(queue.broker) in zones]
    rank, each = members.index(member), len(near) // len(members)
    rest = near[each * len(members) :]
    return near[each * rank : each * (rank + 1)] + rest[rank : rank + 1]


def machine_room_nearby(
    queues: Queues, members: Sequence[str], member: str, *, inner: Allocate = average
) -> list[PlacedQueue]:
    """The queues of a zone go to its members, shared by ``inner``; those of a zone without members to all."""
    zones: dict[str, list[PlacedQueue]] = {}
    for queue in queues:
        zones.setdefault(_known_zone("broker", queue.broker, zone_of_broker(queue.broker)), []).append(queue)
    homes: dict[str, list[str]] = {}
    for name in members:
        homes.setdefault(_known_zone("member", name, zone_of_member(name)), []).append(name)
    ours: list[PlacedQueue] = []
    for zone, near in zones.items():
        sharing = homes.get(zone, members)
        if member in sharing:
            ours += inner(near, sharing, member)
    return ours


def _known_zone(what: str, name: str, zone: str) -> str:
    if not zone:
        raise ValueError(f"the {what} {name!r} is in no zone: machine_room_nearby needs one for each")
    return zone


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


# By name

AVERAGE: Final = Strategy("average", average)


def parse_strategy(text: str) -> Strategy:
    """
    The strategy of a setting.

    Its name is the same for settings that share queues out alike, and says all that matters for that.

    Raises:
        ConfigError: the name is unknown, or what follows the colon does not fit.
    """
    kind, colon, given = text.partition(":")
    if colon and not given.strip():
        raise ConfigError(f"strategy: nothing follows the colon of {text!r}; it is {KNOWN}")
    match kind:
        case "average" | "circle" if not colon:
            return AVERAGE if kind == "average" else Strategy("circle", circle)
        case "consistent_hash":
            return _consistent_hash(given)
        case "config" if colon:
            return Strategy("config", partial(by_config, wanted=frozenset(map(_queue, given.split(",")))))
        case "machine_room" if colon:
            zones = frozenset(map(_named_zone, given.split(",")))
            return Strategy(_short(f"machine_room:{','.join(sorted(zones))}"), partial(machine_room, zones=zones))
        case "machine_room_nearby":
            return _nearby(given)
    raise ConfigError(f"strategy: there is none of the form {text!r}; it is {KNOWN}")


EVERYTHING = Strategy("all", lambda queues, members, member: queues)  # of members that share nothing out


def named(strategy: Strategy | Allocate) -> Strategy:
    """
    A user's own strategy: a :class:`Strategy`, or a function, which is known by its ``name`` or its own.

    Raises:
        ConfigError: it is neither, has no name, or cannot be called.
    """
    if isinstance(strategy, Strategy):
        if not isinstance(strategy.name, str) or not strategy.name or not callable(strategy.allocate):
            raise ConfigError(
                f"a Strategy needs a name and a function, not {strategy.name!r} and {strategy.allocate!r}"
            )
        return Strategy(_short(strategy.name), strategy.allocate)
    if not callable(strategy):
        raise ConfigError(f"strategy must be text, a Strategy or a function, not {strategy!r}")
    name = getattr(strategy, "name", None) or getattr(strategy, "__name__", None) or type(strategy).__name__
    return Strategy(_short(f"custom:{name}"), strategy)


def needs_zone(text: str) -> bool:
    """Whether a strategy looks at the zone of the member itself."""
    return text.partition(":")[0] == "machine_room_nearby"


def _consistent_hash(given: str) -> Strategy:
    nodes = VIRTUAL_NODES
    if given:
        if not given.strip().isdecimal() or not 1 <= int(given) <= MAX_VIRTUAL_NODES:
            raise ConfigError(
                f"strategy: consistent_hash has 1 to {MAX_VIRTUAL_NODES} nodes for a member, not {given!r}"
            )
        nodes = int(given)
    name = "consistent_hash" if nodes == VIRTUAL_NODES else f"consistent_hash:{nodes}"
    return Strategy(name, partial(consistent_hash, nodes=nodes))


def _nearby(given: str) -> Strategy:
    if needs_zone(given):
        raise ConfigError("strategy: machine_room_nearby cannot be inside machine_room_nearby")
    inner = parse_strategy(given or "average")
    name = "machine_room_nearby" if inner == AVERAGE else f"machine_room_nearby:{inner.name}"
    return Strategy(_short(name), partial(machine_room_nearby, inner=inner.allocate))


def _queue(text: str) -> MessageQueue:
    topic, slash, queue_id = text.strip().rpartition("/")
    if not slash or not (queue_id.isascii() and queue_id.isdecimal()):
        raise ConfigError(f"strategy: config lists queues as TOPIC/ID, such as config:orders/0,orders/3, not {text!r}")
    try:
        check_readable(topic)
    except BadName as error:
        raise ConfigError(f"strategy: {error}") from error
    return MessageQueue(topic, int(queue_id))


def _named_zone(text: str) -> str:
    try:
        check_zone(text.strip())
    except BadName as error:
        raise ConfigError(f"strategy: {error}") from error
    return text.strip()


def _short(name: str) -> str:
    """A name that a broker takes: a long one is cut, and made unique by a hash."""
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{name[: MAX_NAME - _DIGEST - 1]}~{digest}"


log = get_logger("rmq.consumer")


class Share(NamedTuple):
    """What falls to us of a topic, of how many queues and members; or why that is not known."""

    ours: frozenset[MessageQueue]
    queues: int
    members: int
    error: str | None = None


class Shares:
    """
    Computes shares by one strategy.

    The strategy sees topics by the names the user gave them, without the namespace. The retries of the group are not
    the user's business: they are shared out evenly, so that no strategy can leave them out.
    """

    def __init__(self, strategy: Strategy, namespace: str = "", *, retry_topic: str | None = None) -> None:
        self.strategy = strategy
        self._retry_topic = retry_topic
        self._namespace = namespace
        self._logged: dict[str, Share] = {}

    def of_topics(
        self,
        topics: Mapping[str, Sequence[QueueInfo]],
        members: Sequence[str],
        member: str,
        *,
        owned: Iterable[MessageQueue],
    ) -> dict[str, Share]:
        """The share of each topic; where the strategy raises, those that are ``owned`` of it."""
        owned = list(owned)
        return {topic: self._of_topic(topic, infos, members, member, owned) for topic, infos in topics.items()}

    def _of_topic(
        self, topic: str, infos: Sequence[QueueInfo], members: Sequence[str], member: str, owned: list[MessageQueue]
    ) -> Share:
        shown = unwrap(self._namespace, topic)
        try:
            strategy = AVERAGE if topic == self._retry_topic else self.strategy
            ours = strategy.share((PlacedQueue(shown, info.broker, info.queue_id) for info in infos), members, member)
        except Exception as error:  # a user's function may raise anything: the other topics are not to suffer
            kept = frozenset(queue for queue in owned if queue.topic == topic)
            return Share(kept, len(infos), len(members), f"{type(error).__name__}: {error}")
        return Share(frozenset(MessageQueue(topic, queue.queue_id) for queue in ours), len(infos), len(members))

    def report(self, group: str, shares: Mapping[str, Share]) -> None:
        """Log each change once, with what it follows from."""
        for topic, share in shares.items():
            before = self._logged.get(topic)
            if topic == self._retry_topic and before is None and not share.queues:
                continue  # nothing was given back as yet
            if before is None and not share.queues:
                log.warning(
                    "topic.awaited",
                    topic=topic,
                    now="the topic does not exist yet: consumption starts when it is created",
                )
            if share.error is not None:
                if before is None or before.error != share.error:
                    log.error(
                        "rebalance.failed", group=group, topic=topic, strategy=self.strategy.name, error=share.error
                    )
            elif before is None or before.error is not None or before.ours != share.ours:
                log.info(
                    "rebalance.changed",
                    group=group,
                    topic=topic,
                    strategy=self.strategy.name,
                    queues=share.queues,
                    members=share.members,
                    ours=len(share.ours),
                    result=sorted(queue.queue_id for queue in share.ours),
                )
            self._logged[topic] = share
        self._logged = {topic: self._logged[topic] for topic in shares if topic in self._logged}
