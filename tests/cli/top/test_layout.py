"""The view at several sizes, through rich as a terminal gets it."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, Group

from rmq.cli.top.layout import Column, cut, fitted, lines, plain, shares
from rmq.cli.top.view import View, view_of

from ..top_samples import group, lease, sample

NOW = datetime(2026, 1, 31, 12, 0, 5, tzinfo=UTC)


def busy() -> View:
    """More of everything than fits 24 lines."""
    groups = [group(f"group-{i}", 100 - i) for i in range(30)]
    locks = [lease(0, state="held, retrying offset 7 (attempt 3)"), *(lease(i) for i in range(1, 40))]
    before = sample(0.0, topics={f"topic-{i}": (0, 0, 0, 0) for i in range(20)})
    after = sample(
        1.0, groups=groups, locks=locks, behind_s={"group-0": 75.0},
        topics={f"topic-{i}": (1000 - i, 123_456, 3 * i, 0) for i in range(20)},
        traffic={"messages_in": 12_345, "bytes_in": 1_200_000, "messages_out": 24_000, "bytes_out": 9_999_999},
    )  # fmt: skip
    return view_of(before, after)


def rendered(view: View, width: int, height: int, notice: str | None = None) -> list[str]:
    console = Console(width=width, height=height, record=True, file=io.StringIO(), force_terminal=True)
    console.print(Group(*lines(view, width, height, now=NOW, notice=notice, hint="every 1 s, q quits")))
    return console.export_text().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (140, 40), (20, 5), (1, 1), (300, 100)])
def test_the_view_fits_the_terminal(width: int, height: int) -> None:
    shown = rendered(busy(), width, height, notice="no answer for 3 s: " + "x" * 300)

    assert len(shown) <= height
    assert max(map(cell_len, shown)) <= width


def test_at_80_by_24_all_of_it_is_there() -> None:
    shown = rendered(busy(), 80, 24)
    text = "\n".join(shown)

    assert len(shown) == 24
    assert shown[0].startswith("rmq top  rmq at 127.0.0.1:10911  up 16m40s")
    assert shown[0].endswith("every 1 s, q quits  12:00:05")
    assert [line.split()[0] for line in shown[1:6]] == ["messages", "disk", "clients", "broker", "later"]
    for heading in ("GROUP ", "TOPIC ", "LEASE OF "):
        assert sum(line.startswith(heading) for line in shown) == 1
    assert "in  12,345/s" in text
    assert "parked pulls" in text
    assert "fdatasync" in text
    assert "retrying offset 7 (attempt 3)" in text
    assert [line for line in shown if line.startswith("and ")] == [
        "and 27 more groups", "and 17 more topics", "and 37 more leases",
    ]  # fmt: skip


def test_the_worst_group_is_shown_with_its_lag_in_messages_and_in_time() -> None:
    shown = rendered(busy(), 80, 24)

    assert shown[shown.index("") + 2].split()[:3] == ["group-0", "100", "75.0s"]


def test_at_40_by_10_the_worst_groups_are_left() -> None:
    shown = rendered(busy(), 40, 10)

    assert shown[1].startswith("messages in  12,345/s")
    assert [line.split()[0] for line in shown if line.startswith("group-")] == [f"group-{i}" for i in range(4)]
    assert shown[-1] == "and 26 more groups"


def test_what_is_wrong_stands_above_the_numbers() -> None:
    view = view_of(None, sample(broker={"refuses_sends": "the disk is full"}))

    shown = rendered(view, 80, 24, notice="no answer for 3 s: gone")

    assert shown[1:3] == ["no answer for 3 s: gone", "sends are refused: the disk is full"]
    assert shown[3].startswith("messages")


def test_a_broker_without_anything_says_so() -> None:
    shown = rendered(view_of(None, sample()), 80, 24)

    assert shown[-1] == "no group has joined and no message was sent since the broker started"
    assert shown[1].split() == ["messages", "in", "-", "out", "-", "bytes", "in", "-", "out", "-"]


def test_states_of_leases_that_are_not_plainly_held_are_counted() -> None:
    shown = rendered(busy(), 80, 24)

    assert shown[3].startswith("clients  leases 40 (1 retrying)  parked pulls   0")


def test_replies_that_wait_long_are_shown_with_their_age() -> None:
    view = view_of(None, sample(commit={"waiting_answers": 7, "longest_waiting_s": 4.0}))

    assert "waiting 7 (4.0s)" in rendered(view, 80, 24)[2]


def test_a_snapshot_without_a_height_has_every_row() -> None:
    text = plain(lines(busy(), 80, None, now=NOW))

    assert text.count("group-") == 30
    assert text.count("orders/") == 40
    assert "more" not in text
    assert "\x1b" not in text


def test_names_from_elsewhere_cannot_command_the_terminal() -> None:
    view = view_of(None, sample(groups=[group("bad\x1b[2J", 1)], locks=[lease(of="x\ny")]))

    text = plain(lines(view, 80, None, now=NOW))

    assert "bad\\x1b[2J" in text
    assert "x\\ny" in text


@pytest.mark.parametrize(
    ("wanted", "room", "is_airy", "given_"),
    [
        ([5, 3, 16], 100, False, [5, 3, 16]), ([30, 20, 40], 18, True, [4, 4, 4]), ([30, 20, 40], 6, False, [5, 0, 0]),
        ([1, 20, 40], 10, False, [1, 3, 3]), ([30], 1, False, [0]), ([30, 1], 3, False, [0, 1]), ([], 9, False, []),
    ],
)  # fmt: skip
def test_tables_share_the_room(wanted: list[int], room: int, is_airy: bool, given_: list[int]) -> None:
    assert shares(wanted, room, is_airy) == given_


@given(st.lists(st.integers(1, 50), max_size=3), st.integers(0, 60), st.booleans())
def test_tables_never_take_more_room_than_there_is(wanted: list[int], room: int, is_airy: bool) -> None:
    given_ = shares(wanted, room, is_airy)

    assert sum(rows + (2 if is_airy else 1) for rows in given_ if rows) <= room
    assert all(rows <= wants for rows, wants in zip(given_, wanted, strict=True))


@given(st.integers(1, 120), st.integers(1, 50))
def test_no_size_is_too_small(width: int, height: int) -> None:
    shown = lines(busy(), width, height, now=NOW, notice="gone", hint="q quits")

    assert len(shown) <= height
    assert all(cell_len(line.plain) <= width for line in shown)


def test_a_name_of_wide_characters_does_not_push_the_clock_out() -> None:
    view = view_of(None, sample(broker={"name": "注文" * 4}))

    (title, *_) = rendered(view, 80, 24)

    assert title.endswith("  12:00:05")
    assert cell_len(title) == 80


def shown(width: int, *columns: Column) -> list[str]:
    return [line.plain for line in fitted(columns, width)]


NAMES = Column("NAME", ["billing", "a-rather-long-name"], floor=6, is_text=True)


def test_numbers_stand_to_the_right_and_texts_to_the_left() -> None:
    assert shown(80, NAMES, Column("LAG", ["5", "1,234"])) == [
        "NAME                  LAG",
        "billing                 5",
        "a-rather-long-name  1,234",
    ]


def test_names_are_cut_before_numbers_go() -> None:
    assert shown(15, NAMES, Column("LAG", ["5", "1,234"], rank=1)) == [
        "NAME        LAG",
        "billing       5",
        "a-rathe…  1,234",
    ]  # fmt: skip


def test_the_least_important_column_goes_first() -> None:
    columns = NAMES, Column("MODE", ["x" * 9] * 2, rank=2), Column("LAG", ["5", "1,234"], rank=1)

    assert [len(line.split()) for line in shown(14, *columns)] == [2, 2, 2]
    assert shown(14, *columns)[0].split() == ["NAME", "LAG"]


def test_a_text_that_wishes_to_be_read_is_cut_after_columns_that_can_be_spared() -> None:
    state = Column("STATE", ["retrying offset 7 (attempt 3)", "held"], rank=1, floor=5, wish=29, is_text=True)
    epoch = Column("EPOCH", ["4294967297"] * 2, rank=5)

    assert shown(45, NAMES, state, epoch)[1] == "billing         retrying offset 7 (attempt 3)"
    assert shown(20, NAMES, state, epoch)[1].split()[0] == "billi…"


def test_an_owner_is_cut_where_it_begins() -> None:
    owner = Column("OWNER", ["host-17@12345#ab12cd34"], floor=10, is_text=True, keeps_end=True)

    assert shown(10, owner) == ["OWNER", "…#ab12cd34"]


@pytest.mark.parametrize(
    ("text", "width", "left"),
    [("orders", 6, "orders"), ("orders", 5, "orde…"), ("orders", 1, "…"), ("orders", 0, ""), ("注文注文", 5, "注文…"),
     ("a\x1b[31mb\n", 20, "a\\x1b[31mb\\n")],
)  # fmt: skip
def test_a_text_from_elsewhere_is_made_printable_and_cut(text: str, width: int, left: str) -> None:
    assert cut(text, width) == left


texts = st.text(st.characters(codec="utf-8"), max_size=30)


@given(
    st.lists(st.tuples(texts, texts, texts), min_size=0, max_size=4),
    st.integers(1, 60), st.integers(0, 12), st.integers(0, 40), st.booleans(),
)  # fmt: skip
def test_no_line_is_wider_than_asked_for(
    rows: list[tuple[str, str, str]], width: int, floor: int, wish: int, keeps_end: bool
) -> None:
    first, second, third = ([row[i] for row in rows] for i in range(3))

    lines = shown(
        width,
        Column("ONE", first, floor=max(floor, 1), is_text=True, keeps_end=keeps_end),
        Column("TWO", second, rank=1),
        Column("THREE", third, rank=4, floor=2, wish=wish, is_text=True),
    )

    assert len(lines) == 1 + len(rows)
    assert max(map(cell_len, lines)) <= width
    assert not any("\n" in line for line in lines)
