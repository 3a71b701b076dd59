"""The server of a peer: a process of ours on loopback, which answers before it is used and is always ended."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..janitor import JANITOR
from ..processes import BenchError

START_S = 60.0
STOP_S = 30.0
POLL_S = 0.02
LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class Server:
    """Where it listens, the directory that it may fill, and its number."""

    port: int
    folder: Path
    pid: int


@contextmanager
def run_server(
    name: str,
    command: Sequence[str],
    port: int,
    folder: Path,
    *,
    ask: bytes = b"",
    answer: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """
    Start a server, wait until it gives this ``answer`` to what it is asked, and end it in the end.

    It has a process group of its own: Ctrl-C reaches us alone, and what it started ends with it. What it says goes to
    ``output`` in its folder.
    """
    output = folder / "output"
    with output.open("wb") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=folder, env=environment, process_group=0
        )
    JANITOR.add(process.pid)
    try:
        until = time.monotonic() + START_S
        while not _answers(port, ask, answer):
            if process.poll() is not None:
                raise BenchError(f"{name} ended too early: {last_words(output)}")
            if time.monotonic() > until:
                raise BenchError(f"{name} did not answer for {START_S:g} s: {last_words(output)}")
            time.sleep(POLL_S)
        yield Server(port, folder, process.pid)
    finally:
        _end(process)
        JANITOR.remove(process.pid)


def found(program: str) -> str:
    """Where a program is, empty where it is not: also in the sbin beside a bin, where Debian keeps servers."""
    folders = [Path(name) for name in os.environ.get("PATH", os.defpath).split(os.pathsep) if name]
    folders += [folder.with_name("sbin") for folder in folders if folder.name == "bin"]
    return shutil.which(program, path=os.pathsep.join(map(str, folders))) or ""


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        port: int = probe.getsockname()[1]
        return port


def last_words(output: Path) -> str:
    """The last line that a server wrote, for whoever wonders why it ended."""
    lines = output.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"


def asked(port: int, ask: bytes, timeout_s: float = 5.0) -> bytes:
    """The first bytes that a server answers; raises OSError where it does not."""
    with socket.create_connection((LOCAL, port), timeout=timeout_s) as connection:
        connection.sendall(ask)
        return connection.recv(4096)


def _answers(port: int, ask: bytes, answer: bytes) -> bool:
    try:
        return asked(port, ask).startswith(answer)
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # itself, or what it started and left behind
        except ProcessLookupError:
            pass
        process.wait()
