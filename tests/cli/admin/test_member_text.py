"""What a member told, for people: whatever it told, and however much of it is missing or odd."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.cli.admin.member_text import MAX_SHOWN, QUEUE_COLUMNS, info_text, plain, size
from rmq.cli.output.render import to_json

from rigs.batches import quick

QUEUE = {
    "topic": "orders", "queue_id": 3, "epoch": 7, "head_offset": 17, "attempt": 1, "retry_in_s": None,
    "called_for_s": None, "in_flight": 0, "cached_messages": 12, "cached_bytes": 3 << 20, "lock_age_s": 4.25,
    "flow_control": None, "paused": False, "stopped": None, "dropped": False, "tries_to_unlock": 0,
}  # fmt: skip
RATE = {"total": 10, "calls": 5, "per_s": 1.25, "mean_s": 0.0123}
INFO: dict[str, Any] = {
    "version": "0.4.0", "member": "m", "group": "g", "up_s": 125.0, "loop_lag_s": 0.0004, "turns": 1, "slots": 20,
    "settings": {"slots": 4, "batch": 32}, "cached_messages": 12, "cached_bytes": 2048, "more_queues": 0,
    "statistics": {"orders@g": {"consumed_ok": RATE, "consumed_failed": {**RATE, "total": 0}, "pulled": RATE}},
    "queues": [QUEUE],
}  # fmt: skip


def doing(**changes: Any) -> str:
    """The last cell of a queue that differs from one at rest."""
    lines = info_text({"queues": [{**QUEUE, **changes}]}).splitlines()
    return lines[2][lines[1].index("DOING") :]


def test_a_member_that_is_well() -> None:
    lines = info_text(INFO).splitlines()

    assert lines[:3] == [
        "rmq 0.4.0, up 2m05s, loop late by 0.000s, 1/20 slots, 12 cached, 2.0KiB",
        "settings: batch=32 slots=4",
        "orders@g: ok 10 (1.2/s, 12.3ms), pulled 10 (1.2/s, 12.3ms)",
    ]
    assert [line.split() for line in lines[3:]] == [
        [name.upper() for name in QUEUE_COLUMNS],
        ["orders/3", "17", "12", "3.0MiB", "0", "4.2s", "-"],
    ]
    assert max(map(len, lines)) < 78


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"called_for_s": 2.0}, "called 2.0s ago"),
        ({"retry_in_s": 7.0, "attempt": 4}, "retry in 7.0s, attempt 4"),
        ({"retry_in_s": -1.0, "attempt": 4}, "retry in 0.0s, attempt 4"),
        ({"paused": True}, "paused"),
        ({"flow_control": "1000 messages"}, "not pulled: 1000 messages"),
        ({"abandoned": 2, "called_for_s": 2.0}, "called 2.0s ago, careful: 2 owners lost"),
        ({"stopped": "CRASH_LOOP at 17", "paused": True, "abandoned": 5}, "stopped, paused"),
        ({"dropped": True, "called_for_s": 1.0, "tries_to_unlock": 2}, "leaves, called 1.0s ago, unlock tried 2x"),
    ],
)
def test_what_a_queue_does_or_why_it_does_nothing(changes: dict[str, Any], text: str) -> None:
    assert doing(**changes) == text


def test_why_a_queue_is_stopped_stands_below_the_table() -> None:
    told = info_text({**INFO, "queues": [QUEUE, {**QUEUE, "queue_id": 4, "stopped": "DAMAGED: offsets 3 to 7"}]})

    assert told.splitlines()[-1] == "orders/4 is stopped: DAMAGED: offsets 3 to 7"


def test_queues_that_were_left_out_are_counted() -> None:
    assert info_text({**INFO, "more_queues": 7}).endswith("and 7 more queues\n")


def test_an_empty_member_report() -> None:
    assert info_text({}) == "rmq of an unknown version\n"


def test_nothing_that_a_terminal_would_obey_is_printed() -> None:
    told = info_text({
        "version": "\x1b[2J", "settings": {"a\x1b": "\x07"}, "statistics": {"t\x1b": {"pulled": RATE}},
        "queues": [{**QUEUE, "topic": "\x1b[0m", "stopped": "\r\x9b"}],
    })  # fmt: skip

    assert not set(told) & {chr(code) for code in (*range(10), *range(11, 32), *range(127, 160))}


def test_only_the_failure_of_the_next_message_is_shown() -> None:
    failed = {**QUEUE, "last_error": "ValueError: no such customer", "failed_offset": QUEUE["head_offset"]}

    assert info_text({"queues": [failed]}).endswith("\norders/3 fails: ValueError: no such customer\n")
    assert "fails" not in info_text({"queues": [{**failed, "failed_offset": 1}]})
    assert "fails" not in info_text({"queues": [{**failed, "failed_offset": None, "head_offset": None}]})


def test_a_long_text_is_cut() -> None:
    lines = info_text({"settings": {"strategy": "x" * 9999}, "queues": [{**QUEUE, "stopped": "y" * 9999}]}).splitlines()

    assert len(lines[1]) == MAX_SHOWN
    assert max(map(len, lines)) < MAX_SHOWN + 80


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0B"), (1023, "1023B"), (1024, "1.0KiB"), (102_400, "100KiB"), (64 << 20, "64.0MiB"), (5 << 30, "5.0GiB")],
)
def test_sizes(count: int, shown: str) -> None:
    assert size(count) == shown


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.binary(max_size=3), inner),
    max_leaves=8,
)  # fmt: skip
names = st.sampled_from([*INFO, *QUEUE, *RATE, "consumed_ok", "x"])


@quick
@given(st.dictionaries(names, values | st.lists(st.dictionaries(names, values, max_size=5), max_size=3)))
def test_any_member_report_is_printable_and_json(told: dict[str, Any]) -> None:
    assert info_text(told).startswith("rmq ")
    json.loads(to_json(plain(told)))


def test_values_unknown_to_json_are_converted() -> None:
    odd = {"a": b"\x01", b"\xff": float("nan"), "c": [float("inf"), (1, 2.5)]}

    assert plain(odd) == {"a": "01", "ff": None, "c": [None, [1, 2.5]]}


def test_a_member_that_is_not_installed_has_an_unknown_version() -> None:
    assert info_text({"version": "unknown"}) == "rmq of an unknown version\n"
