"""Markdown that looks the same everywhere: tables, code and texts from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

RENEW = "make docs"
NOTE = f"<!-- Made from the code by `{RENEW}` (scripts/reference). Do not edit: a test compares it with the code. -->"


def page(title: str, about: str, *parts: str) -> str:
    """A whole page, with the note that it is made."""
    return "\n\n".join([f"# {title}", NOTE, about.strip(), *(part.strip() for part in parts if part.strip())]) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; nothing if there are no rows."""
    lines = ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    if not lines:
        return ""
    head = "| " + " | ".join(columns) + " |"
    return "\n".join([head, "|" + "---|" * len(columns), *lines])


def code(text: str) -> str:
    """Text as it is typed; an empty one is an empty cell."""
    if not text:
        return ""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def block(lines: Iterable[str], language: str = "sh") -> str:
    """Lines as they are typed."""
    return "\n".join([f"```{language}", *lines, "```"])


def prose(text: str) -> str:
    """Plain text of the code, without what Markdown would take for marks of its own."""
    parts = text.replace("``", "`").split("`")
    for index in range(0, len(parts), 2):  # what lies between two backticks stays as it is
        parts[index] = parts[index].replace("<", "&lt;").replace("*", r"\*")
    return "`".join(parts)


def anchor(heading: str) -> str:
    """What a heading is linked by, as GitHub makes it."""
    kept = (c for c in heading.strip().lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")


def _cell(value: str) -> str:
    return " ".join(value.split()).replace("|", r"\|")
