"""Real commands as processes: started, waited for by what they say, and ended by their own id."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

DEADLINE_S = 30.0
READY = re.compile(r"\bready on (\S+?),?\s")


def with_tests(**more: str) -> dict[str, str]:
    """Return the environment of a process that imports helpers of the tests."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


class Running:
    """A command under test; its standard output is read as it comes, line by line."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        stdin: bytes | None = None,
        env: dict[str, str] | None = None,
        descriptors: int | None = None,
        cwd: Path | None = None,
    ) -> None:
        limited = [] if descriptors is None else ["/bin/sh", "-c", 'ulimit -n "$0" && exec "$@"', str(descriptors)]
        self.process = subprocess.Popen(
            [*limited, sys.executable, "-X", "faulthandler", "-m", module, *arguments],
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            env=env,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._open = 2  # streams that have not ended: a process that has may still have lines there
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()
        if stdin is not None:
            assert self.process.stdin is not None
            self.process.stdin.write(stdin)
            self.process.stdin.close()

    def _read(self, stream: Any, lines: list[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    lines.append(line.decode().rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[list[str]], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait until the lines said so far fulfil a condition."""
        with self._changed:
            met = self._changed.wait_for(lambda: condition(self.lines) or not self._open, deadline_s)
            if not met or not condition(self.lines):
                tail = "\n".join([*self.lines[-5:], "--- errors:", *self.errors[-15:]])
                raise AssertionError(f"{what} did not happen within {deadline_s:g} s; last lines:\n{tail}")

    def wait_for_error(self, condition: Callable[[list[str]], bool], what: str) -> None:
        """Wait until the lines on standard error fulfil a condition."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.errors), DEADLINE_S), f"{what} did not come"

    def kill(self) -> None:
        """``kill -9``."""
        self._end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask to stop and wait for the exit code."""
        return self._end(number)

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for the process to end by itself."""
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired as error:
            self.process.send_signal(signal.SIGABRT)  # faulthandler then prints where each thread is
            for reader in self._readers:
                reader.join(deadline_s)
            tail = "\n".join([*self.lines[-5:], "--- errors:", *self.errors[-60:]])
            raise AssertionError(f"{self.process.args} did not end within {deadline_s:g} s:\n{tail}") from error
        for reader in self._readers:
            reader.join(deadline_s)
        return code

    def _end(self, number: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


class BrokerProcess(Running):
    """``rmq-broker start`` on a port that stays the same over restarts."""

    def __init__(
        self, data_dir: Path, listen: str = "127.0.0.1:0", *options: str, descriptors: int | None = None
    ) -> None:
        arguments = ("start", "--listen", listen, "--data-dir", str(data_dir), *options)
        super().__init__("rmq.cli.rmq_broker", *arguments, descriptors=descriptors)
        self.wait_for(lambda lines: any(READY.search(line + " ") for line in lines), "the ready line")
        ready = next(match for line in self.lines if (match := READY.search(line + " ")))
        self.address: str = ready[1]

    @property
    def resident_bytes(self) -> int:
        """The memory that the process has at this moment."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))

    @property
    def descriptors(self) -> int:
        """How many files and sockets the process has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


class ConsumerProcess(Running):
    """``rmq-consume --orderly --json``; what it prints is what it processed."""

    def __init__(self, address: str, topic: str, *options: str) -> None:
        super().__init__("rmq.cli.rmq_consume", "--broker", address, "--orderly", "--json", "--topic", topic, *options)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages printed so far."""
        return [json.loads(line) for line in list(self.lines)]
