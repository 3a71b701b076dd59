"""``pipeline.report`` and ``pipeline.page``: every number that was found is told, in words and in pictures."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pipeline.audit import Fault, GroupAudit, Place, QueueAudit
from pipeline.page import render_html
from pipeline.report import DeadLetter, PaidTimes, Report, duration, render_text

HOUR = datetime(2026, 3, 2, 5, tzinfo=UTC)
REPORT = Report(
    topic="orders",
    messages=1234,
    unreadable=3,
    orders=321,
    hours=((HOUR, (7, 5, 0, 0, 0, 1)), (HOUR + timedelta(hours=1), (2, 0, 4, 0, 0, 0))),
    paid=PaidTimes(55, 240.0, 1632.4, 9000.0, (("< 1 min", 15), ("> 2 h", 40))),
    queues=(QueueAudit(0, 10, 20, 9, ((12, 14),), (15,), 1), QueueAudit(1, 0, 5, 5)),
    faults=(Fault("repeat", "o-<1>", "paid came again"),),
    groups=(GroupAudit("billing", 15, 2, 14, 12, 1, 6, 1, 3),),
    dead_letters=(DeadLetter("billing", "o-9/paid", Place(1, 3), "CannotBook & co"),),
)
NOTHING = replace(
    REPORT, hours=(), paid=PaidTimes(0, 0.0, 0.0, 0.0, ()), queues=(), faults=(), groups=(), dead_letters=()
)


def test_the_text_tells_every_number() -> None:
    lines = [" ".join(line.split()) for line in render_text(REPORT).splitlines()]

    for line in (
        "Orders: 1234 messages of 321 orders in topic orders, 2026-03-02 05:00 to 2026-03-02 06:59 UTC",
        "3 messages cannot be read",
        "03-02 05:00 7 5 . . . 1",
        "03-02 06:00 2 . 4 . . .",
        "all 9 5 4 0 0 1",
        "From created to paid, 55 orders: median 4.0 min, 95 % within 27.2 min, longest 2.5 h",
        f"< 1 min 15 {'#' * 15}",
        f"> 2 h 40 {'#' * 40}",
        "0 10-20 9 2 (12-13) 1 (15) 1",
        "1 0-5 5 0 0 0",
        "repeat: order o-<1>: paid came again",
        "billing 15 2 14 12 1 6 1 3 1",
        "o-9/paid of group billing, queue 1 offset 3: CannotBook & co",
    ):
        assert line in lines


def test_the_page_is_whole_and_needs_nothing_from_elsewhere() -> None:
    page = render_html(REPORT)

    assert "o-&lt;1&gt;" in page
    assert "CannotBook &amp; co" in page
    assert re.findall(r'(?:src|href)="', page) == []
    root = ET.fromstring(page.removeprefix("<!DOCTYPE html>").replace('<meta charset="utf-8">', ""))
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [
        "03-02 05:00: 7 created",
        "03-02 05:00: 5 paid",
        "03-02 05:00: 1 cancelled",
        "03-02 06:00: 2 created",
        "03-02 06:00: 4 packed",
        "< 1 min: 15 orders",
        "> 2 h: 40 orders",
    ]


def test_bars_are_as_high_as_their_numbers() -> None:
    root = ET.fromstring(render_html(REPORT).removeprefix("<!DOCTYPE html>").replace('<meta charset="utf-8">', ""))
    bars = [bar for bar in root.iter("{http://www.w3.org/2000/svg}rect") if len(bar)]

    heights = [float(bar.attrib["height"]) for bar in bars]

    assert [round(height / heights[1] * 5, 1) for height in heights[:5]] == [7, 5, 1, 2, 4]
    assert round(heights[6] / heights[5], 2) == round(40 / 15, 2)


def test_nothing_at_all_can_be_reported_too() -> None:
    assert "Orders: 1234 messages of 321 orders in topic orders, no events" in render_text(NOTHING)
    assert "Every order went through its states in order" in render_html(NOTHING)


def test_programs_get_the_same_numbers() -> None:
    data = json.loads(REPORT.as_json())

    assert data["messages"] == 1234
    assert data["hours"][0] == ["2026-03-02T05:00:00+00:00", [7, 5, 0, 0, 0, 1]]
    assert data["queues"][0]["gaps"] == [[12, 14]]
    assert data["dead_letters"][0]["place"] == {"queue_id": 1, "queue_offset": 3}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0.0 s"), (119.9, "119.9 s"), (120, "2.0 min"), (7199, "120.0 min"), (7200, "2.0 h")]
)
def test_times_are_told_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
