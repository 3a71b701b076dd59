"""
Runs a module as ``python -m`` would, while its stacks are sampled: ``python -m rmq.bench.profiled FILE MODULE ...``.

Each tick of the processor time that the process uses adds a line to FILE: the stack of the main thread, the innermost
frame first. Nothing is changed in what is profiled, nothing is needed but the standard library, and it costs about
a hundredth of the time. How often the kernel looks at the timer is its own affair (250 or 1,000 times a second).

Python calls the handler of a signal only between two instructions: after the C function that was going on, and so the
time of that counts for the line that called it. Three corrections make it honest:

- where the handler is called at the very beginning of a function, the time was the caller's: of the event loop, which
  is C, as a rule;
- the garbage collector ends with a call of ours: a tick that is seen there was the collector's;
- a tick since which the main thread ran less than others is theirs: their stacks are not looked at.
"""

from __future__ import annotations

import atexit
import dis
import gc
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

EVERY_S = 0.001
COLLECTOR = "(garbage collector)"
OTHERS = "(other threads)"
_BEGINS = dis.opmap["RESUME"]


def main() -> None:
    """Begin to sample, then be the module."""
    sampler = Sampler(Path(sys.argv[1]))
    sys.argv = sys.argv[2:]
    gc.callbacks.append(collected)
    signal.signal(signal.SIGPROF, sampler)
    signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
    # The interpreter takes the handler away before it ends, and a tick without a handler would kill it.
    atexit.register(signal.setitimer, signal.ITIMER_PROF, 0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def collected(phase: str, info: dict[str, Any]) -> None:
    """The collector calls it before and after its work; see above."""


class Sampler:
    """The handler of the timer's signal."""

    def __init__(self, into: Path) -> None:
        self._file = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._codes: dict[CodeType, bytes] = {}
        self._main_s, self._all_s = time.thread_time(), time.process_time()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Write a line."""
        main_s, all_s = time.thread_time(), time.process_time()
        is_ours = main_s - self._main_s >= (all_s - self._all_s) / 2
        self._main_s, self._all_s = main_s, all_s
        line = ";".join(self._frames(frame)) if is_ours else OTHERS
        os.write(self._file, line.encode() + b"\n")

    def _frames(self, frame: FrameType | None) -> list[str]:
        found = []
        if frame is not None and frame.f_code is collected.__code__:
            found.append(COLLECTOR)
            frame = frame.f_back
        elif frame is not None and self._code(frame.f_code)[frame.f_lasti] == _BEGINS:
            frame = frame.f_back
        while frame is not None:
            found.append(f"{frame.f_code.co_filename}|{frame.f_code.co_name}|{frame.f_lineno or 0}")
            frame = frame.f_back
        return found

    def _code(self, code: CodeType) -> bytes:
        found = self._codes.get(code)
        if found is None:
            found = self._codes[code] = code.co_code
        return found


if __name__ == "__main__":
    main()
