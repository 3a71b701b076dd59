"""The first signal asks, the second forces, and afterwards signals are what they were."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from rmq.cli.shell import exit_codes
from rmq.cli.shell.signals import first_of, stop_signals, until_signal

STUBBORN = """
import asyncio
from rmq.cli.shell.signals import stop_signals

async def main():
    with stop_signals(together_s=0) as asked:
        print("running", flush=True)
        await asked.wait()
        print("asked", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.both_loops
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_asks(number: signal.Signals) -> None:
    with stop_signals() as asked:
        assert not asked.is_set()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(5):
            await asked.wait()


async def test_signals_that_come_together_are_one_as_timeout_sends_them() -> None:
    with stop_signals(together_s=3600) as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await asked.wait()
        handled = asyncio.Event()
        os.kill(os.getpid(), signal.SIGTERM)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, handled.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        async with asyncio.timeout(5):
            await handled.wait()  # signals are handled in turn: the second was, and the process is here to tell
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)


async def test_afterwards_a_signal_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGTERM)

    with stop_signals():
        pass

    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_wait(second: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"running\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == b"asked\n"
            process.send_signal(second)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()

    assert process.returncode == exit_codes.INTERRUPTED
    assert errors == b"stopped at once, by a second signal\n"


async def test_the_first_event_of_several_is_enough() -> None:
    never, soon = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().call_soon(soon.set)

    async with asyncio.timeout(5):
        await first_of(never, soon)

    assert soon.is_set() and not never.is_set()


@pytest.mark.both_loops
async def test_what_has_no_end_is_cancelled_by_a_signal_and_has_ended_then() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async with asyncio.timeout(5):
        await until_signal(work())

    assert ended == ["work"]


async def test_what_ends_by_itself_needs_no_signal_and_its_error_is_raised() -> None:
    async def work() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        await until_signal(work())
    await until_signal(asyncio.sleep(0))
