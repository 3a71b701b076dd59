from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.wire.batch.hashing import tag_bloom
from rmq.wire.batch.tags import parse, wanted

TAGS = st.text(st.characters(exclude_characters="|* ", exclude_categories=["Zs", "Cs", "Cc", "Zl", "Zp"]), min_size=1)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("*", None),
        ("", None),
        ("  * ", None),
        ("a", {"a"}),
        ("a || b", {"a", "b"}),
        ("a||b||a", {"a", "b"}),
        (" || a || ", {"a"}),
        ("ü||\U0001f600", {"ü", "\U0001f600"}),
    ],
)
def test_an_expression_is_all_or_a_set_of_tags(expression: str, tags: set[str] | None) -> None:
    assert parse(expression) == tags


@pytest.mark.parametrize("expression", ["||", "a | b", "a b", "* || a", "a||*", "|", "a || b c"])
def test_what_is_no_expression_is_refused_with_an_example(expression: str) -> None:
    with pytest.raises(ValueError, match="is not '\\*' or tags joined by '\\|\\|', such as 'created \\|\\| paid'"):
        parse(expression)
    with pytest.raises(ValueError, match="is not"):
        wanted(expression)


def test_everything_is_wanted_by_no_filter_at_all() -> None:
    assert wanted("*") is None
    assert wanted("a || b") == wanted("b||a")
    assert wanted("a") != wanted("b")


@given(st.sets(TAGS, min_size=1, max_size=5), st.sets(TAGS, max_size=5))
def test_a_bloom_never_rules_out_a_batch_that_has_a_wanted_tag(ours: set[str], theirs: set[str]) -> None:
    some = wanted(" || ".join(ours))
    assert some is not None

    assert some.among(theirs) == bool(ours & theirs)
    if ours & theirs:
        assert some.possible(tag_bloom(theirs))
    assert not some.possible(0)


def test_tags_of_one_hash_are_told_apart_by_name_only() -> None:
    some = wanted("Aa")
    assert some is not None

    assert some.possible(tag_bloom(["BB"]))
    assert not some.among(["BB"])
