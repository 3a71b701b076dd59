"""``examples/fencing_sqlite.py``, shown in docs/listeners.md; over restores: tests/scenarios/test_effects_once.py."""

from __future__ import annotations

import pytest

from .running import run


@pytest.mark.slow
def test_a_stale_owner_is_refused_and_nothing_is_booked_twice() -> None:
    booked, again, stale = run("fencing_sqlite").splitlines()

    assert booked == "booked: {'account-0': 20, 'account-1': 25}"
    assert again == "delivered again to a later owner: 0 booked"
    assert stale.startswith("tried by the owner before: refused, payments/")
    assert stale.endswith(" is too old")
