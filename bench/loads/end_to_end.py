"""
Measures how fast messages get through: some processes send while others consume in order, one message a listener call.

Consumers are at default settings and wait for messages when the first is sent. The rate is messages / (last one
consumed - first one sent), on the machine's clock; every message and every byte must have arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..crew import begin, check_stored, durability, new_ground, no_room, receive, receivers, send, senders
from ..figures import Figure, Report, Side, Verdict, interleave, ratio
from ..floor import floor
from ..options import Load, Options, Steps
from ..rivals import NO_RIVALS, Rival, Tried

FLOOR = Verdict("P3.floor", "end to end, of the floor's consume figure (stretch: 0.5)", at_least=0.3)
RIVAL_MESSAGES = 200_000  # at most: they are slow, and hardly faster with more
PEER = Verdict("P3.peer", "end to end, of the best Python client of a peer", at_least=10.0)


def prefix(load: Load, flush: str) -> str:
    """Return the prefix of all keys of a run."""
    parts = ["end_to_end", f"{load.size}B" if load.size != Load.size else "", "sync" if flush == "sync" else ""]
    return ".".join(part for part in parts if part)


def targets(load: Load) -> tuple[Verdict, ...]:
    """Return the targets that a run with this load is about."""
    return (FLOOR, PEER) if (load.size, load.queues, load.producers, load.consumers) == (100, 8, 1, 1) else ()


def measure(load: Load, options: Options, steps: Steps) -> Report:
    """Take all samples."""
    flush = durability(options)
    report = Report("end-to-end", {"load": load.as_object(), "flush": flush, "rounds": options.rounds})
    wanted = [replace(target, flush=flush) for target in targets(load)]
    if why_not := no_room(load):
        report.verdicts += [replace(target, why_not=why_not) for target in wanted]
        return report
    # A quick run, or a load that no target is about, is not worth their time.
    known: Sequence[Rival] = options.rivals(flush) if wanted and not options.quick else ()
    ours = our_side(load, options, flush)
    bare = _floor(load, flush)
    theirs = {peer.name: _peer(load, flush, peer) for peer in known if not peer.why_not}
    sides: list[Side] = [ours, bare, *theirs.values()]
    steps.expect(len(sides) * options.rounds)
    interleave(sides, options.rounds, steps)
    reasons = {peer.name: peer.why_not or theirs[peer.name][1].why_not for peer in known}
    found = {name: figure for name, (figure, _) in theirs.items() if not reasons[name]}
    report.figures += [ours[0], bare[0], *found.values()]
    if wanted:
        report.verdicts.append(replace(FLOOR, flush=flush, samples=ratio(ours[0], bare[0])))
        report.verdicts += [replace(each, flush=flush) for each in against_rivals(ours[0], found, reasons)]
    return report


def against_rivals(ours: Figure, found: Mapping[str, Figure], reasons: Mapping[str, str]) -> list[Verdict]:
    """
    Compare ours with the best of all rivals in each round, and with each of them.

    The best of those that were measured is not shown as the best of all: a missing one may be better.
    """
    missing = "; ".join(f"{name}: {why_not}" for name, why_not in reasons.items() if why_not)
    if missing or not found:
        best = replace(PEER, why_not=missing or NO_RIVALS)
    else:
        best = replace(PEER, samples=[mine / max(them) for mine, *them in _rounds(ours, *found.values())])
    each = replace(PEER, meaning="end to end, of its best Python client")
    verdicts = [best]
    for name, why_not in reasons.items():
        samples = [] if why_not else ratio(ours, found[name])
        verdicts.append(replace(each, key=f"{PEER.key}.{name}", samples=samples, why_not=why_not))
    return verdicts


def _rounds(*figures: Figure) -> Iterator[tuple[float, ...]]:
    return zip(*(figure.samples for figure in figures), strict=True)


def our_side(load: Load, options: Options, flush: str) -> Side:
    """Return our figure, and how a sample of it is taken."""
    meaning = "in order, one message a call of an async def listener"
    figure = Figure(f"{prefix(load, flush)}.messages", meaning, "msg/s", flush)

    def take() -> float:
        with new_ground(options, load) as ground:
            warm = ground.fill_warm_up(load)
            with (
                receivers(ground, load, "messages", warm=warm, paused=False) as consumers,
                senders(ground, load, "bodies") as producers,
            ):
                begin(consumers)
                sent = send(producers)
                got = receive(consumers, load, check_stored(ground, load))
        return load.messages / (got.last_at - sent.began)

    return figure, take


def _floor(load: Load, flush: str) -> Side:
    figure = Figure(f"{prefix(load, flush)}.floor", "a bare loop that pulls, unpacks and listens", "msg/s", "async")
    return figure, lambda: floor.consume(load)


def _peer(load: Load, flush: str, peer: Rival) -> tuple[Figure, Tried]:
    meaning = f"{peer.name} by its best Python client"
    figure = Figure(f"{prefix(load, flush)}.{peer.name}", meaning, "msg/s", peer.durability)
    some = replace(load, messages=min(load.messages, RIVAL_MESSAGES))
    return figure, Tried(lambda: peer.consume(some))
