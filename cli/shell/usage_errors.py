"""
A wrong command line in one sentence: what is wrong with it, and where the right one is shown. Pure.

click says it in three lines, without our names for things; this says it in one, in the words of the other failures.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import click

from ..output.render import printable


def sentence(error: click.UsageError) -> str:
    """What is wrong, and what would be right or where that is shown."""
    return printable(_what(error))


def is_missing_file(error: click.UsageError) -> bool:
    """Whether what is wrong is a file or folder that was named and cannot be opened."""
    kind = getattr(error.param, "type", None) if isinstance(error, click.BadParameter) else None
    return isinstance(kind, click.File | click.Path) and not isinstance(error, click.MissingParameter)


def _what(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        return _no_option(error)
    if isinstance(error, click.exceptions.NoSuchCommand):
        near = _near(error.command_name, error.possibilities or ())
        return f"there is no command {error.command_name!r}{near}{_all(error)}"
    if isinstance(error, click.MissingParameter):
        return f"{_name(error)} is missing{_all(error)}"
    if isinstance(error, click.BadParameter):
        return error.message if is_missing_file(error) else _demand(error)
    if isinstance(error, click.BadOptionUsage):
        does_not_take = "does not take a value" in error.message
        return f"{error.option_name} {'takes no value' if does_not_take else 'needs a value'}{_all(error)}"
    if error.message.startswith("Got unexpected extra"):
        extra = error.message.partition("(")[2].rstrip(")")
        return f"there is more on the command line than it takes: {extra}{_all(error)}"
    return error.message.rstrip(".")


def _all(error: click.UsageError) -> str:
    """Where everything is listed that could be typed."""
    return "" if error.ctx is None else f": `{error.ctx.command_path} --help` shows all"


def _no_option(error: click.NoSuchOption) -> str:
    option, ctx = error.option_name, error.ctx
    if ctx is not None and isinstance(ctx.command, click.Group) and _is_of_a_sub_command(ctx.command, option):
        return f"{option} goes behind the command, as in `{ctx.command_path} COMMAND {option} ...`"
    return f"there is no option {option}{_near(option, error.possibilities or ())}{_all(error)}"


def _is_of_a_sub_command(group: click.Group, option: str) -> bool:
    for command in group.commands.values():
        if any(option in parameter.opts for parameter in command.params):
            return True
        if isinstance(command, click.Group) and _is_of_a_sub_command(command, option):
            return True
    return False


def _near(name: str, possible: Iterable[str]) -> str:
    near = get_close_matches(name, possible, n=1, cutoff=0.7)
    return f" (did you mean {near[0]}?)" if near else ""


def _name(error: click.BadParameter) -> str:
    """The option or argument, as it is typed."""
    if isinstance(error.param_hint, str):
        return error.param_hint.strip("'")
    if isinstance(error.param, click.Option):
        return max(error.param.opts, key=len)
    if error.param is not None:
        return error.param.make_metavar(error.ctx) if error.ctx is not None else str(error.param.name).upper()
    return "a value"


def _demand(error: click.BadParameter) -> str:
    """What a value must be; types that click words poorly are said by us."""
    name, kind = _name(error), getattr(error.param, "type", None)
    given = error.message.split(" is not ", 1)[0].strip("'")
    shown = given if given.strip() else repr(given)
    if isinstance(kind, click.IntRange | click.FloatRange):
        number = "a whole number" if isinstance(kind, click.IntRange) else "a number"
        return f"{name} must be {number}{_range(kind.min, kind.max)}, not {shown}"
    if isinstance(kind, click.Choice):
        choices = list(map(str, kind.choices))
        return f"{name} must be {_either(choices)}, not {shown}{_near(given, choices)}"
    return f"{name}: {error.message.rstrip('.')}"


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}" if high < 1e6 else f" from {low:g} to {int(high)}"
    if low is not None:
        return f", {low:g} or more"
    return f", {high:g} or less" if high is not None else ""


def _either(choices: list[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)
