"""
Whether all that befell the groups of a script may have happened, each judged by the rules of its mode: pure.

Ordered groups and pull consumers, which get the messages of a queue one after the other, are judged by the rules of
:mod:`simulation.ordered`; to them a message that waited was sent when its time had come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from rmq.wire.model import MessageQueue

from simulation import history as ordered
from simulation.broadcast import judge_broadcast
from simulation.concurrent import Findings, judge_concurrent
from simulation.final_log import Log, judge_log
from simulation.mixed_history import (
    CONCURRENT,
    CUT,
    OK,
    PULL,
    Accepted,
    Born,
    Called,
    Group,
    Levels,
    MixedEvent,
    Owned,
    Released,
    Returned,
    Row,
    Stored,
    Told,
)
from simulation.ordered import judge

TOPIC = "orders"


class MixedVerdict(NamedTuple):
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


def judge_mixed(
    events: list[MixedEvent], rows: list[Row], groups: tuple[Group, ...], levels: Levels, *, grace_s: float
) -> MixedVerdict:
    """Judge everything that befell the groups of a topic."""
    log = Log(rows)
    violations = judge_log(events, log, groups, levels, TOPIC)
    found = [_judge_group(events, log, group, levels, grace_s) for group in groups]
    for one in found:
        violations += one.violations
    return MixedVerdict(
        violations, sum(one.calls for one in found), sum(one.fenced_overlaps for one in found),
        sum(one.strict for one in found), sum(one.again for one in found),
        sum(len(log.topic(group.dead)) for group in groups), sum(len(log.topic(group.retries)) for group in groups),
        sum(one.local for one in found),
    )  # fmt: skip


def _judge_group(events: list[MixedEvent], log: Log, group: Group, levels: Levels, grace_s: float) -> Findings:
    if group.kind == CONCURRENT:
        return judge_concurrent(events, log, group, levels, TOPIC, grace_s=grace_s)
    if not group.shared:
        return judge_broadcast(events, log, group, TOPIC)
    verdict = judge(
        list(_in_order(events, log, group)), grace_s=grace_s, wants=group.wants,
        settle_s=levels.settle_s,
    )  # fmt: skip
    violations = [f"{group.name}: {text}" for text in verdict.violations]
    calm, again = _is_calm(events, group), 0
    if group.kind == PULL:  # nothing fails: what is given again was given in vain
        counts = Counter(
            (e.queue, offset) for e in events if isinstance(e, Called) and e.group == group.name for offset in e.offsets
        )
        twice = [
            f"{group.name}: {queue} {offset} was given {n} times" for (queue, offset), n in counts.items() if n > 1
        ]
        again = len(twice)
        violations += twice if calm else []
    return Findings(violations, verdict.calls, verdict.fenced_overlaps, calm, again, 0)


def _is_calm(events: list[MixedEvent], group: Group) -> bool:
    """Whether nobody of a group died, and no lease was lost."""
    members = {event.process for event in events if isinstance(event, Born) and event.group == group.name}
    owners: dict[tuple[str, MessageQueue], Owned] = {}
    released: set[tuple[MessageQueue, int]] = set()
    for event in events:
        if isinstance(event, ordered.BrokerCrashed | ordered.Lost):
            return False
        if isinstance(event, ordered.Killed) and event.process in members:
            return False
        if isinstance(event, Released):
            released.add((event.queue, event.epoch))
        elif isinstance(event, Owned) and event.group == group.name:
            before = owners.get((group.name, event.queue))
            if before is not None and (event.queue, before.epoch) not in released:
                return False
            owners[group.name, event.queue] = event
    return True


def _in_order(events: list[MixedEvent], log: Log, group: Group) -> Iterator[ordered.Event]:
    """The same history, as one of an ordered group."""
    calls: set[int] = set()
    for event in events:
        if getattr(event, "group", group.name) != group.name:
            continue
        if isinstance(event, Accepted):
            yield from _sent(event, log)
        elif isinstance(event, AS_THEY_ARE):
            yield event
        elif isinstance(event, Returned | ordered.Lost):
            if event.call in calls:
                yield event if isinstance(event, ordered.Lost) else _ended(event)
        else:
            if isinstance(event, Called):
                calls.add(event.call)
            yield from _of_a_queue(event)


AS_THEY_ARE = (ordered.Stopped, ordered.Continued, ordered.Killed, ordered.BrokerCrashed, ordered.Hindered)


def _sent(event: Accepted, log: Log) -> Iterator[ordered.Event]:
    """Each by a producer of its own: their order is judged elsewhere."""
    for row in log.of(TOPIC, event.body):
        name = f"{event.producer} {event.number}"
        at = max(event.at, row.at)
        yield ordered.Sent(at, row.queue, row.offset, event.body, name, event.number, event.tag)


def _ended(event: Returned) -> ordered.Ended:
    good, cut = all(fate == OK for fate in event.fates), CUT in event.fates
    return ordered.Ended(event.at, event.call, ordered.DONE if good else ordered.CUT if cut else ordered.AGAIN)


def _of_a_queue(event: MixedEvent) -> Iterator[ordered.Event]:
    match event:
        case Owned():
            yield ordered.Granted(event.at, event.process, event.queue, event.epoch, event.committed)
        case Called():
            yield ordered.Started(
                event.at, event.call, event.process, event.queue, event.epoch, event.offsets, event.attempts,
                event.bodies, event.lost,
            )  # fmt: skip
        case Stored():
            yield ordered.Committed(event.at, event.queue, event.offset)
        case Told():
            yield ordered.Promised(event.at, event.queue, event.offset)
