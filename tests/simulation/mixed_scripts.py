"""
Scripts of what befalls groups of every mode on one topic, drawn by a seed; see :mod:`simulation.scripts`.

A script is *calm* (nobody dies and nothing is lost, so that everything has to happen exactly once) or *rough*. Members
are named after their group: ``g1-2`` is the second of ``g1``; those of a broadcasting group after their instance, too,
of which one may come back: ``g1-a-2`` is the second life of its instance ``a``.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, TypeAlias

from rigs.disk.crash import KEPT, LOST, TORN
from simulation.mixed_history import CAST, CAST_ORDERLY, CONCURRENT, ORDERLY, PULL, Group
from simulation.network import DOWN, UP
from simulation.processes import ORDERS
from simulation.scripts import (
    Block,
    CloseUnseen,
    Crash,
    Heal,
    Join,
    Kill,
    Lag,
    Leave,
    Partition,
    Pause,
    Restart,
    Resume,
    Slow,
    Tick,
)

MOST_MEMBERS = 3  # of a group
SHORT = "1s 2s 1s 2s 3s 1s"
LONG = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
TAGS = ("a", "b", None)
WAYS = ("retry", "raise", "none", "ack", "suspend")  # how a listener says that messages failed


class Post(NamedTuple):
    """A producer sends messages; each fails at its first ``bad`` deliveries. At most one of the delays is given."""

    producer: str
    count: int
    key: str
    size: int
    tag: str | None = None
    level: int = 0
    delay_s: float | None = None
    bad: int = 0


class Reject(NamedTuple):
    """The next calls of a listener fail this way; ``ack`` takes the first message. A level is asked for, 0 is none."""

    member: str
    times: int
    how: str
    level: int = 0


MixedStep: TypeAlias = (
    Post | Reject | Join | Leave | Kill | Pause | Resume | Partition | Lag | Heal | CloseUnseen | Slow | Block | Restart
    | Crash | Tick
)  # fmt: skip


class MixedScript(NamedTuple):
    """Groups, and what befalls them; ``broker`` are settings that are not the default, as pairs."""

    seed: int
    queues: int
    groups: tuple[Group, ...]
    steps: tuple[MixedStep, ...]
    broker: tuple[tuple[str, Any], ...] = ()
    pace_s: float = 0.0  # what a call takes if nothing else is said

    def __str__(self) -> str:
        head = f"MixedScript(seed={self.seed}, queues={self.queues}, broker={self.broker}, pace_s={self.pace_s}, "
        groups = [f"    {group}," for group in self.groups]
        return "\n".join([head + "groups=(", *groups, "), steps=(", *(f"    {step}," for step in self.steps), "))"])

    def group(self, member: str) -> Group:
        """The group of a member."""
        return next(group for group in self.groups if group.name == group_of(member))


def group_of(member: str) -> str:
    """The name of a member's group."""
    return member.partition("-")[0]


def instance_of(member: str) -> str:
    """Whose progress a broadcasting member goes on with."""
    return member.split("-")[1]


def mixed_script(seed: int, *, length: int = 14) -> MixedScript:
    """The script of a seed; ``length`` is about how many steps it has, without the pauses."""
    return _Author(seed).write(length)


class _Author:
    """Writes a script, keeping in mind who is there and in which state."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._chance = chance = Random(f"mixed script {seed}")
        self._steps: list[MixedStep] = []
        self._calm = chance.random() < 0.4
        self._queues = chance.choice((1, 2, 3))
        self._groups = self._draw_groups()
        self._members: list[str] = []
        self._numbers = {group.name: 0 for group in self._groups}
        self._gone: list[str] = []  # instances that may come back
        self._paused: set[str] = set()
        self._cut_off: set[str] = set()
        self._levels = SHORT if chance.random() < 0.85 else LONG
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

    def write(self, length: int) -> MixedScript:
        chance = self._chance
        broker: dict[str, Any] = {
            "message_delay_level": self._levels, "max_retries": chance.choice((1, 2, 3, 5)),
            "lock_lease_s": self._lease_s,
        }  # fmt: skip
        if chance.random() < 0.3:
            broker["checkpoint_s"] = 3.0  # so that a restart begins with one
        self._post()
        for group in self._groups:
            self._join(group.name)
        for _ in range(length):
            chance.choices(*zip(*self._actions(), strict=True))[0]()
            self._steps.append(Tick(self._pause()))
        pace_s = chance.choice((0.0, 0.0, 0.02, 0.1))
        return MixedScript(self._seed, self._queues, self._groups, tuple(self._steps), tuple(broker.items()), pace_s)

    def _pause(self) -> float:
        few = (0.0, 0.001, 0.01, 0.1, 0.3, 0.7, 1.0, 1.1)
        some, many = (2.0, 3.1, 4.9, 5.1, 7.0), (self._lease_s * 0.4, self._lease_s + 2.0)
        return self._chance.choice(self._chance.choices((few, some, many), (70, 27, 3 if not self._calm else 0))[0])

    def _actions(self) -> list[tuple[Callable[[], None], float]]:
        calm: list[tuple[Callable[[], None], float]] = [
            (self._post, 8), (self._join, 4), (self._leave, 2), (self._slow, 4), (self._reject, 7),
            (self._restart, 1.5), (self._join_during_calls, 2),
        ]  # fmt: skip
        if self._calm:
            return calm
        return [
            *calm, (self._kill, 3), (self._pause_or_resume, 4), (self._partition_or_heal, 4), (self._lag, 1),
            (self._close_unseen, 2), (self._block, 2), (self._crash, 3), (self._crash_when_due, 2),
            (self._crash_at_send_back, 2), (self._outlive, 3), (self._sleep, 2),
        ]  # fmt: skip

    def _somebody(self) -> str:
        if not self._members:
            self._join()
        return self._chance.choice(self._members)

    # What happens

    def _post(self) -> None:
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
            self._steps.append(Post(producer, count, key, size, chance.choice(TAGS), level, delay_s, bad))

    def _join(self, group: str | None = None) -> None:
        chance = self._chance
        group = group or chance.choice(self._groups).name
        if sum(member.startswith(f"{group}-") for member in self._members) >= MOST_MEMBERS:
            return
        back = [instance for instance in self._gone if instance.startswith(f"{group}-")]
        if back and chance.random() < 0.8:
            instance = chance.choice(back)
            self._gone.remove(instance)
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

    def _gone_is(self, member: str) -> None:
        self._members.remove(member)
        if "-i" in member:
            self._gone.append(member.rpartition("-")[0])

    def _leave(self) -> None:
        member = self._somebody()
        if member in self._paused or member in self._cut_off:
            return  # it would not have left when its instance comes back
        self._steps.append(Leave(member))
        self._gone_is(member)

    def _kill(self) -> None:
        member = self._somebody()
        self._steps.append(Kill(member))
        self._gone_is(member)

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

    def _close_unseen(self) -> None:
        client = self._client()
        self._cut_off.add(client)
        self._steps.append(CloseUnseen(client))

    def _slow(self) -> None:
        self._steps.append(Slow(self._somebody(), self._chance.choice((0.05, 0.5, 1.5, 6.0, 9.0))))

    def _block(self) -> None:
        self._steps.append(Block(self._somebody(), self._chance.choice((0.5, 3.0, 5.5, 9.0))))

    def _reject(self) -> None:
        member, times = self._somebody(), self._chance.choice((1, 1, 2, 4))
        level = self._chance.choice((0, 0, 0, 1, 2, -1))
        self._steps.append(Reject(member, times, self._chance.choice(WAYS), level))
        if self._chance.random() < 0.5:
            self._post()

    def _restart(self) -> None:
        self._steps.append(Restart(self._chance.choice((0.0, 0.5, 2.0) if self._calm else (0.0, 0.5, 4.0, 8.0))))

    def _crash(self) -> None:
        self._steps.append(Crash(self._chance.choice((KEPT, LOST, TORN)), self._chance.choice((0.0, 0.5, 4.0))))

    def _crash_when_due(self) -> None:
        """The broker dies around the moment at which messages that wait become due."""
        delay_s = self._chance.choice((0.5, 1.0))
        for number in range(3):
            self._steps.append(Post("p1", 2, f"k{number}", 0, "a", 0, delay_s))
        around = self._chance.choice((-0.001, 0.0, 0.0005, 0.001, 0.002, 0.0021, 0.003, 0.004, 0.01))
        self._steps.append(Tick(delay_s + around))
        self._crash()

    def _crash_at_send_back(self) -> None:
        """The broker dies around the moment at which messages are given back, or given up."""
        member = self._somebody()
        self._steps += [Post("p2", 3, f"k{key}", 0, "a", bad=self._chance.choice((1, 99))) for key in range(3)]
        self._steps += [Slow(member, 0.3)] * 4
        around = self._chance.choice((0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01))
        self._steps.append(Tick(0.3 + around))
        self._crash()

    def _outlive(self) -> None:
        """Calls that are still running when the queue has another owner."""
        member = self._somebody()
        self._post()
        self._steps += [
            *[Slow(member, 20.0)] * 3,
            Tick(0.5),
            Post("p2", 8, f"k{self._chance.randrange(8)}", 0, "a", bad=1),
        ]
        self._cut_off.add(member)
        self._steps += [Tick(0.5), CloseUnseen(member)]
        self._join(group_of(member))
        self._steps.append(Tick(self._chance.choice((4.5, 5.5, 9.0))))

    def _sleep(self) -> None:
        """An owner that is stopped for longer than its lease lives."""
        member = self._somebody()
        self._post()
        self._steps += [*[Slow(member, 0.3)] * 2, Tick(0.1), Pause(member)]
        self._join(group_of(member))
        self._steps += [Tick(self._lease_s + 2.0), Resume(member, self._chance.choice(ORDERS))]
        self._paused.discard(member)

    def _join_during_calls(self) -> None:
        """Somebody comes, so that others drop queues, while their listeners are at work."""
        self._steps += [Post("p1", 4, f"k{key}", 0, "a", bad=self._chance.choice((0, 1))) for key in range(4)]
        self._steps += [Slow(member, 2.0) for member in self._members * 2]
        self._steps.append(Tick(0.3))
        self._join()
        self._steps.append(Tick(self._chance.choice((0.5, 1.5))))
