"""The installed package: its version, and public names that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache


@cache
def version() -> str:
    """Return the version of rmq that this program runs with."""
    from importlib import metadata  # here, as it takes longer to import than most programs need

    try:
        return metadata.version("rmq")
    except metadata.PackageNotFoundError:
        return "unknown"


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return a ``__getattr__`` for a package, which imports each name from its module on first use."""

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
