"""As many connections as wanted, and as the limit of open files allows."""

from __future__ import annotations

import resource
import sys

import pytest

from rmq.broker.process import FEWEST, RESERVED, possible_connections, raise_open_files


@pytest.mark.parametrize(
    ("limit", "wanted", "possible"),
    [
        (1000, 0, 1000 - RESERVED),
        (1000, 5, 5),
        (1000, 5000, 1000 - RESERVED),
        (110, 0, FEWEST),
        (110, 10, 10),
        (resource.RLIM_INFINITY, 0, sys.maxsize),
        (resource.RLIM_INFINITY, 7, 7),
    ],
)
def test_what_the_limit_leaves_is_the_bound(
    monkeypatch: pytest.MonkeyPatch, limit: int, wanted: int, possible: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda of: (limit, limit))

    assert possible_connections(wanted) == possible


def test_a_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda of: (1024, 20_000))
    monkeypatch.setattr(resource, "setrlimit", lambda of, limits: given.append(limits))

    assert raise_open_files() == 20_000
    assert given == [(20_000, 20_000)]


def test_a_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(of: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda of: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)

    assert raise_open_files() == 1024
