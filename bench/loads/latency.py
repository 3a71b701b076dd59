"""
How long a message takes: one send at a time, to a consumer that waits, under a steady load; and a ping beside a flood.

*round trip*: ``producer.send`` one after the other, beside an empty echo over the same kind of loop, and with ``sync``
beside ``fdatasync`` alone. *wake*: 1,000 pulls of 50 ordered consumers are parked, one message every 50 ms goes to a
random queue, to the call of its listener. *rate*: 20,000 messages a second by a schedule, to
the call of the listener of an ordered consumer. *ping*: one every 10 ms by a schedule, beside a sender that floods the
broker.

Under a schedule time counts from when something was due, not from when it could be sent: a stall is not spared what
waits meanwhile. A sample is a percentile of one round; ``percentiles`` are those of all rounds together.
"""

from __future__ import annotations

import dataclasses
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path

from ..figures import Figure, Report, Side, Verdict, interleave, ratio
from ..floor import floor
from ..load import Load
from ..options import Options, Steps
from ..processes import free_bytes
from .latency_part import Part
from .latency_runs import QUICK, Runs, Sizes

FLOOD_BYTES = 4 << 30  # that a flood may need on the disk
ECHOES = 3.0  # as long as so many round trips of nothing may one of a message be


def measure(load: Load, options: Options, steps: Steps, *, sizes: Sizes | None = None) -> Report:
    """All parts. Of the load count its size and queues, and, for the flood, its batches and calls in flight."""
    sizes = sizes or (QUICK if options.quick else Sizes())
    runs = Runs(load, options, sizes)
    singles = {flush: _single(flush) for flush in flushes(options)}
    echo = Figure("latency.echo", "one empty frame at a time", "ms")
    fdatasync = Figure("latency.fdatasync", "fdatasync alone", "ms")
    wake = Part("latency.wake", "due to parked consumer", options.flush, ("p50", "p99", "max"))
    rate = Part("latency.rate", f"due to listener, {sizes.rate // 1000} k msg/s", options.flush)
    late_sender = Part("latency.rate.behind", "sender behind schedule", None, ("p99",))
    ping = Part("latency.ping", "ping beside a flood", options.flush, why_not=_no_room(options))
    late_pinger = Part("latency.ping.behind", "sender behind schedule", None, ("p99",))
    flood = Figure("latency.ping.flood", "the flood beside the pings", "msg/s", options.flush)

    def take_rate() -> list[float]:
        found = runs.rate()
        late_sender.add(found.behind_us)
        return found.took_us

    def take_ping() -> list[float]:
        found = runs.ping()
        late_pinger.add(found.behind_us)
        flood.samples.append(found.beside)
        return found.took_us

    sides: list[Side] = [part.side(partial(runs.single, flush)) for flush, part in singles.items()]
    sides += [(echo, lambda: floor.echo_ms(sizes.echoes)), (fdatasync, lambda: floor.fdatasync_ms(times=sizes.syncs))]
    sides.append(rate.side(take_rate))
    if not ping.why_not:
        sides.append(ping.side(take_ping))
    steps.expect((len(sides) + 1) * options.rounds)
    interleave(sides, options.rounds, steps)
    with closing(runs.wake(options.rounds)) as waking:  # ends the processes also when somebody interrupts
        for _ in range(options.rounds):
            steps(wake.key)
            wake.add(next(waking))
    parts = [*singles.values(), wake, rate, late_sender, ping, late_pinger]
    figures = [figure for part in parts for figure in part.figures.values()]
    return Report(
        "latency",
        about={
            "load": load.as_object(),
            "flush": options.flush,
            "rounds": options.rounds,
            "parked_pulls": sizes.connections * sizes.queues,
            "pull_connections": sizes.connections,
            "sizes": dataclasses.asdict(sizes),
            "percentiles": {part.key.removeprefix("latency."): part.distribution() for part in parts if part.values},
        },
        figures=[figure for figure in [*figures, echo, fdatasync, flood] if figure.samples],
        verdicts=[
            beside_echo(singles.get("async"), echo),
            wake.at_most("P7.wake.p50", "p50", 1.0),
            wake.at_most("P7.wake.p99", "p99", 3.0),
            rate.at_most("P7.rate.p99", "p99", 10.0),
            ping.at_most("P7.ping.p99", "p99", 5.0),
        ],
    )


def beside_echo(single: Part | None, echo: Figure) -> Verdict:
    """The round trip of one message in terms of one of nothing; the target is about ``async``."""
    meaning = "round trip of a send / of an empty frame, medians"
    if single is None:
        why_not = "the target is about async, and the broker flushes sync"
        return Verdict("P5.echo", meaning, flush="sync", at_most=ECHOES, why_not=why_not)
    return Verdict("P5.echo", meaning, flush="async", samples=ratio(single.first, echo), at_most=ECHOES)


def flushes(options: Options) -> tuple[str, ...]:
    """A broker that runs has one durability; of our own there is one with each."""
    return ("async", "sync") if options.broker is None else (options.flush,)


def _single(flush: str) -> Part:
    key = "latency.round_trip" if flush == "async" else f"latency.round_trip.{flush}"
    return Part(key, "one send at a time", flush)


def _no_room(options: Options) -> str:
    """Why there can be no flood; empty if there can."""
    if options.broker is not None or free_bytes(Path(tempfile.gettempdir())) >= FLOOD_BYTES:
        return ""
    return f"a flood may need {FLOOD_BYTES >> 30} GiB of disk, and there is less"
