"""
Compares sending and end-to-end consumption of rmq and of every other broker that is installed, in turns.

One producer and one consumer process each, the same bodies, batches and calls in flight, every figure with the
durability it was taken with. No target is judged here (those of ``produce`` and ``end-to-end`` are): each ratio is ours
divided by the peer's. A peer that is not installed, or that fails, is not shown, and the report says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rmq.bench.crew import check_stored, durability, new_ground, no_room, send, senders
from rmq.bench.figures import Figure, Report, Side, Verdict, interleave, ratio
from rmq.bench.loads.end_to_end import RIVAL_MESSAGES, our_side
from rmq.bench.options import Load, Options, Steps
from rmq.bench.rivals import Rival, Tried

from .peer import one_each, rate

PRODUCE, END_TO_END, NATIVE = "produce", "end_to_end", "native_produce"
Attempt = tuple[Figure, Tried]  # a side that may fail without ending the others


def measure(load: Load, options: Options, steps: Steps) -> Report:
    """Take all samples of ours and of the rivals in the options."""
    load, flush = one_each(load), durability(options)
    rivals = options.rivals(flush)
    report = Report("peers", {"load": load.as_object(), "flush": flush, "rounds": options.rounds})
    if why_not := no_room(load):
        report.verdicts += [_not_shown(peer, what, why_not) for peer in rivals for what in (PRODUCE, END_TO_END)]
        return report
    mine = _ours(load, options, flush)
    theirs = {peer.name: _theirs(peer, load) for peer in rivals}
    sides: list[Side] = [*mine.values(), *(side for known in theirs.values() for side in known.values())]
    steps.expect(len(sides) * options.rounds)
    interleave(sides, options.rounds, steps)
    report.figures += [figure for figure, _ in mine.values()]
    for peer in rivals:
        found = theirs[peer.name]
        report.figures += [figure for figure, tried in found.values() if not tried.why_not]
        whats = [PRODUCE, END_TO_END, *([NATIVE] if NATIVE in found else [])]
        report.verdicts += [verdict(peer, what, mine, found.get(what)) for what in whats]
    return report


def verdict(peer: Rival, what: str, mine: Mapping[str, Side], theirs: Attempt | None) -> Verdict:
    """Divide ours by theirs, or say why there is no ratio."""
    if theirs is None:
        return _not_shown(peer, what, peer.why_not)
    other, tried = theirs
    if tried.why_not:
        return _not_shown(peer, what, tried.why_not)
    figure, _ = mine[END_TO_END if what == END_TO_END else PRODUCE]
    return replace(_not_shown(peer, what, ""), flush=figure.flush, samples=ratio(figure, other))


def _not_shown(peer: Rival, what: str, why_not: str) -> Verdict:
    meaning = {
        PRODUCE: f"produce, of {peer.name} by its best Python client",
        END_TO_END: f"end to end, of {peer.name} by its best Python client",
        NATIVE: f"produce, of the benchmark that {peer.name} brings along",
    }
    return Verdict(f"peers.{peer.name}.{what}", meaning[what], why_not=why_not)


def _ours(load: Load, options: Options, flush: str) -> dict[str, Side]:
    def produced() -> float:
        with new_ground(options, load) as ground:
            with senders(ground, load, "bodies" if load.batch > 1 else "messages") as children:
                sent = send(children)
            check_stored(ground, load)
        return rate(load, sent.began, sent.ended)

    _, through = our_side(load, options, flush)
    return {
        PRODUCE: (Figure(f"peers.rmq.{PRODUCE}", "rmq: produce", "msg/s", flush), produced),
        END_TO_END: (Figure(f"peers.rmq.{END_TO_END}", "rmq: end to end", "msg/s", flush), through),
    }


def _theirs(peer: Rival, load: Load) -> dict[str, Attempt]:
    some = replace(load, messages=min(load.messages, RIVAL_MESSAGES))

    def attempt(what: str, meaning: str, take: Callable[[], float]) -> Attempt:
        figure = Figure(f"peers.{peer.name}.{what}", f"{peer.name}: {meaning}", "msg/s", peer.durability)
        return figure, Tried(take)

    found: dict[str, Attempt] = {}
    if not peer.why_not:
        found[PRODUCE] = attempt(PRODUCE, "produce", lambda: peer.produce(some))
        found[END_TO_END] = attempt(END_TO_END, "end to end", lambda: peer.consume(some))
    if not peer.native_why_not:
        found[NATIVE] = attempt(NATIVE, "its own benchmark", lambda: peer.native_produce(load))
    return found
