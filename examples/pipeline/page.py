"""The report as one page of HTML that needs nothing else: plots are SVG, drawn here. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from .orders import STATES
from .report import GROUP_HEAD, QUEUE_HEAD, Report, duration, group_rows, hour_rows, letter_line, queue_rows

# Told apart also by those who do not see red and green as others do.
COLOURS: Final = dict(zip(STATES, ("#0072b2", "#009e73", "#56b4e9", "#e69f00", "#cc79a7", "#8c8c8c"), strict=True))
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 960, 300, 56, 44, 12

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1000px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15em .7em; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
.bad { color: #b00020; } .good { color: #00695c; } svg { width: 100%; height: auto; }
svg text { font: 12px sans-serif; }
.figures b { font-size: 1.3em; } .figures span { margin-right: 2em; } details { margin-top: .5em; }
"""


def render_html(report: Report) -> str:
    """The whole page."""
    paid = report.paid
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>Orders</title><style>{_STYLE}</style></head><body>',
            f"<h1>Orders, {escape(report.span)}</h1>",
            _figures(
                (f"{report.messages}", f"messages in topic {report.topic}"),
                (f"{report.orders}", "orders"),
                (f"{report.unreadable}", "unreadable"),
                (f"{len(report.faults)}", "faults in the order of events"),
                (f"{len(report.dead_letters)}", "dead letters"),
            ),
            "<h2>Orders per state and hour</h2>",
            hours_svg(report),
            "<details><summary>as a table</summary>",
            _table(["hour (UTC)", *STATES], [*hour_rows(report), ["all", *map(str, report.totals)]]),
            "</details>",
            "<h2>From created to paid</h2>",
            _figures(
                (f"{paid.orders}", "orders"),
                (duration(paid.median_s), "median"),
                (duration(paid.p95_s), "95 % within"),
                (duration(paid.longest_s), "longest"),
            ),
            histogram_svg(paid.histogram),
            "<h2>Order audit</h2>",
            _faults(report),
            "<h3>Queues</h3>",
            _table(QUEUE_HEAD, queue_rows(report)),
            "<h3>Groups</h3>",
            _table(GROUP_HEAD, group_rows(report)),
            "<h3>Dead letters</h3>",
            _list((letter_line(letter) for letter in report.dead_letters), "bad") or "<p>none</p>",
            "</body></html>",
        ]
    )


def hours_svg(report: Report) -> str:
    """A bar for each hour, of as many parts as there are states."""
    most = _ceiling(max((sum(counts) for _, counts in report.hours), default=0))
    step = (_WIDTH - _LEFT) / max(len(report.hours), 1)
    parts = [*_grid(most)]
    for at, (hour, counts) in enumerate(report.hours):
        left, below = _LEFT + at * step, 0
        for state, count in zip(STATES, counts, strict=True):
            if count:
                title = f"{hour:%m-%d %H:00}: {count} {state}"
                parts.append(
                    _bar(left, step * 0.85, below=below, count=count, most=most, colour=COLOURS[state], title=title)
                )
            below += count
        if hour.hour % 6 == 0:
            label = f"{hour:%a %d}" if hour.hour == 0 else f"{hour:%H:00}"
            parts.append(f'<text x="{left:.1f}" y="{_HEIGHT - _BOTTOM + 16}">{label}</text>')
    for at, state in enumerate(STATES):
        left = _LEFT + at * 110
        parts.append(f'<rect x="{left}" y="{_HEIGHT - 15}" width="11" height="11" fill="{COLOURS[state]}"/>')
        parts.append(f'<text x="{left + 16}" y="{_HEIGHT - 5}">{state}</text>')
    return _svg("events of orders by hour, parted by state", parts)


def histogram_svg(histogram: Sequence[tuple[str, int]]) -> str:
    """A bar for each range of times."""
    most = _ceiling(max((count for _, count in histogram), default=0))
    step = (_WIDTH - _LEFT) / max(len(histogram), 1)
    parts = [*_grid(most)]
    for at, (name, count) in enumerate(histogram):
        left = _LEFT + at * step + step * 0.05
        parts.append(
            _bar(
                left,
                step * 0.9,
                below=0,
                count=count,
                most=most,
                colour=COLOURS["paid"],
                title=f"{name}: {count} orders",
            )
        )
        middle = left + step * 0.45
        parts.append(
            f'<text x="{middle:.1f}" y="{_y(count, most) - 4:.1f}" text-anchor="middle">{count}</text>'
            f'<text x="{middle:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{escape(name)}</text>'
        )
    return _svg("orders by time from created to paid", parts)


def _svg(label: str, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
    return "\n".join([head, *parts, "</svg>"])


def _grid(most: int) -> Iterable[str]:
    for quarter in range(5):
        value = most * quarter // 4
        y = _y(value, most)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value}</text>'


def _bar(left: float, width: float, *, below: int, count: int, most: int, colour: str, title: str) -> str:
    top, foot = _y(below + count, most), _y(below, most)
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{foot - top:.1f}" fill="{colour}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _y(value: float, most: int) -> float:
    room = _HEIGHT - _BOTTOM - _TOP - 12
    return _HEIGHT - _BOTTOM - room * value / most


def _ceiling(value: int) -> int:
    """A round number that is not below a value, and divides by four."""
    size = 1
    while True:
        for tenths in (10, 15, 20, 25, 30, 40, 50, 60, 80):
            unit, rest = divmod(tenths * size, 10)
            if not rest and 4 * unit >= value:
                return 4 * unit
        size *= 10


def _figures(*figures: tuple[str, str]) -> str:
    spans = (f"<span><b>{escape(number)}</b> {escape(what)}</span>" for number, what in figures)
    return f'<p class="figures">{"".join(spans)}</p>'


def _faults(report: Report) -> str:
    if not report.faults:
        return '<p class="good">Every order went through its states in order, and no event came twice.</p>'
    return _list((f"{fault.kind}: order {fault.order_id}: {fault.text}" for fault in report.faults), "bad")


def _list(lines: Iterable[str], kind: str) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"
