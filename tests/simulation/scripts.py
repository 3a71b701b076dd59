"""
Scripts of what befalls a group of consumers, drawn by a seed: values, so that one that fails can be printed.

``script(seed)`` is pure: the same seed gives the same script, on every machine. A step is done when the pause that
follows it (``Tick``) begins; a script ends where all that hinders the group is taken away.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, TypeAlias

from rigs.disk.crash import KEPT, LOST, TORN
from simulation.network import DOWN, UP
from simulation.processes import ORDERS

MOST_MEMBERS = 4
TAGS = ("a", "b", None)
BROKERS: tuple[dict[str, float], ...] = (  # leases are short, most of the time: simulated seconds take real ones
    {},
    {"lock_lease_s": 12.0},
    {"lock_lease_s": 12.0},
    {"lock_lease_s": 10.0, "grace_s": 2.0, "ping_s": 0.5},
    {"lock_lease_s": 20.0, "grace_s": 8.0},
)


class Send(NamedTuple):
    """A producer sends messages with one sharding key."""

    producer: str
    count: int
    key: str
    size: int
    tag: str | None = None


class Join(NamedTuple):
    """A consumer starts."""

    member: str


class Leave(NamedTuple):
    """A consumer stops: it ends its calls, commits, unlocks and leaves."""

    member: str


class Kill(NamedTuple):
    """A consumer's process dies."""

    member: str


class Pause(NamedTuple):
    """A consumer's process is stopped, as by SIGSTOP: its connection stays open."""

    member: str


class Resume(NamedTuple):
    """It goes on, and does what it missed in this order."""

    member: str
    order: str


class Partition(NamedTuple):
    """Nothing goes these ways between a client and the broker, and nobody is told."""

    client: str
    ways: tuple[str, ...]


class Lag(NamedTuple):
    """What goes either way takes this long."""

    client: str
    seconds: float


class Heal(NamedTuple):
    """Everything gets through again: what was held back as well, or (``cut``) the connections are reset."""

    client: str
    cut: bool


class CloseUnseen(NamedTuple):
    """The broker's end of a client's connection is gone, and nothing gets through that would tell the client."""

    client: str


class Slow(NamedTuple):
    """The next call of a consumer's listener takes this long."""

    member: str
    seconds: float


class Block(NamedTuple):
    """The next call of a consumer's listener blocks its loop for this long."""

    member: str
    seconds: float


class Fail(NamedTuple):
    """The next calls of a consumer's listener fail: they raise, or ask for this pause."""

    member: str
    times: int
    pause_s: float | None


class Restart(NamedTuple):
    """The broker stops cleanly, and starts again after a while."""

    down_s: float


class Crash(NamedTuple):
    """The broker's process, or (``lost``, ``torn``) its machine dies, and it starts again on what is left."""

    policy: str
    down_s: float


class Reset(NamedTuple):
    """Somebody sets the offset of the group to this part of what a queue holds."""

    queue_id: int
    part: float


class Tick(NamedTuple):
    """Time passes."""

    seconds: float


Step: TypeAlias = (
    Send | Join | Leave | Kill | Pause | Resume | Partition | Lag | Heal | CloseUnseen | Slow | Block | Fail | Restart
    | Crash | Reset | Tick
)  # fmt: skip


class Script(NamedTuple):
    """A group, and what befalls it. ``consumer`` and ``broker`` are settings that are not the default, as pairs."""

    seed: int
    queues: int
    steps: tuple[Step, ...]
    consumer: tuple[tuple[str, Any], ...] = ()
    broker: tuple[tuple[str, Any], ...] = ()
    expression: str = "*"
    pace_s: float = 0.0  # what a call takes if nothing else is said
    commit_every: int = 0  # a listener that commits itself does so when it has this many messages; 0: after each call

    def __str__(self) -> str:
        head = f"Script(seed={self.seed}, queues={self.queues}, consumer={self.consumer}, broker={self.broker}, "
        head += f"expression={self.expression!r}, pace_s={self.pace_s}, commit_every={self.commit_every}, steps=("
        return "\n".join([head, *(f"    {step}," for step in self.steps), "))"])


def script(seed: int, *, length: int = 18) -> Script:
    """The script of a seed; ``length`` is about how many steps it has, without the pauses."""
    return _Author(seed).write(length)


class _Author:
    """Writes a script, keeping in mind who is there and in which state."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._chance = Random(f"script {seed}")
        self._steps: list[Step] = []
        self._members: list[str] = []
        self._joined = 0
        self._paused: set[str] = set()
        self._cut_off: set[str] = set()
        self._batch = self._chance.choice((1, 1, 2, 5))
        self._queues = self._chance.choice((1, 2, 3, 4))
        self._commit_every = self._chance.choice((0, 0, 0, 4))
        self._broker = self._chance.choice(BROKERS)
        self._lease_s = self._broker.get("lock_lease_s", 60.0)

    def write(self, length: int) -> Script:
        chance = self._chance
        consumer: dict[str, Any] = {"batch": self._batch, "slots": chance.choice((1, 2, 20))}
        if chance.random() < 0.3:
            consumer["cache_messages"] = chance.choice((1, 5))
        if chance.random() < 0.3:
            consumer["commit_every_s"] = chance.choice((0.01, 5.0))
        if chance.random() < 0.2:
            consumer["turn_share_s"] = 0.1
        if chance.random() < 0.25:
            consumer["max_attempts"] = chance.choice((1, 2, 3))
            consumer["crash_limit"] = chance.choice((3, 5))
        pace_s = chance.choice((0.0, 0.01, 0.05, 0.2))
        self._send()
        self._join()
        for _ in range(length):
            chance.choices(*zip(*self._actions(), strict=True))[0]()
            self._steps.append(Tick(self._pause()))
        expression = chance.choice(("*", "*", "a", "a || b"))
        return Script(
            self._seed, self._queues, tuple(self._steps), tuple(consumer.items()), tuple(self._broker.items()),
            expression, pace_s, self._commit_every,
        )  # fmt: skip

    def _pause(self) -> float:
        few = (0.0, 0.001, 0.01, 0.1, 0.3, 0.7, 1.0)
        some, many = (2.0, 4.0, 4.9, 5.1, 7.0), (self._lease_s * 0.4, self._lease_s + 2.0)
        return self._chance.choice(self._chance.choices((few, some, many), (75, 20, 5))[0])

    def _actions(self) -> list[tuple[Callable[[], None], float]]:
        return [
            (self._send, 8), (self._join, 4), (self._leave, 2), (self._kill, 2), (self._pause_or_resume, 5),
            (self._partition_or_heal, 5), (self._lag, 1), (self._close_unseen, 2), (self._slow, 5), (self._block, 3),
            (self._fail, 6), (self._restart, 0.8), (self._crash, 1.2), (self._outlive, 2), (self._sleep, 1),
            (self._reset, 1), (self._join_during_a_call, 2),
        ]  # fmt: skip

    def _somebody(self) -> str:
        if not self._members:
            self._join()
        return self._chance.choice(self._members)

    def _send(self) -> None:
        chance = self._chance
        for _ in range(chance.choice((1, 1, 3))):
            producer, key = f"p{chance.randint(1, 2)}", f"k{chance.randrange(8)}"
            count, size = chance.choice((2, 8, 20)), chance.choice((0, 20, 3000))
            self._steps.append(Send(producer, count, key, size, chance.choice(TAGS)))

    def _join(self) -> None:
        if len(self._members) < MOST_MEMBERS:
            self._joined += 1
            self._members.append(f"c{self._joined}")
            self._steps.append(Join(self._members[-1]))

    def _leave(self) -> None:
        member = self._somebody()
        self._steps.append(Leave(member))
        self._members.remove(member)

    def _kill(self) -> None:
        member = self._somebody()
        self._steps.append(Kill(member))
        self._members.remove(member)

    def _pause_or_resume(self) -> None:
        member = self._somebody()
        if member in self._paused:
            self._paused.discard(member)
            self._steps.append(Resume(member, self._chance.choice(ORDERS)))
        else:
            self._paused.add(member)
            self._steps.append(Pause(member))

    def _client(self) -> str:
        return self._somebody() if self._chance.random() < 0.9 else f"p{self._chance.randint(1, 2)}"

    def _partition_or_heal(self) -> None:
        client = self._client()
        if client in self._cut_off:
            self._cut_off.discard(client)
            self._steps.append(Heal(client, self._chance.random() < 0.4))
        else:
            self._cut_off.add(client)
            self._steps.append(Partition(client, self._chance.choice(((UP, DOWN), (UP, DOWN), (UP,), (DOWN,)))))

    def _lag(self) -> None:
        self._steps.append(Lag(self._client(), self._chance.choice((0.01, 0.3, 1.5))))

    def _close_unseen(self, client: str | None = None) -> None:
        client = client or self._client()
        self._cut_off.add(client)
        self._steps.append(CloseUnseen(client))

    def _slow(self) -> None:
        self._steps.append(Slow(self._somebody(), self._chance.choice((0.05, 0.5, 1.5, 6.0, 30.0))))

    def _outlive(self) -> None:
        """A call that is still running when the queue has another owner."""
        member = self._somebody()
        self._steps += [Send("p1", 8, f"k{self._chance.randrange(8)}", 0, "a"), Slow(member, 30.0), Tick(0.5)]
        self._steps += [Send("p2", 8, f"k{self._chance.randrange(8)}", 0, "a"), Tick(0.5)]
        self._close_unseen(member)
        self._join()
        self._steps.append(Tick(self._chance.choice((4.5, 5.5, 9.0))))

    def _join_during_a_call(self) -> None:
        """Somebody comes, so that others drop queues, while their listeners are at work."""
        self._steps += [Send("p1", 8, f"k{key}", 0, "a") for key in range(4)]
        self._steps += [Slow(member, 3.0) for member in self._members * 2]
        self._steps.append(Tick(0.3))
        self._join()
        self._steps.append(Tick(self._chance.choice((0.5, 1.5))))

    def _sleep(self) -> None:
        """An owner that is stopped for longer than its lease lives."""
        member = self._somebody()
        self._send()
        self._steps += [Slow(member, 0.3), Tick(0.1), Pause(member)]
        self._join()
        self._steps += [Tick(self._lease_s + 2.0), Resume(member, self._chance.choice(ORDERS))]

    def _block(self) -> None:
        self._steps.append(Block(self._somebody(), self._chance.choice((0.5, 3.0, 5.5, 9.0, 65.0))))

    def _fail(self) -> None:
        member = self._somebody()
        pause_s = self._chance.choice((None, 0.01, 0.4, 3.0))
        self._steps.append(Fail(member, self._chance.choice((1, 1, 2, 4)), pause_s))
        if self._chance.random() < 0.5:
            self._send()

    def _restart(self) -> None:
        self._steps.append(Restart(self._chance.choice((0.0, 0.5, 4.0, 8.0))))

    def _reset(self) -> None:
        self._steps.append(Reset(self._chance.randrange(self._queues), self._chance.choice((0.0, 0.3, 0.8, 1.0))))

    def _crash(self) -> None:
        self._steps.append(Crash(self._chance.choice((KEPT, LOST, TORN)), self._chance.choice((0.0, 0.5, 4.0, 8.0))))
