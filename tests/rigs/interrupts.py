"""Signals for the main thread of a test, sent when it waits for a loop thread and never before or after."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

from rmq.runtime import loop_thread

from rigs.stalling_broker import eventually


def interrupt(number: signal.Signals = signal.SIGINT) -> None:
    """As a terminal does: the main thread gets it. Outside a call it would end the test run."""
    main = threading.main_thread().ident
    assert main is not None
    eventually(lambda: _waits(sys._current_frames().get(main)), "a main thread that waits for a loop thread")
    signal.pthread_kill(main, number)


def interrupt_soon(number: signal.Signals = signal.SIGINT) -> threading.Thread:
    """The same from a thread of its own; join it before the test ends."""
    thread = threading.Thread(target=interrupt, args=[number], daemon=True)
    thread.start()
    return thread


def _waits(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is loop_thread._Call.wait.__code__:
            return True
        frame = frame.f_back
    return False
