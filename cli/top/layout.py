"""
Lays the view out as lines of a terminal: readable at 80x24, usable at 40x10, with more where there is room. Pure.

The heading takes at most a third of the height; the tables share the rest, worst rows first. A table that does not fit
ends in "and N more"; one without room for a row is left out. To fit a width, tables drop their least important columns
first and then cut names. No line is wider than requested, in terminal cells: wide characters count as two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from ..output.render import printable
from . import view as figures
from .view import GroupLine, LeaseLine, TopicLine, View

if TYPE_CHECKING:
    from rich.text import Text

_LABEL: Final = 9
_GAP: Final = 2
_AIRY: Final = 20  # from so many lines on there is an empty one before each table
_SLOW_S: Final = 0.1  # a sync or a wait that takes this long is worth a colour
_BUSY: Final = 0.9  # of a processor: the broker has little to spare
_FEW: Final = 3  # lines, for which a table is worth its heading
_ENDLESS: Final = 1 << 20


class Figure(NamedTuple):
    """A number with its name, padded to ``width`` characters. ``is_extra``: left out if its line has no room."""

    name: str
    value: str
    width: int
    style: str = ""
    is_extra: bool = False


class Section(NamedTuple):
    """A table and the name of its rows."""

    columns: list[Column]
    rows: int
    what: str


def lines(
    view: View, width: int, height: int | None, *, now: datetime, notice: str | None = None, hint: str = ""
) -> list[Text]:
    """Return at most ``height`` lines, none wider than ``width``. ``notice`` is shown above the numbers."""
    from rich.text import Text

    room = _ENDLESS if height is None else max(height, 1)
    drawn = [_title(view, width, now, hint)]
    warnings = ([notice] if notice else []) + view.troubles
    drawn += [Text(cut(text, width), "bold red") for text in warnings[: max(room // 4, 1)]]
    drawn += _heading(view, width, max(room // 3 + 1 - len(drawn), 1))
    drawn = drawn[:room]
    sections = [section for section in (_groups(view), _topics(view), _leases(view)) if section.rows]
    drawn += _tables(sections, width, room - len(drawn), is_airy=room >= _AIRY)
    if not sections and len(drawn) < room:
        drawn.append(Text(cut("no group has joined and no message was sent since the broker started", width), "dim"))
    return drawn


def plain(shown: Sequence[Text]) -> str:
    """Return the lines as text."""
    return "".join(line.plain.rstrip() + "\n" for line in shown)


# ---- heading


def _title(view: View, width: int, now: datetime, hint: str) -> Text:
    from rich.cells import cell_len
    from rich.text import Text

    left = cut(f"rmq top  {view.name} at {view.address}  up {figures.long_time(view.up_s)}", width)
    clock = f"{now:%H:%M:%S}"
    for right in (f"{hint}  {clock}" if hint else clock, clock):
        room = width - cell_len(left) - len(right)
        if room >= _GAP:
            left += " " * room + right
            break
    return Text(left, "reverse", no_wrap=True, overflow="crop")


def _heading(view: View, width: int, room: int) -> list[Text]:
    """Return the numbers in five rows, or as many as there is room for."""
    rows = [_traffic(view), _disk(view), _clients(view), _process(view), _later(view)]
    wrapped = [_flow(name, items, width) for name, items in rows]
    if sum(map(len, wrapped)) <= room:
        return [line for several in wrapped for line in several]
    return [several[0] for several in wrapped][:room]


def _traffic(view: View) -> tuple[str, list[Figure]]:
    flow = view.traffic
    return "messages", [
        Figure("in", figures.rate(flow.messages_in), 9),
        Figure("out", figures.rate(flow.messages_out), 9),
        Figure("bytes in", figures.size_rate(flow.bytes_in), 9),
        Figure("out", figures.size_rate(flow.bytes_out), 9),
        Figure("log grows", figures.size_rate(view.log_bytes_per_s), 9, is_extra=True),
    ]


def _disk(view: View) -> tuple[str, list[Figure]]:
    slow = "yellow" if max(view.sync_s or 0.0, view.wait_s or 0.0) >= _SLOW_S else ""
    stuck = view.longest_waiting_s >= 1.0
    waiting = figures.count(view.waiting_answers)
    waiting += f" ({figures.long_time(view.longest_waiting_s)})" if stuck else ""
    return "disk", [
        Figure("wait", figures.short_time(view.wait_s), 8, slow),
        Figure("fdatasync", figures.short_time(view.sync_s), 8, slow),
        Figure("syncs", figures.rate(view.syncs_per_s), 6),
        Figure("waiting", waiting, 4, "red" if stuck else ""),
        Figure("flush", view.flush, 1, is_extra=True),
    ]


def _clients(view: View) -> tuple[str, list[Figure]]:
    states = [f"{count:,} {state}" for state, count in view.lease_states.items() if count and state != "held"]
    leases = f"{view.leases:,}" + (f" ({', '.join(states)})" if states else "")
    return "clients", [
        Figure("leases", leases, 3, "yellow" if states else ""),
        Figure("parked pulls", figures.count(view.parked_pulls), 3),
        Figure("connections", figures.count(view.connections), 3),
        Figure("producers", figures.count(view.producers), 3, is_extra=True),
    ]


def _process(view: View) -> tuple[str, list[Figure]]:
    return "broker", [
        Figure("cpu", figures.percent(view.cpu), 4, "yellow" if (view.cpu or 0.0) >= _BUSY else ""),
        Figure("memory", figures.size(view.memory_bytes), 7),
        Figure("disk free", figures.size(view.disk_free_bytes), 7),
        Figure("log", figures.size(view.log_bytes), 7),
    ]


def _later(view: View) -> tuple[str, list[Figure]]:
    due = f" (next in {figures.long_time(view.next_delay_s)})" if view.next_delay_s is not None else ""
    return "later", [
        Figure("delayed", figures.count(view.delays_waiting) + due, 1),
        Figure("sent back", figures.count(view.sent_back), 1),
        Figure("dead letters", figures.count(view.dead_letters), 1, "yellow" if view.dead_letters else ""),
        Figure("", "(since start)", 1, "dim", is_extra=True),
    ]


def _flow(name: str, items: Sequence[Figure], width: int) -> list[Text]:
    """Return a row: its name, then its figures, wrapped onto further lines where they do not fit."""
    from rich.text import Text

    label = min(_LABEL, width)
    drawn = [Text().append(cut(name, label).ljust(label), "bold")]
    for item in items:
        shown = (
            Text().append(f"{item.name} " if item.name else "", "dim").append(item.value.rjust(item.width), item.style)
        )
        is_first = len(drawn[-1]) == label
        if not is_first and len(drawn[-1]) + _GAP + len(shown) > width:
            if item.is_extra:
                continue
            drawn.append(Text(" " * label))
            is_first = True
        drawn[-1].append("" if is_first else " " * _GAP).append_text(shown)
    for line in drawn:
        line.no_wrap, line.overflow = True, "crop"
        line.truncate(width)
    return drawn


# ---- tables


def _tables(sections: Sequence[Section], width: int, room: int, *, is_airy: bool) -> list[Text]:
    from rich.text import Text

    drawn: list[Text] = []
    for section, rows in zip(sections, shares([section.rows for section in sections], room, is_airy), strict=True):
        if rows:
            drawn += [Text("")] if is_airy else []
            drawn += _table(section, width, rows)
    return drawn


def shares(wanted: Sequence[int], room: int, is_airy: bool) -> list[int]:
    """
    Return the number of lines of each table below its heading, dealt out in turn.

    The last tables get none if there is no room for a heading and three lines (or all lines) of each.
    """
    fixed = 2 if is_airy else 1
    given = list[int]()
    for rows in wanted:
        least = min(rows, _FEW)
        given.append(least if room >= fixed + least else 0)
        room -= fixed + least if given[-1] else 0
    while room > 0 and any(0 < has < wants for has, wants in zip(given, wanted, strict=True)):
        for i, wants in enumerate(wanted):
            if 0 < given[i] < wants and room > 0:
                given[i] += 1
                room -= 1
    return given


def _table(section: Section, width: int, rows: int) -> list[Text]:
    from rich.text import Text

    shown = section.rows if section.rows <= rows else rows - 1
    columns = [replace(column, cells=column.cells[:shown], styles=column.styles[:shown]) for column in section.columns]
    drawn = fitted(columns, width)
    if shown < section.rows:
        drawn.append(Text(cut(f"and {section.rows - shown:,} more {section.what}", width), "dim"))
    return drawn


def _groups(view: View) -> Section:
    rows = view.groups
    styles = [_lag_style(row) for row in rows]
    return Section([
        Column("GROUP", [row.group for row in rows], floor=12, is_text=True),
        Column("LAG", [figures.count(row.lag) + "+" * row.is_lag_partial for row in rows], styles=styles),
        Column("AGE", [figures.long_time(row.behind_s) for row in rows], rank=1, styles=styles),
        Column("TREND", [figures.trend(row.lag_per_s) for row in rows], rank=2),
        Column("MEMBERS", [figures.count(row.members) for row in rows], rank=3,
               styles=["red" if not row.members and row.lag else "" for row in rows]),
        Column("LEASES", [figures.count(row.leases) for row in rows], rank=4),
        Column("MODE", [row.mode or "no members" for row in rows], rank=5, is_text=True),
    ], len(rows), "groups")  # fmt: skip


def _lag_style(row: GroupLine) -> str:
    if not row.lag:
        return "" if row.lag is None else "green"
    return "yellow" if row.members else "red"


def _topics(view: View) -> Section:
    rows: list[TopicLine] = view.topics
    return Section([
        Column("TOPIC", [row.topic for row in rows], floor=12, is_text=True),
        Column("IN", [figures.rate(row.flow.messages_in) for row in rows]),
        Column("OUT", [figures.rate(row.flow.messages_out) for row in rows], rank=1),
        Column("BYTES IN", [figures.size_rate(row.flow.bytes_in) for row in rows], rank=3),
        Column("BYTES OUT", [figures.size_rate(row.flow.bytes_out) for row in rows], rank=4),
    ], len(rows), "topics")  # fmt: skip


def _leases(view: View) -> Section:
    rows: list[LeaseLine] = view.lease_lines
    states = ["" if row.is_well else "yellow" for row in rows]
    return Section([
        Column("LEASE OF", [row.group for row in rows], floor=8, wish=16, is_text=True),
        Column("QUEUE", [f"{row.topic}/{row.queue_id}" for row in rows], floor=12, wish=16, is_text=True),
        Column("STATE", [row.state.removeprefix("held, ") for row in rows], rank=1, floor=5, wish=30, is_text=True,
               styles=states),
        Column("LEFT", [figures.long_time(row.expires_in_s) for row in rows], rank=2, styles=states),
        Column("RENEWED", [figures.long_time(row.renewed_ago_s) for row in rows], rank=4),
        Column("OWNER", [row.owner for row in rows], floor=10, is_text=True, keeps_end=True, rank=3),
        Column("EPOCH", [str(row.epoch) for row in rows], rank=5),
    ], len(rows), "leases")  # fmt: skip


_SPARE = 3
_CUT = "…"


@dataclass
class Column:
    """
    A column. Higher ranks are dropped first; a text may be cut down to ``floor`` characters.

    Columns of rank 3 and above are dropped before a text is cut below its ``wish``. ``keeps_end``: the text is cut at
    its start. ``styles`` are those of the cells, if any.
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
    """Return a heading and one line for each row, none wider than ``width``."""
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
    """Return an untrusted text on one line, cut to at most ``width`` cells."""
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
