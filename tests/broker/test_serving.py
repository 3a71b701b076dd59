from __future__ import annotations

from dataclasses import asdict

import pytest

from rmq.broker.testing import InMemoryBroker
from rmq.client import Admin

pytestmark = pytest.mark.virtual_time


async def test_whoever_asks_is_told_every_setting_the_broker_works_with() -> None:
    async with InMemoryBroker(max_retries=3) as broker, Admin(broker.address) as admin:
        told = await admin.config()

        assert told == {**asdict(broker.broker.config), "max_retries": 3}
