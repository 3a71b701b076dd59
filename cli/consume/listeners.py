"""The listeners of ``rmq-consume``: the one that prints, and the user's own."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rmq.wire.model import ConsumeStatus, StoredMessage

from ..output.output import Output, OutputClosed, OutputFailed
from ..output.render import message_line, message_object, to_json
from ..shell import exit_codes
from ..shell.command import Failure

if TYPE_CHECKING:
    from rmq.consumer.listener import ConcurrentContext, ConsumeContext, Listener


class Printer:
    """
    Prints messages; each counts as consumed only once its line has left the process.

    ``done`` is set when ``limit`` messages were printed, the reader has gone, or nothing can be written. What is not
    printed is left alone: neither committed nor failed, so that the group's next member gets it as a first delivery.
    """

    def __init__(self, output: Output, *, as_json: bool, limit: int | None = None) -> None:
        self.done = asyncio.Event()
        self.closed = False  # the reader has gone
        self.failure: OutputFailed | None = None  # why nothing can be written
        self._output = output
        self._as_json = as_json
        self._left = limit

    async def __call__(
        self, messages: Sequence[StoredMessage], context: ConsumeContext | ConcurrentContext
    ) -> ConsumeStatus:
        """Print one batch."""
        if not await self.show(messages, context.epoch):
            context.leave()
        return ConsumeStatus.SUCCESS

    async def show(self, messages: Sequence[StoredMessage], epoch: int) -> bool:
        """Print messages; False if they are left alone, since ``done`` is set."""
        if self.done.is_set():
            return False
        if self._left is not None:
            self._left -= len(messages)
            if self._left <= 0:
                self.done.set()
        try:
            await self._output.write(self.text(messages, epoch))
        except OutputClosed:
            self.reader_has_gone()
            return False
        except OutputFailed as failure:
            self.failure = failure
            self.done.set()
            return False
        return True

    def text(self, messages: Sequence[StoredMessage], epoch: int) -> bytes:
        """A line for each message."""
        if self._as_json:
            lines = [to_json(message_object(message, epoch)) for message in messages]
        else:
            lines = [message_line(message) for message in messages]
        return "".join(f"{line}\n" for line in lines).encode(errors="replace")

    def reader_has_gone(self) -> None:
        """Nothing can be printed any more."""
        self.closed = True
        self.done.set()


def load_listener(name: str) -> Listener:
    """
    The function that ``module:function`` names; modules in the current folder are found.

    Raises:
        Failure: it cannot be imported, or is no function.
    """
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise Failure(f"--listener {name}: write it as module:function", exit_codes.USAGE)
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (module_name, module_name.split(".")[0]):
            text = f"--listener {name}: there is no module {module_name!r} in {here} or among the installed ones"
            raise Failure(text, exit_codes.NO_INPUT) from error
        text = f"--listener {name}: {module_name} cannot be imported: {_told(error)}"
        raise Failure(text, exit_codes.DATA_ERROR) from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise Failure(f"--listener {name}: {module_name} has no function {path!r}", exit_codes.NO_INPUT)
    listener: Listener = found
    return listener


def _told(error: Exception) -> str:
    """An error in a module of the user's in one line, with the place in the file that it is about."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    place = [frame for frame in frames if not frame.filename.startswith("<")][-1]  # not the import machinery
    return f"{type(error).__name__}: {' '.join(str(error).split())} ({place.filename}, line {place.lineno})"
