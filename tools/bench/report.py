"""
Writes the measured part of docs/benchmarks.md, and its plots, from docs/benchmarks.json: ``make bench-report``.

``RUN=1`` measures first, some 12 minutes, and keeps that as the JSON. The part stands between two comments; everything
around it stays. Plots are docs/images/bench-*.svg; those of a former report are removed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from charts import TITLES, Plot, plots, titled, with_unit
from findings import Findings, NotAReport, is_target, read, score
from rmq.bench.figures import Figure, Verdict
from rmq.bench.table import described, number, wanted

BEGINS = "<!-- made by `make bench-report` from benchmarks.json, as are the plots; not by hand -->"
ENDS = "<!-- the end of what `make bench-report` makes -->"


def main() -> None:
    """Parse the command line, write the files that changed."""
    parser = argparse.ArgumentParser(description="Make the report of the benchmarks from their JSON.")
    parser.add_argument("docs", nargs="?", type=Path, default=Path("docs"), help="the folder (default: %(default)s)")
    docs = parser.parse_args().docs
    try:
        made = report(docs)
    except (NotAReport, OSError, ValueError) as error:
        sys.exit(f"bench-report: {error}")
    for path, content in made.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    for path in stale_plots(docs, made):
        path.unlink()


def report(docs: Path) -> dict[Path, str]:
    """
    Every file of the report, and what is to be in it.

    Raises:
        NotAReport: the JSON is of something else, or the page has no place for the report.
    """
    found = read(json.loads((docs / "benchmarks.json").read_text()))
    drawn = plots(found)
    page = docs / "benchmarks.md"
    made = {docs / "images" / plot.name: plot.svg for plot in drawn}
    return {page: placed(page.read_text(), text(found, drawn)), **made}


def placed(page: str, part: str) -> str:
    """The page with this part in its place."""
    before, begins, rest = page.partition(BEGINS)
    _, ends, after = rest.partition(ENDS)
    if not begins or not ends:
        raise NotAReport(f"the page has no place for the report: a line {BEGINS} and a line {ENDS}")
    return f"{before}{BEGINS}\n\n{part.strip()}\n\n{ENDS}{after}"


def stale_plots(docs: Path, made: dict[Path, str]) -> list[Path]:
    """Plots of a report that was."""
    return sorted(path for path in (docs / "images").glob("bench-*.svg") if path not in made)


NOTHING = "Nothing has been measured yet: `make bench-report RUN=1` does it.\n"


def text(found: Findings, plots: Sequence[Plot]) -> str:
    """All of it; headings are of the third level."""
    if not found.runs:
        return NOTHING
    parts = [_targets(found, plots), _method(found), _plots(plots), _against(found)]
    return "\n".join(parts)


def _targets(found: Findings, plots: Sequence[Plot]) -> str:
    aims = [verdict for verdict in found.verdicts if is_target(verdict)]
    met, missed = sum(one.met is True for one in aims), sum(one.met is False for one in aims)
    rows = [
        [
            one.key, one.meaning, _wanted(one), _found(one), _result(one), one.flush or "-",
            _code(found.command_of(one)),
        ]
        for one in aims
    ]  # fmt: skip
    lines = [
        "### Ratios",
        "",
        f"Targets met: {met}, not met: {missed}, not shown: {len(aims) - met - missed}. What speaks against us is "
        "[below](#unfavourable-cases).",
        "",
        "*Found* is the median of the rounds, with the smallest and the largest; without a unit it is a ratio within "
        "one run. *Durability* is that of rmq.",
        "",
        *_table(["target", "what", "wanted", "found", "result", "durability", "to repeat"], rows),
    ]
    lines += [line for plot in plots[:1] for line in ("", _image(plot))]
    return "\n".join(lines) + "\n"


def _method(found: Findings) -> str:
    lines = ["### What was measured, and how", "", f"The machine: {described(found.machine) or 'unknown'}.", ""]
    for run in found.runs:
        lines += [f"#### {TITLES.get(run.benchmark, run.benchmark)}: `{run.command}`", ""]
        if run.why_not:
            lines += [f"Not shown: {run.why_not}.", ""]
            continue
        if run.about:
            how = described(run.about)
            lines += [how[0].upper() + how[1:] + ".", ""]
        rows = [
            [_code(one.key), one.meaning, one.flush or "-", *_spread(one), one.unit]
            for one in run.figures
            if one.samples
        ]
        lines += [*_table(["key", "what", "durability", "median", "smallest to largest", "unit"], rows), ""]
    return "\n".join(lines)


def _plots(plots: Sequence[Plot]) -> str:
    lines = ["### Plots", ""]
    for plot in plots[1:]:
        lines += [_image(plot), ""]
    return "\n".join(lines)


def _against(found: Findings) -> str:
    lines = ["### Unfavourable cases", ""]
    for title, points in (
        ("Not met:", [_missed(one) for one in found.verdicts if one.met is False]),
        ("Met by the median, but not in every round:", list(_wavering(found.verdicts))),
        ("Another broker was ahead, in the same run:", list(_ahead(found))),
        ("Not shown, which is not the same as met:", list(_unseen(found.verdicts))),
    ):
        if points:
            lines += [title, "", *(f"- {point}" for point in points), ""]
    if len(lines) == 2:
        lines += ["In this run every target was met, in every round, and no other broker was ahead.", ""]
    return "\n".join(lines)


def _missed(verdict: Verdict) -> str:
    share = score(verdict, median(verdict.samples))
    how_far = f"{1 - share:.0%} short" if verdict.at_most is None else f"{1 / share:.1f} times as much"
    return f"{_named(verdict)}: {_found(verdict)}, wanted {_wanted(verdict)}: {how_far}"


def _wavering(verdicts: Iterable[Verdict]) -> Iterator[str]:
    for one in verdicts:
        failed = sum(score(one, sample) < 1 for sample in one.samples) if one.met else 0
        if failed:
            rounds = f"missed in {failed} of {len(one.samples)} rounds"
            yield f"{_named(one)}: {_found(one)}, wanted {_wanted(one)}: {rounds}"


def _ahead(found: Findings) -> Iterator[str]:
    for run, ours, theirs in found.peers_ahead():
        yield (
            f"{_code(run.command)}: {theirs.meaning} ({theirs.flush}) {number(theirs.middle)} {theirs.unit}, "
            f"{ours.meaning} ({ours.flush}) {number(ours.middle)}: {ours.middle / theirs.middle:.0%} of it"
        )


def _unseen(verdicts: Iterable[Verdict]) -> Iterator[str]:
    for one in verdicts:
        if not one.samples:
            yield f"{_named(one)}: {one.why_not or 'nothing was measured'}"


def _named(verdict: Verdict) -> str:
    return titled(verdict, f"**{verdict.key}**")


def _wanted(verdict: Verdict) -> str:
    words = wanted(verdict)
    return words if words == "-" else with_unit(words, verdict.unit)


def _found(verdict: Verdict) -> str:
    if not verdict.samples:
        return "-"
    middle = with_unit(f"**{number(median(verdict.samples))}**", verdict.unit)
    low, high = number(min(verdict.samples)), number(max(verdict.samples))
    return f"{middle} ({low} to {high})" if len(verdict.samples) > 1 else middle


def _result(verdict: Verdict) -> str:
    if not verdict.samples:
        return f"not shown: {verdict.why_not or 'nothing was measured'}"
    return "met" if verdict.met else "**NOT MET**"


def _spread(figure: Figure) -> list[str]:
    low, high = number(min(figure.samples)), number(max(figure.samples))
    return [f"**{number(figure.middle)}**", f"{low} to {high}" if len(figure.samples) > 1 else "-"]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return lines + [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]


def _image(plot: Plot) -> str:
    return f"![{plot.shows}](images/{plot.name})"


def _code(words: str) -> str:
    return f"`{words}`" if words else "-"


if __name__ == "__main__":
    main()
