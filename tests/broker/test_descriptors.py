"""As many connections as wanted, and as the limit of open files allows."""

from __future__ import annotations

import resource

import pytest

from rmq.broker.descriptors import FEWEST, RESERVED, possible_connections


@pytest.mark.parametrize(
    ("limit", "wanted", "possible"),
    [(1000, 0, 1000 - RESERVED), (1000, 5, 5), (1000, 5000, 1000 - RESERVED), (110, 0, FEWEST), (110, 10, 10)],
)
def test_what_the_limit_leaves_is_the_bound(
    monkeypatch: pytest.MonkeyPatch, limit: int, wanted: int, possible: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda of: (limit, limit))

    assert possible_connections(wanted) == possible
