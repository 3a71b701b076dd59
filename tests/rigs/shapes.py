"""The shapes of operations: their fields, and how ``docs/protocol.md`` draws them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin, get_type_hints

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"


def shapes_of(*modules: ModuleType) -> dict[str, Any]:
    """Return the named tuples of modules by name."""
    found = {name: kind for module in modules for name, kind in inspect.getmembers(module, inspect.isclass)}
    return {name: kind for name, kind in found.items() if issubclass(kind, tuple) and hasattr(kind, "_fields")}


def described(kind: Any) -> str:
    """Return the fields of a shape in order, with their defaults."""
    defaults = kind._field_defaults
    return " ".join(f"{name}={defaults[name]!r}" if name in defaults else name for name in kind._fields)


def check_documented(kind: Any) -> None:
    """A shape is drawn as its name and an array; fields that are lists or maps are drawn by their content."""
    (drawn,) = re.findall(rf"^{kind.__name__} +(\[.*(?:\n  .*)*)", DOCUMENT.read_text(), re.MULTILINE)
    plain = [field for field, hint in get_type_hints(kind).items() if get_origin(hint) not in (list, dict)]

    assert re.findall(r"\b([a-z_]+) (?:str|int|bool|float|bin)\b", drawn)[: len(plain)] == plain
