"""
Scripts of what befalls groups of consumers, drawn by a seed: values, so that one that fails can be printed.

``ordered_script(seed)`` is about one ordered group, ``mixed_script(seed)`` about groups of every mode, with deferrals
and retries. Both are pure: the same seed gives the same script, on every machine. A step is done when the pause that
follows it (``Tick``) begins; a script ends where all that hinders the groups is taken away.

A member of a script with several groups is named after its group: ``g1-2`` is the second of ``g1``; one of a
broadcasting group after its instance, too, which may come back: ``g1-i1-2`` is the second life of its instance ``i1``.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, TypeAlias

from rigs.disk.crash import KEPT, LOST, TORN
from simulation.groups import CAST, CAST_ORDERLY, CONCURRENT, ORDERLY, PULL, Group
from simulation.network import DOWN, UP
from simulation.processes import ORDERS

TAGS = ("a", "b", None)
WAYS = ("retry", "raise", "none", "ack", "suspend")  # how a listener says that messages failed


class Send(NamedTuple):
    """A producer sends messages with one key; each fails at its first ``bad`` deliveries. One delay, or none."""

    producer: str
    count: int
    key: str
    size: int
    tag: str | None = None
    level: int = 0
    delay_s: float | None = None
    bad: int = 0


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
    """Nothing goes these ways between a client and the broker, and neither end notices."""

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
    """The broker's end of a client's connection is gone, and nothing gets through that would show it to the client."""

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
    """
    The next calls of a consumer's listener fail in one of the ``WAYS``; ``ack`` takes the first message.

    An ordered listener that suspends asks for this pause, a concurrent one for this level; 0 is none.
    """

    member: str
    times: int
    how: str = "raise"
    level: int = 0
    pause_s: float | None = None


class Restart(NamedTuple):
    """The broker stops cleanly, and starts again after a while."""

    down_s: float


class Crash(NamedTuple):
    """The broker's process, or (``lost``, ``torn``) its machine dies, and it starts again on what is left."""

    policy: str
    down_s: float


class Reset(NamedTuple):
    """An operator sets the offset of the first group to this part of what a queue holds."""

    queue_id: int
    part: float


class Tick(NamedTuple):
    """Time passes."""

    seconds: float


Step: TypeAlias = (
    Send | Join | Leave | Kill | Pause | Resume | Partition | Lag | Heal | CloseUnseen | Slow | Block | Fail | Restart
    | Crash | Reset | Tick
)  # fmt: skip
ORDERED = (Group("g", ORDERLY),)


class Script(NamedTuple):
    """Groups, and what befalls them; ``broker`` are settings that are not the default, as pairs."""

    seed: int
    queues: int
    steps: tuple[Step, ...]
    groups: tuple[Group, ...] = ORDERED
    broker: tuple[tuple[str, Any], ...] = ()
    pace_s: float = 0.0  # what a call takes if nothing else is said
    commit_every: int = 0  # an ordered listener commits when it has this many messages; 0: after each call

    def __str__(self) -> str:
        head = f"Script(seed={self.seed}, queues={self.queues}, groups={self.groups}, broker={self.broker}, "
        head += f"pace_s={self.pace_s}, commit_every={self.commit_every}, steps=("
        return "\n".join([head, *(f"    {step}," for step in self.steps), "))"])

    def group(self, member: str) -> Group:
        """Return the group of a member."""
        return next((one for one in self.groups if one.name == group_of(member)), self.groups[0])


def group_of(member: str) -> str:
    """Return the name of the group that a member is named after."""
    return member.partition("-")[0]


def instance_of(member: str) -> str:
    """Return the instance whose progress a broadcasting member goes on with."""
    return member.split("-")[1]


def ordered_script(seed: int, *, length: int = 18) -> Script:
    """Return the script of a seed; ``length`` is about how many steps it has, without the pauses."""
    return _OrderedAuthor(seed).write(length)


def mixed_script(seed: int, *, length: int = 14) -> Script:
    """Return the script of a seed; ``length`` is about how many steps it has, without the pauses."""
    return _MixedAuthor(seed).write(length)


Actions: TypeAlias = list[tuple[Callable[[], None], float]]


class _Author:
    """Writes a script, keeping in mind which members there are, and in which state."""

    slow_s: tuple[float, ...]
    block_s: tuple[float, ...]
    down_s: tuple[float, ...]  # after a crash
    pauses: tuple[tuple[float, ...], tuple[float, ...]]
    _lease_s: float

    def __init__(self, seed: int, chance: Random) -> None:
        self._seed = seed
        self._chance = chance
        self._steps: list[Step] = []
        self._members: list[str] = []
        self._paused: set[str] = set()
        self._cut_off: set[str] = set()

    def _draw_steps(self, length: int) -> None:
        for _ in range(length):
            self._chance.choices(*zip(*self._actions(), strict=True))[0]()
            self._steps.append(Tick(self._pause()))

    def _actions(self) -> Actions:
        raise NotImplementedError

    def _weights(self) -> tuple[int, int, int]:
        """How likely a short, a longer and a long pause are."""
        raise NotImplementedError

    def _send(self) -> None:
        raise NotImplementedError

    def _join(self, group: str | None = None) -> None:
        raise NotImplementedError

    def _gone(self, member: str) -> None:
        self._members.remove(member)

    def _pause(self) -> float:
        spans = (*self.pauses, (self._lease_s * 0.4, self._lease_s + 2.0))
        return self._chance.choice(self._chance.choices(spans, self._weights())[0])

    def _member(self) -> str:
        if not self._members:
            self._join()
        return self._chance.choice(self._members)

    def _client(self) -> str:
        return self._member() if self._chance.random() < 0.9 else f"p{self._chance.randint(1, 2)}"

    def _leave(self) -> None:
        member = self._member()
        self._steps.append(Leave(member))
        self._gone(member)

    def _kill(self) -> None:
        member = self._member()
        self._steps.append(Kill(member))
        self._gone(member)

    def _pause_or_resume(self) -> None:
        member = self._member()
        if member in self._paused:
            self._paused.discard(member)
            self._steps.append(Resume(member, self._chance.choice(ORDERS)))
        else:
            self._paused.add(member)
            self._steps.append(Pause(member))

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

    def _close_unseen(self) -> None:
        client = self._client()
        self._cut_off.add(client)
        self._steps.append(CloseUnseen(client))

    def _slow(self) -> None:
        self._steps.append(Slow(self._member(), self._chance.choice(self.slow_s)))

    def _block(self) -> None:
        self._steps.append(Block(self._member(), self._chance.choice(self.block_s)))

    def _crash(self) -> None:
        self._steps.append(Crash(self._chance.choice((KEPT, LOST, TORN)), self._chance.choice(self.down_s)))


class _OrderedAuthor(_Author):
    """Writes the script of one ordered group."""

    most_members = 4
    slow_s = (0.05, 0.5, 1.5, 6.0, 30.0)
    block_s = (0.5, 3.0, 5.5, 9.0, 65.0)
    down_s = (0.0, 0.5, 4.0, 8.0)
    pauses = ((0.0, 0.001, 0.01, 0.1, 0.3, 0.7, 1.0), (2.0, 4.0, 4.9, 5.1, 7.0))
    brokers: tuple[dict[str, float], ...] = (  # leases are short, most of the time: simulated seconds take real ones
        {},
        {"lock_lease_s": 12.0},
        {"lock_lease_s": 12.0},
        {"lock_lease_s": 10.0, "grace_s": 2.0, "ping_s": 0.5},
        {"lock_lease_s": 20.0, "grace_s": 8.0},
    )

    def __init__(self, seed: int) -> None:
        super().__init__(seed, Random(f"script {seed}"))
        self._joined = 0
        self._batch = self._chance.choice((1, 1, 2, 5))
        self._queues = self._chance.choice((1, 2, 3, 4))
        self._commit_every = self._chance.choice((0, 0, 0, 4))
        self._broker = self._chance.choice(self.brokers)
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
        self._draw_steps(length)
        expression = chance.choice(("*", "*", "a", "a || b"))
        group = Group("g", ORDERLY, tuple(consumer.items()), expression)
        return Script(
            self._seed, self._queues, tuple(self._steps), (group,), tuple(self._broker.items()), pace_s,
            self._commit_every,
        )  # fmt: skip

    def _weights(self) -> tuple[int, int, int]:
        return 75, 20, 5

    def _actions(self) -> Actions:
        return [
            (self._send, 8), (self._join, 4), (self._leave, 2), (self._kill, 2), (self._pause_or_resume, 5),
            (self._partition_or_heal, 5), (self._lag, 1), (self._close_unseen, 2), (self._slow, 5), (self._block, 3),
            (self._fail, 6), (self._restart, 0.8), (self._crash, 1.2), (self._outlive, 2), (self._sleep, 1),
            (self._reset, 1), (self._join_during_a_call, 2),
        ]  # fmt: skip

    def _send(self) -> None:
        chance = self._chance
        for _ in range(chance.choice((1, 1, 3))):
            producer, key = f"p{chance.randint(1, 2)}", f"k{chance.randrange(8)}"
            count, size = chance.choice((2, 8, 20)), chance.choice((0, 20, 3000))
            self._steps.append(Send(producer, count, key, size, chance.choice(TAGS)))

    def _join(self, group: str | None = None) -> None:
        if len(self._members) < self.most_members:
            self._joined += 1
            self._members.append(f"c{self._joined}")
            self._steps.append(Join(self._members[-1]))

    def _outlive(self) -> None:
        """A call that is still running when the queue has another owner."""
        member = self._member()
        self._steps += [Send("p1", 8, f"k{self._chance.randrange(8)}", 0, "a"), Slow(member, 30.0), Tick(0.5)]
        self._steps += [Send("p2", 8, f"k{self._chance.randrange(8)}", 0, "a"), Tick(0.5)]
        self._cut_off.add(member)
        self._steps.append(CloseUnseen(member))
        self._join()
        self._steps.append(Tick(self._chance.choice((4.5, 5.5, 9.0))))

    def _join_during_a_call(self) -> None:
        """A member comes, so that others drop queues, while their listeners are at work."""
        self._steps += [Send("p1", 8, f"k{key}", 0, "a") for key in range(4)]
        self._steps += [Slow(member, 3.0) for member in self._members * 2]
        self._steps.append(Tick(0.3))
        self._join()
        self._steps.append(Tick(self._chance.choice((0.5, 1.5))))

    def _sleep(self) -> None:
        """An owner that is stopped for longer than its lease lives."""
        member = self._member()
        self._send()
        self._steps += [Slow(member, 0.3), Tick(0.1), Pause(member)]
        self._join()
        self._steps += [Tick(self._lease_s + 2.0), Resume(member, self._chance.choice(ORDERS))]

    def _fail(self) -> None:
        member = self._member()
        pause_s = self._chance.choice((None, 0.01, 0.4, 3.0))
        how = "raise" if pause_s is None else "suspend"
        self._steps.append(Fail(member, self._chance.choice((1, 1, 2, 4)), how, 0, pause_s))
        if self._chance.random() < 0.5:
            self._send()

    def _restart(self) -> None:
        self._steps.append(Restart(self._chance.choice((0.0, 0.5, 4.0, 8.0))))

    def _reset(self) -> None:
        self._steps.append(Reset(self._chance.randrange(self._queues), self._chance.choice((0.0, 0.3, 0.8, 1.0))))


class _MixedAuthor(_Author):
    """Writes a script for groups of every mode: *calm* (all happens exactly once) or *rough* (with deaths and loss)."""

    most_members = 3  # of a group
    slow_s = (0.05, 0.5, 1.5, 6.0, 9.0)
    block_s = (0.5, 3.0, 5.5, 9.0)
    down_s = (0.0, 0.5, 4.0)
    pauses = ((0.0, 0.001, 0.01, 0.1, 0.3, 0.7, 1.0, 1.1), (2.0, 3.1, 4.9, 5.1, 7.0))
    short = "1s 2s 1s 2s 3s 1s"
    long = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

    def __init__(self, seed: int) -> None:
        super().__init__(seed, chance := Random(f"mixed script {seed}"))
        self._calm = chance.random() < 0.4
        self._queues = chance.choice((1, 2, 3))
        self._groups = self._draw_groups()
        self._numbers = {group.name: 0 for group in self._groups}
        self._dormant: list[str] = []  # instances that may come back
        self._levels = self.short if chance.random() < 0.85 else self.long
        self._lease_s = chance.choice((60.0, 12.0, 12.0))

    def _draw_groups(self) -> tuple[Group, ...]:
        chance = self._chance
        kinds = chance.choice(
            (
                (CONCURRENT,), (CONCURRENT,), (CONCURRENT,), (CAST,), (CAST_ORDERLY,), (PULL,), (PULL,),
                (CONCURRENT, CAST), (CONCURRENT, PULL), (CONCURRENT, ORDERLY), (CAST_ORDERLY, PULL),
                (CONCURRENT, CONCURRENT),
            )
        )  # fmt: skip
        return tuple(self._draw_group(f"g{number}", kind) for number, kind in enumerate(kinds, 1))

    def _draw_group(self, name: str, kind: str) -> Group:
        chance = self._chance
        settings: dict[str, object] = {}
        if kind != PULL:
            settings |= {"batch": chance.choice((1, 2, 4, 10)), "slots": chance.choice((1, 2, 20))}
        if chance.random() < 0.2:
            settings["cache_messages"] = chance.choice((1, 5))
        if kind == CONCURRENT:
            settings["max_attempts"] = chance.choice((-1, -1, 1, 2, 3, 4))
            if chance.random() < 0.2:
                settings["max_span"] = 5
            if chance.random() < 0.2:
                settings["consume_timeout_s"] = 4.0
        elif kind == CAST_ORDERLY:
            settings |= {"max_attempts": chance.choice((1, 2, 3)), "suspend_s": 0.05}
        elif kind == PULL and chance.random() < 0.3:
            settings["auto_commit_every_s"] = chance.choice((0.2, 1.0))
        return Group(name, kind, tuple(settings.items()), chance.choice(("*", "*", "*", "a || b")))

    def write(self, length: int) -> Script:
        chance = self._chance
        broker: dict[str, Any] = {
            "message_delay_level": self._levels, "max_retries": chance.choice((1, 2, 3, 5)),
            "lock_lease_s": self._lease_s,
        }  # fmt: skip
        if chance.random() < 0.3:
            broker["checkpoint_s"] = 3.0  # so that a restart begins with one
        self._send()
        for group in self._groups:
            self._join(group.name)
        self._draw_steps(length)
        pace_s = chance.choice((0.0, 0.0, 0.02, 0.1))
        return Script(self._seed, self._queues, tuple(self._steps), self._groups, tuple(broker.items()), pace_s)

    def _weights(self) -> tuple[int, int, int]:
        return 70, 27, 3 if not self._calm else 0

    def _actions(self) -> Actions:
        calm: Actions = [
            (self._send, 8), (self._join, 4), (self._leave, 2), (self._slow, 4), (self._fail, 7),
            (self._restart, 1.5), (self._join_during_calls, 2),
        ]  # fmt: skip
        if self._calm:
            return calm
        return [
            *calm, (self._kill, 3), (self._pause_or_resume, 4), (self._partition_or_heal, 4), (self._lag, 1),
            (self._close_unseen, 2), (self._block, 2), (self._crash, 3), (self._crash_when_due, 2),
            (self._crash_at_send_back, 2), (self._outlive, 3), (self._sleep, 2),
        ]  # fmt: skip

    def _send(self) -> None:
        chance = self._chance
        for _ in range(chance.choice((1, 2, 3))):
            producer, key = f"p{chance.randint(1, 2)}", f"k{chance.randrange(8)}"
            count, size = chance.choice((1, 4, 10)), chance.choice((0, 20, 1000))
            level, delay_s = 0, None
            if chance.random() < 0.4:
                if chance.random() < 0.5:
                    level = chance.choice((1, 2, 3))
                else:
                    delay_s = chance.choice((-1.0, 0.0, 0.001, 0.25, 1.0, 3.3, 6.0))
            bad = chance.choice((0, 0, 0, 1, 2, 99))
            self._steps.append(Send(producer, count, key, size, chance.choice(TAGS), level, delay_s, bad))

    def _join(self, group: str | None = None) -> None:
        chance = self._chance
        group = group or chance.choice(self._groups).name
        if sum(member.startswith(f"{group}-") for member in self._members) >= self.most_members:
            return
        back = [instance for instance in self._dormant if instance.startswith(f"{group}-")]
        if back and chance.random() < 0.8:
            instance = chance.choice(back)
            self._dormant.remove(instance)
        else:
            self._numbers[group] += 1
            kind = next(one for one in self._groups if one.name == group)
            instance = f"{group}-{self._numbers[group]}" if kind.shared else f"{group}-i{self._numbers[group]}"
        if "-i" in instance:
            self._numbers[group] += 1
            member = f"{instance}-{self._numbers[group]}"
        else:
            member = instance
        self._members.append(member)
        self._steps.append(Join(member))

    def _gone(self, member: str) -> None:
        self._members.remove(member)
        if "-i" in member:
            self._dormant.append(member.rpartition("-")[0])

    def _leave(self) -> None:
        member = self._member()
        if member in self._paused or member in self._cut_off:
            return  # it would not have left when its instance comes back
        self._steps.append(Leave(member))
        self._gone(member)

    def _fail(self) -> None:
        member, times = self._member(), self._chance.choice((1, 1, 2, 4))
        level = self._chance.choice((0, 0, 0, 1, 2, -1))
        self._steps.append(Fail(member, times, self._chance.choice(WAYS), level))
        if self._chance.random() < 0.5:
            self._send()

    def _restart(self) -> None:
        self._steps.append(Restart(self._chance.choice((0.0, 0.5, 2.0) if self._calm else (0.0, 0.5, 4.0, 8.0))))

    def _crash_when_due(self) -> None:
        """The broker dies around the moment at which messages that wait become due."""
        delay_s = self._chance.choice((0.5, 1.0))
        for number in range(3):
            self._steps.append(Send("p1", 2, f"k{number}", 0, "a", 0, delay_s))
        around = self._chance.choice((-0.001, 0.0, 0.0005, 0.001, 0.002, 0.0021, 0.003, 0.004, 0.01))
        self._steps.append(Tick(delay_s + around))
        self._crash()

    def _crash_at_send_back(self) -> None:
        """The broker dies around the moment at which messages are given back, or given up."""
        member = self._member()
        self._steps += [Send("p2", 3, f"k{key}", 0, "a", bad=self._chance.choice((1, 99))) for key in range(3)]
        self._steps += [Slow(member, 0.3)] * 4
        around = self._chance.choice((0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01))
        self._steps.append(Tick(0.3 + around))
        self._crash()

    def _outlive(self) -> None:
        """Calls that are still running when the queue has another owner."""
        member = self._member()
        self._send()
        self._steps += [
            *[Slow(member, 20.0)] * 3,
            Tick(0.5),
            Send("p2", 8, f"k{self._chance.randrange(8)}", 0, "a", bad=1),
        ]
        self._cut_off.add(member)
        self._steps += [Tick(0.5), CloseUnseen(member)]
        self._join(group_of(member))
        self._steps.append(Tick(self._chance.choice((4.5, 5.5, 9.0))))

    def _sleep(self) -> None:
        """An owner that is stopped for longer than its lease lives."""
        member = self._member()
        self._send()
        self._steps += [*[Slow(member, 0.3)] * 2, Tick(0.1), Pause(member)]
        self._join(group_of(member))
        self._steps += [Tick(self._lease_s + 2.0), Resume(member, self._chance.choice(ORDERS))]
        self._paused.discard(member)

    def _join_during_calls(self) -> None:
        """A member comes, so that others drop queues, while their listeners are at work."""
        self._steps += [Send("p1", 4, f"k{key}", 0, "a", bad=self._chance.choice((0, 1))) for key in range(4)]
        self._steps += [Slow(member, 2.0) for member in self._members * 2]
        self._steps.append(Tick(0.3))
        self._join()
        self._steps.append(Tick(self._chance.choice((0.5, 1.5))))
