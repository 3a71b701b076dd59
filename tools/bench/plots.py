"""
Draws plots as SVG: targets next to what was found, bars of rates, lines of distributions and growth.

Pure: the same input gives the same bytes. Every plot has a title, units, and numbers next to the marks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, SOFT, FAINT = "#1f2933", "#5f6b76", "#d9dee3"
# Distinguishable for colour-blind readers, and in grey.
BLUE, ORANGE, GREY, OCHRE, GREEN, PLUM = "#2b6cb0", "#c4500a", "#98a2ad", "#d9a21b", "#2f8f6b", "#8a4f9e"
PALETTE = (BLUE, ORANGE, GREEN, PLUM, OCHRE, GREY)


class Drawing:
    """Collects the parts of a drawing on a white card with a border, which is readable on a dark page, too."""

    def __init__(self, title: str, width: int = 820) -> None:
        self.width = width
        self._title = title
        self._parts: list[str] = []
        self.text(24, 32, title, size=17, bold=True)

    def text(
        self, x: float, y: float, text: str, *, size: int = 13, colour: str = INK, anchor: str = "start",
        bold: bool = False, halo: bool = False,
    ) -> None:  # fmt: skip
        """Words, whose ``anchor`` (start, middle or end) is at x and whose base line is at y; a halo hides lines."""
        weight = ' font-weight="bold"' if bold else ""
        weight += ' paint-order="stroke" stroke="#ffffff" stroke-width="4"' if halo else ""
        place = f'x="{_n(x)}" y="{_n(y)}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}'
        self._parts.append(f"<text {place}>{escape(text)}</text>")

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """A filled rectangle; one that would not be seen is a hair wide."""
        size = f'width="{_n(max(width, 1.0))}" height="{_n(height)}"'
        self._parts.append(f'<rect x="{_n(x)}" y="{_n(y)}" {size} rx="2" fill="{colour}"/>')

    def line(
        self, points: Sequence[tuple[float, float]], *, colour: str = FAINT, width: float = 1.0, dashed: bool = False
    ) -> None:
        """Straight from point to point."""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        stroke = f'fill="none" stroke="{colour}" stroke-width="{_n(width)}"{dashes}'
        self._parts.append(f'<polyline points="{path}" {stroke}/>')

    def whisker(self, x: float, until: float, y: float) -> None:
        """A spread: from the smallest to the largest."""
        self.line([(x, y), (until, y)], colour=INK, width=1.2)
        for end in (x, until):
            self.line([(end, y - 3), (end, y + 3)], colour=INK, width=1.2)

    def dot(self, x: float, y: float, colour: str) -> None:
        """A point of a line."""
        self._parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="4" fill="{colour}"/>')

    def legend(self, y: float, entries: Sequence[tuple[str, str]]) -> float:
        """Draw what the colours mean, (colour, words), in one or more rows; return the base line of the last one."""
        x = 24.0
        for colour, words in entries:
            width = 17 + text_width(words, 12)
            if x > 24.0 and x + width > self.width - 24:
                x, y = 24.0, y + 19
            self.bar(x, y - 10, 11, 11, colour)
            self.text(x + 17, y, words, size=12, colour=SOFT)
            x += width + 22
        return y

    def svg(self, height: float) -> str:
        """The whole of it."""
        size = f"0 0 {self.width} {_n(height)}"
        card = f'width="{self.width - 1}" height="{_n(height - 1)}" rx="8" fill="#ffffff" stroke="{FAINT}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-family="{FONT}" role="img">'
        inside = [f"<title>{escape(self._title)}</title>", f'<rect x="0.5" y="0.5" {card}/>', *self._parts]
        return "\n".join([head, *(f"  {part}" for part in inside), "</svg>"]) + "\n"


def text_width(text: str, size: int) -> float:
    """About how wide words are: fonts differ, so it is taken a little too wide."""
    return len(text) * size * 0.56


def fitting(text: str, size: int, width: float) -> str:
    """The words, or as many letters as there is room for."""
    room = int(width / (size * 0.56))
    return text if len(text) <= room else text[: max(room - 1, 0)].rstrip(" ,;:") + "…"


def _n(value: float) -> str:
    """A coordinate: a tenth of a pixel is enough, and whole numbers have no point."""
    return f"{value:.1f}".removesuffix(".0")


LEFT, RIGHT = 24.0, 796.0
MOST = 16.0  # times better or worse than a target: further away is drawn as this


@dataclass(frozen=True)
class Aim:
    """A row of :func:`targets`: how much better than wanted (2.0: twice), or None where nothing was measured."""

    label: str
    note: str  # the numbers
    score: float | None = None
    low: float = 0.0  # the worst round
    high: float = 0.0

    @property
    def is_met(self) -> bool:
        """True if the target was met."""
        return self.score is not None and self.score >= 1.0


def targets(title: str, aims: Sequence[Aim]) -> str:
    """Bars to the right of a line for what is better than wanted, to the left for what is worse."""
    drawing = Drawing(title)
    drawing.legend(56, [(BLUE, "met"), (ORANGE, "not met")])
    drawing.text(RIGHT, 56, "thin lines: from the worst round to the best", size=12, colour=SOFT, anchor="end")
    steps = _steps(aims)
    top, row = 84.0, 40.0
    bottom = top + row * len(aims)

    def place(score: float) -> float:
        at = math.log2(min(max(score, 2.0 ** steps[0]), 2.0 ** steps[-1]))
        return LEFT + (at - steps[0]) / (steps[-1] - steps[0]) * (RIGHT - LEFT)

    for step in steps:
        x, is_target = place(2.0**step), step == 0
        drawing.line([(x, top - 10), (x, bottom)], colour=INK if is_target else FAINT, width=1.5 if is_target else 1.0)
        anchor = "start" if step == steps[0] else "end" if step == steps[-1] else "middle"
        drawing.text(x, bottom + 18, _times(step), size=12, colour=SOFT, anchor=anchor, bold=is_target)
    for number, aim in enumerate(aims):
        y = top + row * number
        colour = BLUE if aim.is_met else ORANGE
        if aim.score is None:
            drawing.text(LEFT, y + 10, fitting(aim.label, 12, RIGHT - LEFT), size=12, halo=True)
            drawing.text(LEFT, y + 26, fitting(aim.note, 12, RIGHT - LEFT), size=12, colour=SOFT, halo=True)
            continue
        room = RIGHT - LEFT - text_width(aim.note, 13) - 16
        drawing.text(LEFT, y + 10, fitting(aim.label, 12, room), size=12, halo=True)
        drawing.text(RIGHT, y + 10, aim.note, size=12, anchor="end", bold=True, colour=colour, halo=True)
        ends = sorted([place(1.0), place(aim.score)])
        drawing.bar(ends[0], y + 16, ends[1] - ends[0], 12, colour)
        if aim.low != aim.high:
            drawing.whisker(place(aim.low), place(aim.high), y + 22)
    drawing.text(RIGHT, bottom + 38, "how much better than wanted", size=12, colour=SOFT, anchor="end")
    return drawing.svg(bottom + 52)


def _steps(aims: Sequence[Aim]) -> list[int]:
    seen = [value for aim in aims if aim.score is not None for value in (aim.score, aim.low, aim.high) if value > 0]
    powers = [math.log2(min(max(value, 1 / MOST), MOST)) for value in seen]
    return list(range(math.floor(min([-1.0, *powers])), math.ceil(max([1.0, *powers])) + 1))


def _times(step: int) -> str:
    if step == 0:
        return "wanted"
    return f"{2**step} x" if step > 0 else f"1/{2**-step}"


@dataclass(frozen=True)
class Bar:
    """A row of :func:`bars`: whose it is gives the colour."""

    label: str
    value: float
    note: str  # the number as it is printed
    whose: str = "rmq"  # of WHOSE
    low: float = 0.0
    high: float = 0.0


WHOSE = {"rmq": (BLUE, "rmq"), "machine": (GREY, "what the machine can do"), "peer": (OCHRE, "another broker")}


def bars(title: str, unit: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars from zero."""
    drawing = Drawing(title)
    used = [entry for whose, entry in WHOSE.items() if any(row.whose == whose for row in rows)]
    drawing.legend(56, used)
    drawing.text(RIGHT, 56, unit, size=12, colour=SOFT, anchor="end")
    top, height = 84.0, 40.0
    most = max([row.high for row in rows] + [row.value for row in rows])
    width = RIGHT - LEFT - 110.0  # room for a number
    for number, row in enumerate(rows):
        y = top + height * number
        drawing.text(LEFT + 4, y + 10, fitting(row.label, 12, RIGHT - LEFT), size=12)
        drawing.bar(LEFT, y + 16, row.value / most * width, 12, WHOSE[row.whose][0])
        if row.low != row.high:
            drawing.whisker(LEFT + row.low / most * width, LEFT + row.high / most * width, y + 22)
        drawing.text(LEFT + max(row.value, row.high) / most * width + 8, y + 27, row.note, size=13, bold=True)
    bottom = top + height * len(rows)
    drawing.line([(LEFT, top - 6), (LEFT, bottom)], colour=SOFT)
    drawing.text(LEFT, bottom + 16, "0", size=12, colour=SOFT)
    return drawing.svg(bottom + 30)


@dataclass(frozen=True)
class Axis:
    """One axis of :func:`lines`: what it is, its ends, and where it is marked; ``is_log``: by factors."""

    label: str
    ends: tuple[float, float]
    ticks: Sequence[tuple[float, str]]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Where on the axis, 0 to 1."""
        low, high = self.ends
        if self.is_log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)


@dataclass(frozen=True)
class Series:
    """A line of :func:`lines`; ``notes`` are the numbers at its points, empty where there is to be none."""

    name: str
    points: Sequence[tuple[float, float]]
    notes: Sequence[str]


def lines(title: str, x: Axis, y: Axis, series: Sequence[Series], limit: tuple[float, str] | None = None) -> str:
    """Lines with a dot at each point; ``limit`` is a dashed line across, and what it means."""
    drawing = Drawing(title)
    legend = drawing.legend(56, [(PALETTE[at % len(PALETTE)], one.name) for at, one in enumerate(series)])
    left, right, top, bottom = 86.0, RIGHT - 30.0, legend + 44.0, legend + 350.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return left + x.share(point[0]) * (right - left), bottom - y.share(point[1]) * (bottom - top)

    for value, name in y.ticks:
        _, at = place((x.ends[0], value))
        drawing.line([(left, at), (right, at)])
        drawing.text(left - 8, at + 4, name, size=12, colour=SOFT, anchor="end")
    for value, name in x.ticks:
        at, _ = place((value, y.ends[0]))
        drawing.line([(at, bottom), (at, bottom + 5)], colour=SOFT)
        drawing.text(at, bottom + 20, name, size=12, colour=SOFT, anchor="middle")
    drawing.text(left, top - 14, y.label, size=12, colour=SOFT)
    drawing.text(right, bottom + 42, x.label, size=12, colour=SOFT, anchor="end")
    if limit is not None:
        _, at = place((x.ends[0], limit[0]))
        drawing.line([(left, at), (right, at)], colour=ORANGE, width=1.5, dashed=True)
        drawing.text(right, at + 14, limit[1], size=12, colour=ORANGE, anchor="end", halo=True)
    numbers: list[tuple[float, float, str, str]] = []
    for number, one in enumerate(series):
        colour = PALETTE[number % len(PALETTE)]
        drawing.line([place(point) for point in one.points], colour=colour, width=2.2)
        for point, note in zip(one.points, one.notes, strict=True):
            drawing.dot(*place(point), colour)
            if note:
                numbers.append((*place(point), note, colour))
    taken: list[tuple[float, float]] = []
    # Above all lines; from the bottom up, so that numbers stand in the order of their points.
    for at_x, at_y, note, colour in sorted(numbers, key=lambda one: -one[1]):
        label_y = _free(taken, at_x, at_y - 9)
        drawing.text(at_x, label_y, note, size=12, colour=colour, anchor="middle", bold=True, halo=True)
    return drawing.svg(bottom + 56)


def _free(taken: list[tuple[float, float]], x: float, y: float) -> float:
    """The next height, upwards, at which no other number is."""
    while any(abs(x - at) < 40 and abs(y - other) < 13 for at, other in taken):
        y -= 1
    taken.append((x, y))
    return y


def decades(values: Sequence[float], *, between: Sequence[int] = (1,)) -> tuple[tuple[float, float], list[float]]:
    """Ends and marks of an axis by factors of ten that holds all values: at 1, 10, 100, and also at these multiples."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    marks = [multiple * 10.0**power for power in powers for multiple in between]
    first = max(mark for mark in marks if mark <= low)
    last = min(mark for mark in marks if mark >= high and mark > first)
    return (first, last), [mark for mark in marks if first <= mark <= last]
