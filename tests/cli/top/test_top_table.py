from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rmq.cli.top.layout import Column, cut, fitted


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
