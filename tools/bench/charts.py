"""Chooses the plots of a report: one of all targets, and one or more of each command line that can be drawn. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from findings import Findings, Run, is_target, score, whose
from plots import Aim, Axis, Bar, Series, bars, decades, lines, targets
from rmq.bench.figures import Figure, Verdict
from rmq.bench.table import number, wanted

_GROWN = re.compile(r"^scale\.(\w+)\.([\d.e+]+)$")
_UNITS = {"msg/s": "messages a second", "s": "seconds", "MB/s": "MB a second", "ms": "milliseconds", "MB": "MB"}
LEAST_MS = 0.01  # an axis by factors has no zero
NOTED = ("p50", "p99", "max")  # the percentiles with a number: all of them would cover each other
TITLES = {
    "produce": "Sending",
    "consume": "Reading a backlog",
    "end-to-end": "From sender to listener",
    "latency": "Latency",
    "failover": "Taking over from a consumer",
    "scale": "Throughput as things grow",
    "recovery": "Starting again",
    "limit": "What the machine can do",
}


@dataclass(frozen=True)
class Plot:
    """A file: its name, what it shows in words, and the drawing."""

    name: str
    shows: str
    svg: str


def plots(found: Findings) -> list[Plot]:
    """All plots, that of the targets first; what was not measured is in none but that."""
    made = []
    if aims := [_aim(verdict) for verdict in found.verdicts if is_target(verdict)]:
        title = "Targets, and what was found"
        made.append(Plot("bench-targets.svg", title, targets(title, aims)))
    for run in found.runs:
        made += _of_run(run)
    return made


def with_unit(text: str, unit: str) -> str:
    """A number and its unit; a ratio has none."""
    return text if unit == "x" else f"{text} {unit}"


def titled(verdict: Verdict, key: str) -> str:
    """Its key, what it is about, and how durable that was; a target that nothing was run for has a key only."""
    words = key if verdict.meaning == "-" else f"{key}, {verdict.meaning}"
    return f"{words} ({verdict.flush})" if verdict.flush else words


def _aim(verdict: Verdict) -> Aim:
    label = titled(verdict, verdict.key)
    if not verdict.samples:
        return Aim(label, f"not shown: {verdict.why_not or 'nothing was measured'}")
    scores = sorted(score(verdict, sample) for sample in verdict.samples)
    middle = Figure("", "", "", samples=verdict.samples).middle
    note = f"{with_unit(number(middle), verdict.unit)}, wanted {with_unit(wanted(verdict), verdict.unit)}"
    return Aim(label, note, score(verdict, middle), scores[0], scores[-1])


def _of_run(run: Run) -> list[Plot]:
    slug = re.sub(r"[^a-z0-9]+", "-", run.command.removeprefix("rmq-bench").lower()).strip("-") or run.benchmark
    title = f"{TITLES.get(run.benchmark, run.benchmark)}: {run.command}"
    figures = [figure for figure in run.figures if figure.samples]
    drawings: list[str] = []
    if any(run.percentiles.values()):
        drawings.append(_latencies(title, run))
    elif grown := _growths(figures):
        drawings.append(_growth(title, run, grown))
    else:
        for unit, words in _UNITS.items():
            rows = [_bar(figure) for figure in figures if figure.unit == unit]
            if len(rows) > 1:
                drawings.append(bars(title, f"{words}, median and spread", rows))
    names = [f"bench-{slug}{f'-{at}' if at > 1 else ''}.svg" for at in range(1, len(drawings) + 1)]
    return [Plot(name, title, svg) for name, svg in zip(names, drawings, strict=True)]


def _bar(figure: Figure) -> Bar:
    label = f"{figure.meaning} ({figure.flush})" if figure.flush else figure.meaning
    low, high = min(figure.samples), max(figure.samples)
    return Bar(label, figure.middle, number(figure.middle), whose(figure), low, high)


def _latencies(title: str, run: Run) -> str:
    """Plot the latencies of messages; what has no durability, such as a late sender, is left out."""
    durable = {one.key.rpartition(".")[0]: one for one in run.figures if one.flush and one.unit == "ms"}
    shown = {key: of for what, of in run.percentiles.items() if (key := f"{run.benchmark}.{what}") in durable}
    names = list(dict.fromkeys(name for of in shown.values() for name in of))
    ends, marks = decades([max(value, LEAST_MS) for of in shown.values() for value in of.values()], between=(1, 2, 5))
    series = []
    for key, of in shown.items():
        figure = durable[key]
        points = [(float(names.index(name)), max(value, LEAST_MS)) for name, value in of.items()]
        notes = [number(value) if name in NOTED else "" for name, value in of.items()]
        series.append(Series(f"{figure.meaning.rpartition(',')[0]} ({figure.flush})", points, notes))
    across = Axis("percentile of all rounds", (-0.3, len(names) - 0.7), [(at, name) for at, name in enumerate(names)])
    return lines(title, across, Axis("milliseconds", ends, [(mark, f"{mark:g}") for mark in marks], True), series)


def _growths(figures: list[Figure]) -> dict[str, list[tuple[float, Figure]]]:
    found: dict[str, list[tuple[float, Figure]]] = {}
    for figure in figures:
        if figure.unit == "msg/s" and (match := _GROWN.match(figure.key)):
            found.setdefault(match[1], []).append((float(match[2]), figure))
    return {name: sorted(points, key=lambda point: point[0]) for name, points in found.items() if len(points) > 1}


def _growth(title: str, run: Run, grown: dict[str, list[tuple[float, Figure]]]) -> str:
    ends, marks = decades([size for points in grown.values() for size, _ in points])
    series = []
    for name, points in grown.items():
        first = points[0][1].middle
        shares = [(size, figure.middle / first) for size, figure in points]
        shown = {"log": "GB of log"}.get(name, name)
        flush = points[0][1].flush
        notes = ["", *(number(share) for _, share in shares[1:])]
        series.append(Series(f"{shown} ({flush})" if flush else shown, shares, notes))
    top = max([1.2, *(share + 0.1 for one in series for _, share in one.points)])
    steps = [step / 5 for step in range(int(top * 5) + 1)]
    least = next((one.at_least for one in run.verdicts if one.key.startswith("P8.") and one.at_least), None)
    limit = (least, f"at least {least:g} is wanted") if least else None
    across = Axis("how many", ends, [(mark, f"{mark:,g}") for mark in marks], True)
    return lines(title, across, Axis("of the smallest", (0, top), [(at, f"{at:g}") for at in steps]), series, limit)
