"""A concurrent group of real processes whose broker is killed: failures, delays and dead letters, to the end."""

from __future__ import annotations

import pytest

from chaos.retries import run

pytestmark = pytest.mark.slow


async def test_seconds_of_broker_kills_lose_nothing_and_repeat_no_retry_no_delay_and_no_dead_letter() -> None:
    verdict = await run(3.0, seed=3, least=120, every=(0.6, 1.4))

    assert verdict.violations == []
    assert verdict.retried > 20
    assert verdict.dead > 5
