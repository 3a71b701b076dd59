"""
Whether all that befell the groups of a script may have happened, each judged by the rules of its mode: pure.

Ordered groups and pull consumers, which get the messages of a queue one after the other, are judged by the rules of
:mod:`simulation.ordered`; to them a deferred message was sent when its time had come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from simulation import ordered
from simulation.broadcast import judge_broadcast
from simulation.concurrent import Findings, judge_concurrent
from simulation.final_log import Log, judge_log
from simulation.groups import CONCURRENT, PULL, TOPIC, Group, Levels
from simulation.history import (
    Born,
    BrokerCrashed,
    Event,
    Granted,
    Killed,
    Lost,
    Queue,
    Released,
    Row,
    Sent,
    Started,
    concerns,
)


class Verdict(NamedTuple):
    """What was broken, and what there was to judge."""

    violations: list[str]
    calls: int
    fenced_overlaps: int
    strict: int  # groups in which everything had to happen exactly once
    again: int
    dead: int
    retried: int
    local: int

    def __str__(self) -> str:
        head = f"{self.calls} calls, {self.fenced_overlaps} fenced overlaps, {len(self.violations)} violations"
        return "\n  ".join([head, *self.violations[:10]])


def judge(
    events: list[Event], rows: list[Row], groups: tuple[Group, ...], levels: Levels, *, grace_s: float
) -> Verdict:
    """Judge everything that befell the groups of a topic, and what the log holds in the end."""
    log = Log(rows)
    found = [_judge_group(events, log, group, levels, grace_s) for group in groups]
    violations = judge_log(events, log, groups, levels, TOPIC)
    for one in found:
        violations += one.violations
    return Verdict(
        violations, sum(one.calls for one in found), sum(one.fenced_overlaps for one in found),
        sum(one.strict for one in found), sum(one.again for one in found),
        sum(len(log.topic(group.dead)) for group in groups), sum(len(log.topic(group.retries)) for group in groups),
        sum(one.local for one in found),
    )  # fmt: skip


def _judge_group(events: list[Event], log: Log, group: Group, levels: Levels, grace_s: float) -> Findings:
    if group.kind == CONCURRENT:
        return judge_concurrent(events, log, group, levels, TOPIC, grace_s=grace_s)
    if not group.shared:
        return judge_broadcast(events, log, group, TOPIC)
    verdict = ordered.judge(
        _as_stored(events, log, group), grace_s=grace_s, wants=group.wants, settle_s=levels.settle_s
    )
    violations = [f"{group.name}: {text}" for text in verdict.violations]
    calm, again = _is_calm(events, group), 0
    if group.kind == PULL:  # nothing fails: what is given again was given in vain
        counts = Counter(
            (e.queue, offset)
            for e in events
            if isinstance(e, Started) and concerns(e, group.name)
            for offset in e.offsets
        )
        twice = [
            f"{group.name}: {queue} {offset} was given {n} times" for (queue, offset), n in counts.items() if n > 1
        ]
        again = len(twice)
        violations += twice if calm else []
    return Findings(violations, verdict.calls, verdict.fenced_overlaps, calm, again, 0)


def _is_calm(events: list[Event], group: Group) -> bool:
    """Return whether no member of a group died, and no lease was lost."""
    members = {event.process for event in events if isinstance(event, Born) and concerns(event, group.name)}
    owners: dict[Queue, Granted] = {}
    released: set[tuple[Queue, int]] = set()
    for event in events:
        if isinstance(event, BrokerCrashed | Lost):
            return False
        if isinstance(event, Killed) and event.process in members:
            return False
        if isinstance(event, Released):
            released.add((event.queue, event.epoch))
        elif isinstance(event, Granted) and concerns(event, group.name):
            before = owners.get(event.queue)
            if before is not None and (event.queue, before.epoch) not in released:
                return False
            owners[event.queue] = event
    return True


def _as_stored(events: list[Event], log: Log, group: Group) -> Iterator[Event]:
    """
    Return what concerns a group, each message sent when and where it was stored.

    Each has a producer of its own: their order is judged with the log.
    """
    for event in events:
        if isinstance(event, Sent):
            for row in log.of(TOPIC, event.body):
                name = f"{event.producer} {event.number}"
                yield event._replace(at=max(event.at, row.at), queue=row.queue, offset=row.offset, producer=name)
        elif concerns(event, group.name):
            yield event
