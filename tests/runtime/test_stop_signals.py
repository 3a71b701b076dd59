"""The first signal asks, the second insists, then signals are what they were; and whose handlers are replaced."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rmq.runtime.stop_signals import SIGNALS, StopSignals


class Program:
    """Notes what it is asked for; ``now`` is the clock of the signals."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[str] = []

    def signals(self, **settings: Any) -> StopSignals:
        return StopSignals(lambda number: self.told.append(number.name), lambda: self.told.append("insist"), **settings)

    def get(self, number: signal.Signals, at: float) -> None:
        self.now = 100.0 + at
        signal.raise_signal(number)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    program = Program()
    monkeypatch.setattr("rmq.runtime.stop_signals.boottime", lambda: program.now)
    return program


@pytest.fixture(autouse=True)
def before(plain_signals: None) -> Iterator[dict[signal.Signals, Any]]:
    """Handlers that end no test run, and are there again after each test; those of a program that has none."""
    found = {number: signal.getsignal(number) for number in SIGNALS}
    yield found
    for number, handler in found.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_and_one_that_comes_with_it_is_the_same(program: Program, number: signal.Signals) -> None:
    with program.signals():
        program.get(number, 0.0)
        program.get(number, 0.05)
        program.get(signal.SIGTERM, 0.09)

    assert program.told == [number.name]


@pytest.mark.parametrize("second", SIGNALS)
def test_the_second_signal_insists_and_handlers_are_what_they_were_from_then_on(
    program: Program, second: signal.Signals, before: dict[signal.Signals, Any]
) -> None:
    with program.signals():
        program.get(signal.SIGTERM, 0.0)
        program.get(second, 0.2)
        assert {number: signal.getsignal(number) for number in SIGNALS} == before

    assert program.told == ["SIGTERM", "insist"]


def test_what_insisting_raises_is_raised_in_the_main_thread(program: Program) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), StopSignals(lambda _: None, interrupt, together_s=0.0):
        program.get(signal.SIGTERM, 0.0)
        program.get(signal.SIGTERM, 1.0)
        raise AssertionError("this is not reached")


def test_everything_that_handles_signals_is_asked_and_the_last_to_end_puts_the_handlers_back(
    program: Program, before: dict[signal.Signals, Any]
) -> None:
    first, second = program.signals(), program.signals()
    first.__enter__()
    second.__enter__()
    program.get(signal.SIGTERM, 0.0)
    first.__exit__()
    assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    program.get(signal.SIGTERM, 1.0)
    second.__exit__()

    assert program.told == ["SIGTERM", "SIGTERM", "insist"]
    assert (first.asked, second.asked) == (True, True)
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_one_that_begins_between_two_signals_is_asked_by_the_second(program: Program) -> None:
    late: list[str] = []
    with program.signals():
        program.get(signal.SIGTERM, 0.0)
        with StopSignals(lambda number: late.append(number.name), lambda: late.append("insist")):
            program.get(signal.SIGTERM, 1.0)
            program.get(signal.SIGTERM, 2.0)

    assert program.told == ["SIGTERM", "insist"]
    assert late == ["SIGTERM", "insist"]


def mine(number: int, frame: object) -> None:
    """A handler of a program."""


@pytest.mark.parametrize("own", [mine, functools.partial(mine), signal.SIG_IGN], ids=["function", "partial", "ignored"])
def test_a_handler_of_the_program_and_an_ignored_signal_are_left_alone_unless_a_command_owns_the_process(
    program: Program, own: Any
) -> None:
    signal.signal(signal.SIGTERM, own)

    with program.signals():
        assert signal.getsignal(signal.SIGTERM) is own
        program.get(signal.SIGTERM, 0.0)
        program.get(signal.SIGINT, 1.0)
    assert program.told == ["SIGINT"]

    with program.signals(always=True):
        program.get(signal.SIGTERM, 2.0)
    assert program.told == ["SIGINT", "SIGTERM"]
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_handler_of_the_programs_loop_is_left_alone(program: Program) -> None:
    async def main() -> None:
        handled = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, handled.set)
        with program.signals():
            program.get(signal.SIGTERM, 0.0)
            async with asyncio.timeout(5):
                await handled.wait()

    asyncio.run(main())
    assert program.told == []


def test_the_handler_of_asyncio_run_is_replaced_and_put_back(program: Program) -> None:
    async def main() -> None:
        runners = signal.getsignal(signal.SIGINT)
        with program.signals():
            program.get(signal.SIGINT, 0.0)
        assert signal.getsignal(signal.SIGINT) is runners
        await asyncio.sleep(0)  # and nothing was cancelled

    asyncio.run(main())
    assert program.told == ["SIGINT"]


def test_a_handler_that_was_installed_meanwhile_stays(program: Program) -> None:
    with program.signals():
        signal.signal(signal.SIGTERM, mine)

    assert signal.getsignal(signal.SIGTERM) is mine


def test_a_handler_that_the_program_saved_and_puts_back_later_does_what_was_before(program: Program) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with program.signals():
        saved = signal.signal(signal.SIGINT, mine)
    signal.signal(signal.SIGINT, saved)

    with pytest.raises(KeyboardInterrupt):
        program.get(signal.SIGINT, 1.0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert program.told == []


def test_a_handler_of_an_asyncio_run_that_has_ended_is_not_put_back(program: Program) -> None:
    signals = program.signals()

    async def main() -> None:
        signals.__enter__()

    asyncio.run(main())
    signals.__exit__()

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_than_the_main_one_handles_nothing(program: Program, before: dict[signal.Signals, Any]) -> None:
    seen: list[Any] = []

    def run() -> None:
        with program.signals():
            seen.append({number: signal.getsignal(number) for number in SIGNALS})

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)

    assert seen == [before]


@pytest.mark.both_loops
@pytest.mark.parametrize("number", SIGNALS)
async def test_a_signal_wakes_a_loop_that_has_nothing_to_do(number: signal.Signals) -> None:
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    main = threading.main_thread().ident
    assert main is not None
    with StopSignals(lambda _: loop.call_soon_threadsafe(asked.set), bool):
        threading.Timer(0.05, signal.pthread_kill, [main, number]).start()
        async with asyncio.timeout(10):
            await asked.wait()


def test_a_forked_process_handles_signals_as_before(program: Program, before: dict[signal.Signals, Any]) -> None:
    with program.signals():
        child = os.fork()
        if not child:
            os._exit(sum(signal.getsignal(number) is not before[number] for number in SIGNALS))
        _, status = os.waitpid(child, 0)
        program.get(signal.SIGTERM, 0.0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert program.told == ["SIGTERM"]
