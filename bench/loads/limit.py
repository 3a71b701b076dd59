"""Measures what this machine allows, without a broker of ours: :mod:`rmq.bench.floor.floor` over several rounds."""

from __future__ import annotations

from dataclasses import replace

from ..figures import Figure, Report, Side, interleave
from ..floor import floor
from ..options import Load, Options, Steps

LARGE = 1024  # bytes a message where bytes count more than messages


def measure(load: Load, options: Options, steps: Steps) -> Report:
    """The floor, the bare socket-to-file loop, ``fdatasync`` alone and the empty echo, in turns."""
    singles = replace(load, batch=1, messages=max(1, load.messages // 5))
    large = replace(load, size=LARGE, messages=max(1, load.messages // 4))
    sides = [
        _rate("floor.produce", f"floor: produce {load.size} B, batches of {load.batch}", floor.produce, load),
        _rate("floor.consume", f"floor: consume {load.size} B, a listener a message", floor.consume, load),
        _rate("floor.singles", f"floor: single sends, {load.in_flight} in flight", floor.produce, singles),
        _rate("floor.produce.1k", f"floor: produce 1 KiB, batches of {load.batch}", floor.produce, large),
        _rate("floor.socket_to_file", f"socket to file, {load.size} B a message", floor.socket_to_file, load),
        _rate("floor.socket_to_file.1k", "socket to file, 1 KiB a message", floor.socket_to_file, large),
        _fdatasync(load, 20 if options.quick else 200),
        _echo(500 if options.quick else 5_000),
    ]
    steps.expect(len(sides) * options.rounds)
    interleave(sides, options.rounds, steps)
    about = {"load": load.as_object(), "rounds": options.rounds}
    return Report("limit", about, [figure for figure, _ in sides])


def _rate(key: str, meaning: str, take: floor.Rate, load: Load) -> Side:
    # The floor writes and never flushes, which is what our broker's mode "async" leaves to the system, too.
    return Figure(f"limit.{key}", meaning, "msg/s", "async"), lambda: take(load)


def _fdatasync(load: Load, times: int) -> Side:
    size = min(load.batch, load.messages) * load.size
    figure = Figure("limit.fdatasync", f"append of {size / 1e3:g} KB and fdatasync, one at a time", "ms", "sync")
    return figure, lambda: floor.fdatasync_ms(size, times)


def _echo(times: int) -> Side:
    figure = Figure("limit.echo", "round trip of an empty msgpack frame, one at a time", "ms")
    return figure, lambda: floor.echo_ms(times)
