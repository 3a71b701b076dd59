"""
The listeners of ``rmq-consume``: the printer and the user's own function, and the loop of ``--pull``.

``--pull`` polls, prints, and commits what was printed.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rmq.consumer import PullConsumer
from rmq.consumer.config import ConsumerConfig
from rmq.wire.model import ConsumeStatus, StoredMessage
from rmq.wire.names import wrap

from ..output.render import encoded, message_line, message_object, to_json
from ..output.stdout import Output, OutputClosed, OutputFailed
from ..shell import exit_codes
from ..shell.command import Failure
from ..shell.connect import refuse_missing_topic
from ..shell.signals import first_of, stop_signals
from .prerequisites import report_missing

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
        """Print messages; return False if ``done`` is set and they are left alone."""
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
        """Return one line for each message."""
        if self._as_json:
            return encoded(to_json(message_object(message, epoch)) for message in messages)
        return encoded(map(message_line, messages))

    def reader_has_gone(self) -> None:
        """Stop, since the reader has gone."""
        self.closed = True
        self.done.set()


def load_listener(name: str) -> Listener:
    """
    The function that ``module:function`` names; modules in the current folder are found.

    Raises:
        Failure: it cannot be imported, or is not a function.
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
        text = f"--listener {name}: {module_name} cannot be imported: {_described(error)}"
        raise Failure(text, exit_codes.DATA_ERROR) from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise Failure(f"--listener {name}: {module_name} has no function {path!r}", exit_codes.NO_INPUT)
    listener: Listener = found
    return listener


def _described(error: Exception) -> str:
    """Return an error in the user's module in one line, with its place in the file."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    place = [frame for frame in frames if not frame.filename.startswith("<")][-1]  # not the import machinery
    return f"{type(error).__name__}: {' '.join(str(error).split())} ({place.filename}, line {place.lineno})"


async def poll_and_print(config: ConsumerConfig, topics: Mapping[str, str], printer: Printer) -> None:
    """Poll and print until there is enough or a signal; then stop cleanly: the batch that is being printed counts."""
    if not topics:
        await refuse_missing_topic(config.broker)
    with stop_signals() as asked:
        names = [wrap(config.namespace, topic) for topic in topics]
        async with (
            PullConsumer(topics=topics, config=config, handle_signals=False) as consumer,
            report_missing(config.broker, names),
        ):
            await _print_until(asked, consumer, printer)


async def _print_until(asked: asyncio.Event, consumer: PullConsumer, printer: Printer) -> None:
    printing = asyncio.create_task(_print_all(consumer, printer))
    enough = asyncio.create_task(first_of(asked, printer.done))
    try:
        await asyncio.wait([printing, enough], return_when=asyncio.FIRST_COMPLETED)
        await consumer.stop()
        printing.cancel()  # if it still waits for a reader: what that would read was given back
        await asyncio.wait([printing])
        if not printing.cancelled():
            printing.result()  # raises what ended it, if that was an error
    finally:
        enough.cancel()
        printing.cancel()


async def _print_all(consumer: PullConsumer, printer: Printer) -> None:
    async for batch in consumer:
        if not await printer.show(batch, batch.epoch):
            return await consumer.stop()  # said by the task that has them: they are not done
