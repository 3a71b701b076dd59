"""
The Spark data source that reads topics as DataFrames.

::

    from rmq.spark import session

    orders = session().read.format("rmq").option("broker", "127.0.0.1:10911").option("topic", "orders").load()

Importing this needs neither pyspark nor pyarrow; starting a session does (``pip install 'rmq[spark]'``).
"""

from __future__ import annotations

from .errors import one_line
from .session import session

__all__ = ["one_line", "session"]
