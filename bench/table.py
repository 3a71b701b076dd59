"""
Formats a report as text: figures, then targets with what was found. Pure.

Everything fits into 80 columns; what was measured and what was found is wrapped if there is no room.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import median
from typing import Any

from .figures import Figure, Report, Verdict

COLUMNS = 80
# Where a row is too long, these are wrapped, the first one first, and none to less than this.
_LEAST = {"target": 17, "durability": 12, "what": 16, "found": 16}
_GAP = "  "
_OFTEN = 3  # a reason that occurs more often, or is the only one, is printed once below the table
_ROUNDS = "ms, of all rounds"
_LEFT = {"target", "what", "durability", "unit", "wanted", "result", "found", _ROUNDS}


def as_text(report: Report) -> str:
    """The whole report."""
    spread = percentiles_text(report.about.get("percentiles", {}))
    parts = [heading(report), figures_text(report.figures), spread, verdicts_text(report.verdicts)]
    return "\n".join(part for part in parts if part)


def heading(report: Report) -> str:
    """Which benchmark it was, and how it was measured; what is nested or nothing is for programs only."""
    about = {**report.about.get("load", {}), **report.about}
    words = described({name: value for name, value in about.items() if value and isinstance(value, int | float | str)})
    return _wrapped(f"{report.benchmark}: {words}" if words else report.benchmark, "  ")


def described(about: Mapping[str, Any]) -> str:
    """Names and values in a row."""
    return ", ".join(f"{_words(name)} {_value(value)}" for name, value in about.items())


def figures_text(figures: Sequence[Figure]) -> str:
    """Format a line for each figure: its durability, median and spread."""
    rows = [(figure.meaning, figure.flush or "-", *_spread(figure.samples), figure.unit) for figure in figures]
    return _table(("what", "durability", "median", "min", "max", "unit"), rows)


def percentiles_text(parts: Mapping[str, Mapping[str, float]]) -> str:
    """A line for each distribution, in milliseconds, of what all rounds measured together."""
    rows = [(_words(part), *map(number, values.values())) for part, values in parts.items()]
    return _table((_ROUNDS, *next(iter(parts.values()), ())), rows)


def verdicts_text(verdicts: Sequence[Verdict]) -> str:
    """A line for each target: what was found, what is wanted, and whether that is met; why not, if nothing was."""
    rows, notes = [], {}
    for place, verdict in enumerate(verdicts):
        what = f"{verdict.meaning} ({verdict.flush})" if verdict.flush else verdict.meaning
        rows.append((verdict.key, what, found(verdict), wanted(verdict), result(verdict)))
        if not verdict.samples:
            notes[place] = f"not shown: {verdict.why_not or 'nothing was measured'}"
    usual, times = Counter(notes.values()).most_common(1)[0] if notes else ("", 0)
    is_printed_once = times > _OFTEN or 1 < times == len(notes)
    below = {place: note for place, note in notes.items() if note != usual or not is_printed_once}
    table = _table(("target", "what", "found", "wanted", "result"), rows, below)
    return table + _wrapped(usual, "  ") if is_printed_once else table


def found(verdict: Verdict) -> str:
    """The median and the spread: ``0.630 (0.600 to 0.661) x``."""
    if not verdict.samples:
        return "-"
    low, high = number(min(verdict.samples)), number(max(verdict.samples))
    spread = f" ({low} to {high})" if len(verdict.samples) > 1 else ""
    return f"{number(median(verdict.samples))}{spread} {verdict.unit}"


def wanted(verdict: Verdict) -> str:
    """The target: ``>= 0.6``."""
    bounds = ((">=", verdict.at_least), ("<=", verdict.at_most))
    return (
        ", ".join(f"{sign} {bound:{',.0f' if bound >= 1000 else 'g'}}" for sign, bound in bounds if bound is not None)
        or "-"
    )


def result(verdict: Verdict) -> str:
    """In a word or two."""
    if not verdict.samples:
        return "not shown"
    return {True: "met", False: "NOT MET", None: "-"}[verdict.met]


def number(value: float) -> str:
    """With as many digits as mean something: three below 1,000, whole above."""
    for least, decimals in ((99.95, 0), (9.995, 1), (0.9995, 2), (0.09995, 3)):
        if abs(value) >= least:
            return f"{value:,.{decimals}f}"
    return f"{value:.3g}"


def _spread(samples: Sequence[float]) -> tuple[str, str, str]:
    if not samples:
        return "-", "-", "-"
    return number(median(samples)), number(min(samples)), number(max(samples))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, Mapping):
        return f"({described(value)})"
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value))
    return f"{value:,}" if isinstance(value, int) else number(value) if isinstance(value, float) else str(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Mapping[int, str] | None = None) -> str:
    """Align columns; texts are wrapped if there is no room, and a note is printed below its row."""
    if not rows:
        return ""
    titles = [name.upper() for name in columns]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for at, least in ((columns.index(name), least) for name, least in _LEAST.items() if name in columns):
        too_much = sum(widths) + len(_GAP) * (len(widths) - 1) - COLUMNS
        widths[at] = max(min(least, widths[at]), widths[at] - max(0, too_much))
    left = [name in _LEFT for name in columns]
    lines = [_line(titles, widths, left)]
    indent = " " * (sum(widths[:1]) + len(_GAP) if columns[0] != "what" else 0)
    for place, row in enumerate(rows):
        cells = [_lines(name, cell, width) for name, cell, width in zip(columns, row, widths, strict=True)]
        lines += [_line(each, widths, left) for each in zip_longest(*cells, fillvalue="")]
        if notes and place in notes:
            lines.append(_wrapped(notes[place], indent, indent))
    return "".join(lines)


def _lines(name: str, cell: str, width: int) -> list[str]:
    """Split a cell into as many lines as it needs; a key is split at its dots."""
    if name != "target":
        return textwrap.wrap(cell, width)
    lines = [""]
    for piece in re.split(r"(?=\.)", cell):
        if lines[-1] and len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece
    return lines


def _line(cells: Iterable[str], widths: Sequence[int], left: Sequence[bool]) -> str:
    aligned = [
        cell.ljust(width) if is_left else cell.rjust(width)
        for cell, width, is_left in zip(cells, widths, left, strict=True)
    ]
    return _GAP.join(aligned).rstrip() + "\n"


def _wrapped(text: str, indent: str, first: str = "") -> str:
    return textwrap.fill(text, COLUMNS, initial_indent=first, subsequent_indent=indent) + "\n"
