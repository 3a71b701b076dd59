"""
What is done for every message in C, where it could be built: without a compiler Python does all of it, a bit slower.

Nothing is decided here. What the compiled functions do not know they leave to the Python code beside each call of them,
which alone has the rules and the errors. ``MADE_BY`` tells which of the two does the work.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["MADE_BY", "native"]

if TYPE_CHECKING:
    from . import _native as native
else:
    try:
        from . import _native as native
    except ImportError:  # nothing was there to build it with
        native: ModuleType | None = None

MADE_BY = "Python" if native is None else "C"
