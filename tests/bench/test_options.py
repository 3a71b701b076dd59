"""Where a sample finds its broker."""

from __future__ import annotations

import pytest

from rmq.bench.options import Options
from rmq.client import Admin


def test_a_broker_that_runs_is_used_as_it_is() -> None:
    with Options(broker="127.0.0.1:1").ground() as address:
        assert address == "127.0.0.1:1"


@pytest.mark.slow
async def test_a_sample_has_a_broker_of_its_own_with_the_durability_it_asks_for() -> None:
    with Options(flush="sync").ground("async") as address:
        async with Admin(address) as admin:
            assert (await admin.config())["flush"] == "async"
