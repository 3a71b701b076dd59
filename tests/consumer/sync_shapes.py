"""How the consumers for code without asyncio are compared with those for it."""

from __future__ import annotations

import inspect


def public(kind: type) -> set[str]:
    """The names of a class for its users."""
    return {name for base in kind.__mro__[:-1] for name in vars(base) if not name.startswith("_")}


def same_shape(ours: object, theirs: object) -> bool:
    """Whether two are called alike: by names, kinds, defaults and types; or are both attributes."""
    if isinstance(theirs, property):
        return isinstance(ours, property)
    return _shape(ours) == _shape(theirs)


def _shape(function: object) -> list[tuple[str, object, object, object]]:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [(one.name, one.kind, one.default, one.annotation) for one in parameters]
