"""
Lets Spark find the data source ``rmq``: it imports every top-level module whose name begins with ``pyspark_``.

It stays this small because one such module that fails to import hides the data sources of all others.
"""

from __future__ import annotations

from rmq.spark.source import RmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
