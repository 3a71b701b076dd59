"""
The history of real processes, out of the logs of their calls and what was done to them: for :mod:`simulation.ordered`.

All times are of one clock, that of the machine. A record is written a moment after the event, and a process may be
stopped in that moment; see :func:`_begun_before_the_stop` and :func:`_seen_by_the_clock`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

from chaos.call_log import END, FAILED, LOST, START, Record
from simulation import history as events
from simulation.history import (
    DONE,
    BrokerCrashed,
    Committed,
    Continued,
    Ended,
    Event,
    Hindered,
    Killed,
    Lost,
    Sent,
    Sink,
    Started,
    Stopped,
    Wrote,
)

Done = Sent | Committed | Stopped | Continued | Killed | BrokerCrashed | Hindered
LATE_S = 0.5  # a record that a stop held back is written within this after it


class Stop(NamedTuple):
    """A process was stopped from then to then."""

    process: str
    began: float
    ended: float


def history_of(records: Iterable[Record], done: Iterable[Done], *, believed_s: float) -> list[Event]:
    """
    Everything in the order in which it happened.

    ``believed_s``: how long a consumer that hears nothing believes in its locks; a longer stop means that they are
    lost for it, whatever else happened.
    """
    done = list(done)
    stops = list(_stops(done))
    records = sorted((_begun_before_the_stop(record, stops) for record in records), key=lambda record: record.at)
    history = [*done, *_calls(records, [stop for stop in stops if stop.ended - stop.began > believed_s])]
    history.sort(key=lambda event: event.at)
    return [*_with_sink(history, records)]


def _stops(done: Iterable[Done]) -> Iterator[Stop]:
    began: dict[str, float] = {}
    for event in done:
        if isinstance(event, Stopped):
            began[event.process] = event.at
        elif isinstance(event, Continued):
            yield Stop(event.process, began.pop(event.process), event.at)


def _begun_before_the_stop(record: Record, stops: list[Stop]) -> Record:
    """
    A call that was begun right before its process was stopped has its record after the stop: move it back.

    It knows by then that its lease is lost. One that does not is left where it is, and judged there.
    """
    if record.kind == START and record.lost:
        for stop in stops:
            if stop.process == record.process and stop.ended <= record.at <= stop.ended + LATE_S:
                return record._replace(at=stop.began)
    return record


def _calls(records: list[Record], long_stops: list[Stop]) -> Iterator[Event]:
    numbers = count(1)
    running: dict[tuple[str, str, int], tuple[int, Record]] = {}
    for record in records:
        owner = record.process, record.queue, record.epoch
        if record.kind == START:
            number = next(numbers)
            running[owner] = number, record
            offsets, bodies = tuple(record.offsets), tuple(body.encode() for body in record.bodies)
            yield Started(
                record.at, number, record.process, record.queue, record.epoch, offsets, tuple(record.attempts), bodies
            )
            continue
        number, start = running[owner]
        if record.kind == LOST:
            yield Lost(record.at, number)
        elif record.kind in (END, FAILED):
            del running[owner]
            yield from _seen_by_the_clock(number, start, record, long_stops)
            yield Ended(record.at, number, (DONE if record.kind == END else events.FAILED,) * len(start.offsets))
    for number, start in running.values():
        yield from _seen_by_the_clock(number, start, None, long_stops)


def _seen_by_the_clock(number: int, start: Record, end: Record | None, long_stops: list[Stop]) -> Iterator[Event]:
    """
    ``context.lost`` reads the clock: after a stop that outlived the lease it is true from the first step on.

    That the call itself saw it is in the record of its end; if it did not, nothing is taken for granted.
    """
    for stop in long_stops:
        spans = stop.process == start.process and start.at <= stop.began and (end is None or stop.ended <= end.at)
        if spans and (end is None or end.lost):
            yield Lost(stop.ended, number)


def _with_sink(history: list[Event], records: list[Record]) -> Iterator[Event]:
    """Let each call that ended well write its messages into a sink that checks the token."""
    sink = Sink()
    ends = iter([record for record in records if record.kind == END])
    for event in history:
        yield event
        if isinstance(event, Ended) and event.result == DONE:
            record = next(ends)
            for offset in record.offsets:
                if sink.write(record.queue, record.epoch):
                    yield Wrote(event.at, record.queue, record.epoch, offset)
