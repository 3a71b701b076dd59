"""
Tables that fit a width: the least important columns go first, names are cut. Pure.

No line is ever wider than asked for, in cells of a terminal: wide characters count as two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ..output.render import printable

if TYPE_CHECKING:
    from rich.text import Text

_GAP: Final = 2
_SPARE = 3
_CUT = "…"


@dataclass
class Column:
    """
    A column; the higher its ``rank``, the sooner it goes. ``floor``: a text that may be cut down to so much.

    Columns of a rank from 3 on go before a text is cut below its ``wish``. ``keeps_end``: it is cut where it begins.
    ``styles`` are those of its cells, where they have one.
    """

    title: str
    cells: list[str]
    rank: int = 0
    floor: int = 0
    wish: int = 0
    is_text: bool = False
    keeps_end: bool = False
    styles: Sequence[str] = field(default_factory=list)


def fitted(columns: Sequence[Column], width: int) -> list[Text]:
    """A heading and one line for each row, none wider than ``width``."""
    from rich.cells import cell_len

    shown = [replace(column, cells=list(map(printable, column.cells))) for column in columns]
    widths = {id(column): max(cell_len(text) for text in (column.title, *column.cells)) for column in shown}
    for least, lowest in ((_wished, _SPARE), (_least, 0)):
        while _total(shown, {id(column): least(column, widths) for column in shown}) > width and len(shown) > 1:
            last = max(shown, key=lambda column: column.rank)
            if last.rank < lowest:
                break
            shown.remove(last)
    for least in (_wished, _least):
        for column in sorted(shown, key=lambda column: -widths[id(column)]):  # the longest give first
            excess = max(_total(shown, widths) - width, 0)
            widths[id(column)] -= min(excess, widths[id(column)] - least(column, widths))
    if len(shown) == 1:
        widths[id(shown[0])] = min(widths[id(shown[0])], width)
    heading = _line([_cell(column.title, widths[id(column)], column, "bold") for column in shown])
    rows = range(len(columns[0].cells))
    return [heading, *(_line([_row_cell(column, i, widths[id(column)]) for column in shown]) for i in rows)]


def cut(text: str, width: int, *, keeps_end: bool = False) -> str:
    """A text from elsewhere in at most so many cells of one line."""
    from rich.cells import cell_len, set_cell_size

    text = printable(text)
    if cell_len(text) <= width:
        return text
    if width <= 0:
        return ""
    if keeps_end:
        return _CUT + set_cell_size(text[::-1], width - 1).rstrip()[::-1]
    return set_cell_size(text, width - 1).rstrip() + _CUT


def _total(columns: Sequence[Column], widths: dict[int, int]) -> int:
    return sum(widths[id(column)] for column in columns) + _GAP * (len(columns) - 1)


def _least(column: Column, widths: dict[int, int]) -> int:
    return min(column.floor, widths[id(column)]) if column.floor else widths[id(column)]


def _wished(column: Column, widths: dict[int, int]) -> int:
    return min(max(column.wish, _least(column, widths)), widths[id(column)])


def _row_cell(column: Column, i: int, width: int) -> Text:
    style = column.styles[i] if column.styles else ""
    return _cell(column.cells[i], width, column, style)


def _cell(text: str, width: int, column: Column, style: str) -> Text:
    from rich.cells import cell_len
    from rich.text import Text

    text = cut(text, width, keeps_end=column.keeps_end)
    room = " " * (width - cell_len(text))
    return Text(text + room if column.is_text else room + text, style)


def _line(cells: list[Text]) -> Text:
    from rich.text import Text

    line = Text(" " * _GAP, no_wrap=True, overflow="crop").join(cells)
    line.rstrip()
    line.no_wrap, line.overflow = True, "crop"
    return line
