"""What is said to somebody who named no topic."""

from __future__ import annotations

import pytest

from rmq.cli.shell.connect import existing, of_users


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "no topics exist yet; create one with `rmq-admin topic create NAME`"),
        (["a"], "existing topic: a"),
        (["a", "b"], "existing topics: a, b"),
        ([f"t{i}" for i in range(12)], "existing topics: t0, t1, t2, t3, t4, t5, t6, t7, t8, t9 and 2 more"),
    ],
)
def test_the_topics_that_exist_are_named(names: list[str], text: str) -> None:
    assert existing(names) == text


def test_topics_that_rmq_makes_for_groups_are_not_offered() -> None:
    assert of_users(["b", "%DLQ%billing", "a", "%RETRY%billing", "team%c"]) == ["a", "b", "team%c"]
