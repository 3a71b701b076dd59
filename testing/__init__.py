"""
The real broker inside a test process.

::

    from rmq.testing import BrokerThread, InMemoryBroker

:mod:`rmq.testing.plugin` makes a pytest fixture of it; nothing else here needs pytest.
"""

from .broker import BrokerThread, InMemoryBroker

__all__ = ["BrokerThread", "InMemoryBroker"]
