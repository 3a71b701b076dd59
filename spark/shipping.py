"""
Sends sources and readers to Python processes that may lack this package, and tells them there what to do about it.

Spark pickles the source and the reader of a query and unpickles them in each worker. Where rmq is not installed that fails in the depths
of pickle, with the name of a module that users never imported. So what is sent is a function by value, which needs
nothing but Python, with the object inside: it looks for the package first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle


def shipped(kind: type[Any], state: tuple[Any, ...]) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
    """What ``__reduce__`` of ``kind`` returns, so that unpickling calls ``kind(*state)`` or says what is missing."""

    # cloudpickle, which Spark uses, sends a function within a function as code; it must refer to nothing of ours.
    def unpack(packed: bytes) -> Any:
        import importlib
        import pickle
        import sys

        try:
            importlib.import_module("rmq.spark")
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f"rmq is not installed in {sys.executable}, which runs the Spark workers: install it there, on every "
                "machine, or name another Python with PYSPARK_PYTHON before Spark starts"
            ) from None
        kind, state = pickle.loads(packed)
        return kind(*state)

    return unpack, (cloudpickle.dumps((kind, state)),)
