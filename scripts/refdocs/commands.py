"""``commands.md``: every command with its options, from the objects that parse them; no terminal is asked."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import click

from .markdown import anchor, block, code, page, prose, table

_ABOUT = """
Every command, its options and examples. `COMMAND --help` says the same. What the commands end with is in
[exit codes](exit-codes.md), the settings behind `-o` and `--config` in [settings](settings.md).
"""
_SHARED_ABOUT = (
    "Where a command lists one of these under *Also*, it means this; the default of `--log-level` is said there. "
    "In JSON a lease epoch (`epoch`) is decimal text: it exceeds 2^53, above which many readers of JSON round numbers."
)
_SHARED = ("--json", "--broker", "--log-level", "--log-format", "--version")
_EVERYWHERE = ("--help",)
_NOTE = re.compile(r"\s+\[((?:default|env var): .*)\]\Z")
_PLAIN = (str, int, float)


class Option(NamedTuple):
    """One option, as the page shows it."""

    names: str
    text: str
    default: str
    variable: str


def render(programs: Mapping[str, click.Command]) -> str:
    """The page about these programs."""
    every = [(path, command) for name, program in programs.items() for path, command in walk(name, program)]
    shared = _shared(every)
    contents = "\n".join(f"- [{code(path)}](#{anchor(path)}): {_first_sentence(command)}" for path, command in every)
    known = table(("option", "meaning", "default", "environment"), [_row(option) for option in shared.values()])
    parts = [_section(path, command, shared) for path, command in every]
    return page("Commands", _ABOUT, contents, "## Shared options", _SHARED_ABOUT, known, *parts)


def walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and all below it that are not hidden, as they are typed, by name."""
    yield path, command
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            if not command.commands[name].hidden:
                yield from walk(f"{path} {name}", command.commands[name])


def options_of(command: click.Command) -> list[Option]:
    """The options that ``--help`` would show, but for itself."""
    shown = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    return [_option(param) for param in shown if not set(param.opts) & set(_EVERYWHERE)]


def help_text(command: click.Command) -> str:
    """The help of a command as paragraphs; one that begins with a mark keeps its lines."""
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    paragraphs = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.strip("\n").splitlines()
        if lines and lines[0].strip() == "\b":
            paragraphs.append(block(lines[1:], ""))
        else:
            paragraphs.append(prose("\n".join(lines)))
    return "\n\n".join(paragraphs).strip()


def _shared(every: list[tuple[str, click.Command]]) -> dict[str, Option]:
    """The options that look alike in many commands, as they look there most often."""
    found: dict[str, list[Option]] = {name: [] for name in _SHARED}
    for _, command in every:
        for option in options_of(command):
            if _name(option) in found:
                found[_name(option)].append(option)
    shared = {name: max(options, key=options.count) for name, options in found.items() if options}
    if "--log-level" in shared:
        shared["--log-level"] = shared["--log-level"]._replace(default="")
    return shared


def _section(path: str, command: click.Command, shared: Mapping[str, Option]) -> str:
    own, also = [], []
    for option in options_of(command):
        known = shared.get(_name(option))
        if known is None or (option != known and option._replace(default=known.default) != known):
            own.append(option)
        else:
            more = f" (default {option.default})" if option.default != known.default else ""
            also.append(code(_name(option)) + more)
    parts = [f"{'##' if ' ' not in path else '###'} {path}", help_text(command), block([_usage(path, command)])]
    if isinstance(command, click.Group):
        below = [(name, part) for name, part in walk(path, command) if name.count(" ") == path.count(" ") + 1]
        parts.append(table(("command", "what it does"), [(_link(name), _first_sentence(part)) for name, part in below]))
    parts.append(table(("option", "meaning", "default", "environment"), [_row(option) for option in own]))
    if also:
        parts.append(f"Also: {', '.join(also)}.")
    examples: list[str] = getattr(command, "examples", [])
    if any(examples):
        parts += ["Examples:", block(examples)]
    return "\n\n".join(part for part in parts if part)


def _usage(path: str, command: click.Command) -> str:
    arguments = [_argument(param) for param in command.params if isinstance(param, click.Argument)]
    tail = ["COMMAND [ARGS]..."] if isinstance(command, click.Group) else []
    return " ".join([path, "[OPTIONS]", *arguments, *tail])


def _argument(param: click.Argument) -> str:
    name = param.metavar or (param.name or "").upper()
    if param.metavar is None and isinstance(param.type, click.Choice):
        name = "{" + "|".join(map(str, param.type.choices)) + "}"
    name = f"{name}..." if param.nargs == -1 else name
    return name if param.required or name.startswith("[") else f"[{name}]"


def _option(param: click.Option) -> Option:
    text, default, variable = param.help or "", "", ""
    if baked := _NOTE.search(text):  # those made from a config class say it in their text
        text = text[: baked.start()]
        for part in baked[1].split("; "):
            what, _, value = part.partition(": ")
            default, variable = (value, variable) if what == "default" else (default, value)
    if not default and not param.is_flag and isinstance(param.default, _PLAIN) and param.default != "":
        default = str(param.default)
    if not variable and isinstance(param.envvar, str):
        variable = param.envvar
    notes = [note for note in (_range(param.type), "needed" if param.required else "") if note]
    text = f"{text} ({'; '.join(notes)})" if notes else text
    return Option(_names(param), text.strip(), default, variable)


def _names(param: click.Option) -> str:
    names = [*param.opts, *param.secondary_opts]
    placeholder = "" if param.is_flag or param.count else _placeholder(param)
    return ", ".join(names) + (f" {placeholder}" if placeholder else "")


def _placeholder(param: click.Option) -> str:
    if param.metavar:
        return param.metavar
    if isinstance(param.type, click.Choice):
        return "|".join(map(str, param.type.choices))
    return {"integer": "N", "integer range": "N", "float": "NUMBER", "float range": "NUMBER"}.get(
        param.type.name, param.type.name.upper()
    )


def _range(kind: Any) -> str:
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return ""
    if kind.min is not None and kind.max is not None:
        return f"{kind.min:g} to {kind.max:g}" if kind.max < 1e5 else f"{kind.min} to {kind.max}"
    if kind.min is not None:
        return f"at least {kind.min:g}"
    return f"at most {kind.max:g}" if kind.max is not None else ""


def _row(option: Option) -> tuple[str, ...]:
    return code(option.names), prose(option.text), code(option.default), code(option.variable)


def _name(option: Option) -> str:
    """The long name, by which options of different commands are compared."""
    names = option.names.partition(" ")[0].split(",")
    return names[-1]


def _first_sentence(command: click.Command) -> str:
    first = " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
    return prose(first) if first.endswith("?") else prose(first).rstrip(".:") + "."


def _link(path: str) -> str:
    return f"[{code(path)}](#{anchor(path)})"
