"""
A broker for tests with pytest, as a fixture. Needs pytest, which rmq does not.

In the ``conftest.py`` of your tests::

    pytest_plugins = ["rmq.testing.plugin"]

or ``from rmq.testing.plugin import rmq_broker``. Then::

    def test_the_order_is_sent(rmq_broker):
        place_order(rmq_broker.address, "o-17")
        assert [message.body for message in rmq_broker.messages("orders")] == [b"created"]

The broker runs in a thread, so the same fixture serves plain tests, and asynchronous ones under whatever plugin and
mode runs those.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .broker import BrokerThread


@pytest.fixture
def rmq_broker(request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    """
    A real broker, empty, for this test alone; see :class:`~rmq.testing.BrokerThread` for what it can be asked.

    Settings of the broker can be given for a test: ``@pytest.mark.parametrize("rmq_broker", [{"default_queues": 1}],
    indirect=True)``. For one broker that many tests share, write a fixture of a wider scope around a ``BrokerThread``.
    """
    with BrokerThread(**getattr(request, "param", {})) as broker:
        yield broker
