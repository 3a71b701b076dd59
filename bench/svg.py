"""A drawing as SVG: texts, bars and lines on a white card, the same bytes for the same calls. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, SOFT, FAINT = "#1f2933", "#5f6b76", "#d9dee3"
# Told apart by people who do not see colours as most do, and in grey.
BLUE, ORANGE, GREY, OCHRE, GREEN, PLUM = "#2b6cb0", "#c4500a", "#98a2ad", "#d9a21b", "#2f8f6b", "#8a4f9e"
PALETTE = (BLUE, ORANGE, GREEN, PLUM, OCHRE, GREY)


class Drawing:
    """What is drawn so far; the card is white with a border, so that it is as readable on a dark page."""

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
        """What the colours mean: (colour, words) in a row, or more rows; the base line of the last one."""
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
