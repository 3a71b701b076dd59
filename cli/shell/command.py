"""
Base classes of all commands: help with examples, version, and one line and one exit code for each failure.

A mistake of the user, a broker that is away and a refusal end in :class:`Failure`, which prints one sentence. click
words a wrong command line in three lines and without our names, so it is worded here. A closed pipe ends quietly.
Everything else is a defect and keeps its traceback.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import click

from rmq.wire.errors import RmqError

from ..output.render import printable
from ..output.stdout import OutputClosed, OutputFailed, silence_stdout
from . import exit_codes
from .completion import complete

T = TypeVar("T")
_LONG = re.compile(r"\S{300,}")  # longer than anyone reads
_CLICKS = (click.ClickException, click.exceptions.Exit, click.Abort)


class Failure(click.ClickException):
    """Ends a command with one sentence for people and one code for scripts."""

    def __init__(self, text: str, code: int = exit_codes.FAILURE) -> None:
        super().__init__(text)
        self.exit_code = code  # type: ignore[misc]  # click calls it a class variable and reads it of the instance
        self.command = ""  # set on the way out

    def show(self, file: Any = None) -> None:
        """Print the sentence on standard error: on one line, whatever names and values are in it."""
        prefix = f"{self.command}: " if self.command else ""
        text = _LONG.sub(lambda word: f"{word[0][:100]}...{word[0][-50:]}", printable(self.message))
        click.echo(prefix + text, file=file, err=True)


class Command(click.Command):
    """A command whose help has examples, and whose failures are one sentence and an exit code."""

    def __init__(self, *args: Any, examples: str = "", **more: Any) -> None:
        super().__init__(*args, **more)
        self.examples = [line.strip() for line in examples.strip().splitlines()]
        for parameter in self.params:
            complete(parameter)

    def main(self, *args: Any, **more: Any) -> Any:
        """Begin here, with standard streams that are open."""
        open_standard_streams()
        return super().main(*args, **more)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **more: Any
    ) -> Any:
        """Read the command line; raises only what is printed in one line, and defects."""
        try:
            return super().make_context(info_name, args, parent, **more)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except Exception as error:
            root = info_name if parent is None else parent.find_root().info_name
            raise _ended(error, root or "") from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; raises only what is printed in one line, and defects."""
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            raise _ended(error, ctx.find_root().info_name or "") from error

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the whole first sentence: a list of commands has room for more lines."""
        return super().get_short_help_str(limit=200)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are typed."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"{'':{formatter.current_indent}}{line}\n" for line in self.examples))


class Group(Command, click.Group):
    """A command with sub-commands."""

    command_class = Command
    group_class = type


def open_standard_streams() -> None:
    """
    Point those of the three standard descriptors that are closed (``>&-``) to nowhere.

    Else the next file or socket gets such a number, be it the log of a broker, and whatever prints then writes there.
    Python has None for a closed stream, which callers do not expect; it becomes a stream of ``/dev/null``, too.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which is the lowest number that is free: this one
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115  # for as long as the process lives


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end, on uvloop."""
    import uvloop

    return uvloop.run(main)


def confirm(question: str, refusal: str) -> None:
    """
    Ask before something that cannot be undone.

    Raises:
        Failure: the answer is no, the input has ended, or Ctrl-C was pressed; its text is ``refusal``.
    """
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        agreed = False
    if not agreed:
        raise Failure(refusal)


def store_failure(error: Exception, folder: Path, advice: str | None = None) -> Failure:
    """
    Return the end of a command because of a data directory; errors of the store say themselves what to do.

    ``advice`` replaces the broker's for what neither another try nor another user helps with.
    """
    from rmq.broker.store.directory import remedy
    from rmq.broker.store.files import UNREADABLE
    from rmq.broker.store.scan import Unreadable

    if not isinstance(error, OSError):
        return Failure(str(error), exit_codes.TEMPORARY if isinstance(error, Unreadable) else exit_codes.OS_ERROR)
    is_unreadable = error.errno in UNREADABLE
    if advice is None or is_unreadable or isinstance(error, PermissionError):
        advice = remedy(error)
    text = f"{error.filename or folder}: {error.strerror or error}; {advice}"
    return Failure(text, exit_codes.TEMPORARY if is_unreadable else exit_codes.OS_ERROR)


def version_option(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--version``; the version is looked up only when asked for."""

    def show(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            click.echo(f"{ctx.find_root().info_name} {version()}")
            ctx.exit()

    return click.option(
        "--version", is_flag=True, expose_value=False, is_eager=True, callback=show, help="Show the version and exit."
    )(callback)


def version() -> str:
    """Return the installed version."""
    from importlib import metadata

    try:
        return metadata.version("rmq")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _ended(error: BaseException, command: str) -> BaseException:
    leaf = _first_leaf(error)
    if isinstance(leaf, RmqError):
        leaf = Failure(_sentence(leaf), exit_codes.of(leaf))
    elif isinstance(leaf, click.UsageError) and not isinstance(leaf, click.exceptions.NoArgsIsHelpError):
        leaf = Failure(sentence(leaf), exit_codes.NO_INPUT if is_missing_file(leaf) else exit_codes.USAGE)
    if isinstance(leaf, Failure):
        leaf.command = leaf.command or command
        return leaf
    if isinstance(leaf, OutputClosed | BrokenPipeError):
        silence_stdout()
        return click.exceptions.Exit(exit_codes.OK)
    if isinstance(leaf, OSError) and _raised_in_echo(leaf):
        leaf = OutputFailed(leaf.strerror)
    if isinstance(leaf, OutputFailed):
        silence_stdout()
        failure = Failure(f"the output cannot be written: {leaf}", exit_codes.OS_ERROR)
        failure.command = command
        return failure
    if isinstance(leaf, UnicodeEncodeError):
        failure = Failure(_not_utf8(leaf), exit_codes.USAGE)
        failure.command = command
        return failure
    if isinstance(leaf, KeyboardInterrupt):
        return click.exceptions.Exit(exit_codes.INTERRUPTED)
    return error if isinstance(leaf, Exception) and not isinstance(leaf, _CLICKS) else leaf


def _not_utf8(error: UnicodeEncodeError) -> str:
    """Explain bytes of the command line that are not text, or a terminal that cannot show one."""
    what = "the command line is not UTF-8" if error.encoding == "utf-8" else "the terminal cannot show all characters"
    return f"{what}: set a locale such as LC_ALL=C.UTF-8"


def _raised_in_echo(error: OSError) -> bool:
    """Return whether writing standard output failed, and not another file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is click.echo.__code__


def _first_leaf(error: BaseException) -> BaseException:
    """Return the first error of a task group; the others are consequences or came later."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _sentence(error: RmqError) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def sentence(error: click.UsageError) -> str:
    """Return what is wrong, and what is valid or where that is shown."""
    return printable(_what(error))


def is_missing_file(error: click.UsageError) -> bool:
    """Return whether the error is a named file or folder that cannot be opened."""
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
        return f"unexpected arguments: {extra}{_all(error)}"
    return error.message.rstrip(".")


def _all(error: click.UsageError) -> str:
    """Return where all options and commands are listed."""
    return "" if error.ctx is None else f": `{error.ctx.command_path} --help` shows all"


def _no_option(error: click.NoSuchOption) -> str:
    option, ctx = error.option_name, error.ctx
    if ctx is not None and isinstance(ctx.command, click.Group) and _is_of_a_sub_command(ctx.command, option):
        return f"{option} goes after the command, as in `{ctx.command_path} COMMAND {option} ...`"
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
    """Return the option or argument as it is typed."""
    if isinstance(error.param_hint, str):
        return error.param_hint.strip("'")
    if isinstance(error.param, click.Option):
        return max(error.param.opts, key=len)
    if error.param is not None:
        return error.param.make_metavar(error.ctx) if error.ctx is not None else str(error.param.name).upper()
    return "a value"


def _demand(error: click.BadParameter) -> str:
    """Return what a value must be, in our words where those of click are poor."""
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
