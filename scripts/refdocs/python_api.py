"""The page of Python classes: what programs call, from signatures and docstrings."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, ForwardRef

from .markdown import block, code, page, prose, table

WIDTH = 100
# What programs are given and never make: how it is made is nobody's business.
GIVEN = ("Receipt", "StoredMessage", "ConsumeContext", "ConcurrentContext", "PulledBatch")

# Module, what it is for, and the names of it that are told of, in this order.
MODULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "rmq.client",
        "Sending and asking.",
        ("Message", "Producer", "Receipt", "SendStatus", "MessageQueue", "Admin", "starting_offsets"),
    ),
    (
        "rmq.consumer",
        "Consuming. Every setting of [settings.md](settings.md#consumer) is a keyword argument of `Consumer` and "
        "`PullConsumer`.",
        (
            "Consumer", "StoredMessage", "ConsumeStatus", "ConsumeContext", "ConcurrentContext", "PullConsumer",
            "PulledBatch",
        ),
    ),
    ("rmq.client.scan.table", "Topics as Arrow tables, without Spark.", ("read_table",)),
    ("rmq.spark", "Topics as DataFrames; the options are in [spark.md](../spark.md#options).", ("session", "one_line")),
    (
        "rmq.testing",
        "The real broker inside a test. `rmq.testing.plugin` has the fixture `rmq_broker`, a `BrokerThread` "
        "for each test.",
        ("BrokerThread", "InMemoryBroker"),
    ),
)  # fmt: skip
ABOUT = """
What programs import. `rmq.client.sync.Producer`, `rmq.consumer.sync.Consumer` and `rmq.consumer.sync.PullConsumer` have
the same names, arguments and errors as the classes below, and block instead of being awaited. All errors are
`rmq.client.RmqError`; those that the broker answers are in [errors.md](errors.md). A name that is not on this page is
not meant for programs.
"""


def render() -> str:
    """The page."""
    return page("Python", ABOUT, *_parts())


def _parts() -> Iterator[str]:
    for name, about, members in MODULES:
        module = importlib.import_module(name)
        yield f"## {name}"
        yield about
        for member in members:
            found = getattr(module, member)
            yield f"### {member}"
            yield from _class(found) if inspect.isclass(found) else _function(found, member)


def _function(function: Callable[..., Any], name: str) -> Iterator[str]:
    yield block(_call(name, function), "python")
    yield "\n\n".join(_paragraphs(function.__doc__ or ""))


def _class(cls: type[Any]) -> Iterator[str]:
    if issubclass(cls, enum.Enum):
        yield "\n\n".join(_paragraphs(cls.__doc__ or ""))
        yield ", ".join(code(member.name) for member in cls)
        return
    if cls.__name__ not in GIVEN:
        yield block(_call(cls.__name__, cls), "python")
    yield "\n\n".join(_paragraphs(cls.__doc__ or ""))
    rows = [
        (code(name), _first(value.fget.__doc__ or "")) for name, value in _public(cls) if isinstance(value, property)
    ]
    rows += [(code(_line(name, value)), _first(value.__doc__ or "")) for name, value in _methods(cls)]
    yield table(("member", "what it is or does"), rows)


def _public(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """Members in the order in which they are written, those of our base classes behind them."""
    seen: set[str] = set()
    for owner in cls.__mro__:
        if not owner.__module__.startswith("rmq."):
            continue
        for name, value in vars(owner).items():
            if not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, value


def _methods(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, value in _public(cls):
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(function):
            yield name, function


def _line(name: str, function: Any) -> str:
    """How a method is called, and what it returns."""
    signature = inspect.signature(function)
    awaited = "await " if inspect.iscoroutinefunction(function) else ""
    returned = _type(signature.return_annotation)
    result = "" if returned in ("None", "Self") else f" -> {returned}"
    return f"{awaited}{name}({', '.join(_arguments(signature, function.__doc__ or ''))}){result}"


def _call(name: str, function: Any) -> list[str]:
    """How a class or function is called: in one line if that is not too long, else an argument a line."""
    arguments = list(_arguments(inspect.signature(function), function.__doc__ or ""))
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return [line]
    return [f"{name}(", *(f"    {argument}," for argument in arguments), ")"]


def _arguments(signature: inspect.Signature, doc: str) -> Iterator[str]:
    """All but those that are there for our tests: a clock, a way to connect, of which its docstring says nothing."""
    starred = False
    for name, parameter in signature.parameters.items():
        is_function = parameter.default is not parameter.empty and callable(parameter.default)
        if name == "self" or (is_function and f"``{name}``" not in doc):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        is_rest = parameter.kind is parameter.VAR_POSITIONAL
        mark = "*" if is_rest else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        starred = starred or is_rest
        text = mark + name
        if parameter.annotation is not parameter.empty:
            text += f": {_type(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter.default)}"
        yield text


def _type(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    is_plain = value is None or isinstance(value, bool | int | float | str | bytes | tuple)
    return repr(value) if is_plain and not isinstance(value, enum.Enum) else "..."


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a docstring, with the marks of Markdown."""
    for part in inspect.cleandoc(text).split("\n\n"):
        head, _, rest = part.partition("\n")
        if head == "Raises:":
            yield "Raises:\n\n" + "\n".join(f"- {_marked(line)}" for line in _items(rest))
        elif part == "::":
            continue
        elif part.startswith("    "):
            yield block(textwrap.dedent(part).splitlines(), "python")
        else:
            yield _marked(" ".join(part.split()))


def _items(text: str) -> Iterator[str]:
    """``Name: what`` of a list that is indented, each in one line."""
    lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        if line.startswith(" "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return iter(lines)


def _first(text: str) -> str:
    """The first paragraph, and what is raised."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    raised = [part.partition("\n")[2] for part in paragraphs if part.startswith("Raises:")]
    said = " ".join(paragraphs[0].split())
    names = [item.partition(":")[0] for part in raised for item in _items(part)]
    return _marked(said) + (f" Raises {', '.join(code(name) for name in names)}." if names else "")


def _marked(text: str) -> str:
    return prose(re.sub(r":[a-z]+:`~?([^`]*)`", lambda role: code(role[1].rpartition(".")[2]), text))
