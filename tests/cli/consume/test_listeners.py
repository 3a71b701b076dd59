"""The listener that prints, and how the user's own is found."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq.cli.consume.listeners import Printer, load_listener
from rmq.cli.output.output import Output
from rmq.cli.shell import exit_codes
from rmq.cli.shell.command import Failure
from rmq.wire.batch import batch
from rmq.wire.model import ConsumeStatus, StoredMessage
from rmq.wire.stores import StoreIds


def messages(count: int = 1) -> list[StoredMessage]:
    rows = batch.Rows([b"m%d" % i for i in range(count)], 1)
    header, columns = batch.check(batch.encode("t", 0, rows), stamped=False)
    return batch.Batch(header, columns, b"".join(rows.bodies), StoreIds(1)).messages()


class Given:
    """The context of a call."""

    epoch = 7

    def __init__(self) -> None:
        self.left = False

    def leave(self) -> None:
        self.left = True


def context() -> Any:
    return Given()


async def test_a_message_is_done_when_its_line_is_out() -> None:
    stream, given = io.BytesIO(), context()
    printer = Printer(Output(stream), as_json=False)

    status = await printer(messages(2), given)

    assert (status, given.left) == (ConsumeStatus.SUCCESS, False)
    assert stream.getvalue() == b"t/0 @0 attempt=1  m0\nt/0 @1 attempt=1  m1\n"


async def test_json_has_the_epoch_of_the_lease() -> None:
    stream = io.BytesIO()

    await Printer(Output(stream), as_json=True)(messages(), context())

    assert b'"epoch":"7"' in stream.getvalue()


async def test_after_the_limit_messages_are_neither_printed_nor_committed_nor_failed() -> None:
    stream, given = io.BytesIO(), context()
    printer = Printer(Output(stream), as_json=False, limit=2)
    first, second, third = messages(3)

    await printer([first], context())
    assert not printer.done.is_set()
    await printer([second], context())
    assert printer.done.is_set()
    status = await printer([third], given)

    assert stream.getvalue().count(b"\n") == 2
    assert (status, given.left) == (ConsumeStatus.SUCCESS, True)


async def test_a_message_whose_reader_has_gone_is_not_committed() -> None:
    read, write = os.pipe()
    os.close(read)
    given = context()
    with os.fdopen(write, "wb", buffering=0) as stream:
        printer = Printer(Output(stream), as_json=False)

        status = await printer(messages(), given)

    assert (status, given.left) == (ConsumeStatus.SUCCESS, True)
    assert printer.closed
    assert printer.done.is_set()


async def test_a_message_that_does_not_fit_on_the_disk_is_neither_committed_nor_failed() -> None:
    given = context()
    with open("/dev/full", "wb", buffering=0) as stream:
        printer = Printer(Output(stream), as_json=False, limit=1)

        status = await printer(messages(), given)

    assert (status, given.left) == (ConsumeStatus.SUCCESS, True)
    assert str(printer.failure) == "No space left on device"
    assert printer.done.is_set()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path, known = sys.path[:], set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_a_function_in_the_current_folder_is_found(here: Path) -> None:
    (here / "consumer.py").write_text("class Handlers:\n    @staticmethod\n    def on_order(m, c): return 42\n")

    assert load_listener("consumer:Handlers.on_order")(None, None) == 42  # type: ignore[arg-type, comparison-overlap]


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("billing", "write it as module:function", exit_codes.USAGE),
        (":f", "write it as module:function", exit_codes.USAGE),
        ("nowhere_at_all:f", "there is no module 'nowhere_at_all'", exit_codes.NO_INPUT),
        ("json:nope", "json has no function 'nope'", exit_codes.NO_INPUT),
        ("json:__doc__", "json has no function '__doc__'", exit_codes.NO_INPUT),
    ],
)
def test_what_cannot_be_called_is_refused_in_one_line(here: Path, name: str, text: str, code: int) -> None:
    with pytest.raises(Failure, match=text) as caught:
        load_listener(name)

    assert caught.value.exit_code == code


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import nowhere_at_all", r"ModuleNotFoundError: No module named 'nowhere_at_all' \({file}, line 1\)"),
        ("def f(", r"'\(' was never closed \({file}, line 1\)"),
        ("\nraise RuntimeError('two\\nlines')", r"RuntimeError: two lines \({file}, line 2\)"),
    ],
)
def test_an_error_inside_the_users_module_is_told_with_its_place(here: Path, code: str, told: str) -> None:
    file = here / "mine.py"
    file.write_text(code)

    with pytest.raises(Failure, match=rf"mine cannot be imported: {told.format(file=file)}") as caught:
        load_listener("mine:f")

    assert caught.value.exit_code == exit_codes.DATA_ERROR
