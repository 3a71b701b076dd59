"""
How every command begins and ends: its help with examples, its version, and one line and one code for each failure.

A mistake of the user, a broker that is away and a refusal end in :class:`Failure`, which prints one sentence; a
closed pipe ends quietly. Everything else is a defect and keeps its traceback.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from rmq.wire.errors import RmqError

from ..output.output import OutputClosed, OutputFailed, silence_stdout
from ..output.render import printable
from . import exit_codes
from .completion import complete
from .usage_errors import is_missing_file, sentence

T = TypeVar("T")

_LONG = re.compile(r"\S{300,}")  # a word that nobody reads to its end
_CLICKS = (click.ClickException, click.exceptions.Exit, click.Abort)


class Failure(click.ClickException):
    """The end of a command: one sentence for people, one code for scripts."""

    def __init__(self, text: str, code: int = exit_codes.FAILURE) -> None:
        super().__init__(text)
        self.exit_code = code  # type: ignore[misc]  # click calls it a class variable and reads it of the instance
        self.command = ""  # set on the way out

    def show(self, file: Any = None) -> None:
        """Print the sentence on standard error: on one line, whatever names and values are in it."""
        prefix = f"{self.command}: " if self.command else ""
        text = _LONG.sub(lambda word: f"{word[0][:100]}...{word[0][-50:]}", printable(self.message))
        click.echo(prefix + text, file=file, err=True)


class _Ending(click.Command):
    """Turns what a callback raises into an exit code."""

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
        """The first sentence, whole: in a list of commands half of it says little, and there is room for more lines."""
        return super().get_short_help_str(limit=200)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, as they are typed."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"{'':{formatter.current_indent}}{line}\n" for line in self.examples))


class Command(_Ending):
    """A command of ours."""


class Group(_Ending, click.Group):
    """A command with sub-commands of ours."""

    command_class = Command
    group_class = type


def open_standard_streams() -> None:
    """
    Point those of the three standard descriptors that are closed (``>&-``) to nowhere.

    Else the next file or socket gets such a number, be it the log of a broker, and whatever prints then writes there.
    Python has None for a closed stream, which nobody expects; so that is made to be one of ``/dev/null`` as well.
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
    """The installed version."""
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
    """Bytes of the command line that are no text, or a terminal that cannot show one."""
    what = "what was typed is not UTF-8" if error.encoding == "utf-8" else "this terminal cannot show all letters"
    return f"{what}: set a locale such as LC_ALL=C.UTF-8"


def _raised_in_echo(error: OSError) -> bool:
    """Whether it was standard output that could not be written, and no file of ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is click.echo.__code__


def _first_leaf(error: BaseException) -> BaseException:
    """The first error of a task group; the others are consequences or came second."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _sentence(error: RmqError) -> str:
    return " ".join(str(error).split()) or type(error).__name__
