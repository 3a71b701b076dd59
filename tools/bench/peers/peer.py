"""Common parts of the other brokers: a server on loopback, figures, and the reason if one cannot be measured here."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmq.bench.janitor import JANITOR
from rmq.bench.options import Load
from rmq.bench.processes import BenchError, free_bytes, scratch, worker

FOLDER = Path(__file__).parent.parent  # from here client processes find the package
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


Native = Callable[[Load, Server], float]
OVERHEAD = 200  # bytes that a stored message costs the worst of them in addition to its body, about
SPARE = 1 << 30  # a disk that has less than this left is left alone


@dataclass(frozen=True)
class PeerBroker:
    """
    One broker with one durability, driven by one producer and one consumer process over loopback.

    Each figure has a server of its own, in a directory that is gone afterwards. ``why_not`` tells why it cannot be
    measured here, and is empty where it can. Figures raise :class:`~rmq.bench.processes.BenchError`.
    """

    name: str
    durability: str  # in a few words, shown with every figure
    why_not: str
    client: str  # the module of the client process
    start: Callable[[Path], AbstractContextManager[Server]]
    native: Native | None = None
    native_why_not: str = "it has no benchmark of its own"

    def produce(self, load: Load) -> float:
        """Messages a second from the first send to the last acknowledgement."""
        load = one_each(load)
        with self._ground(load) as server, self._client("produce", server, load) as producer:
            producer.go()
            sent = producer.reply()
        self._check(sent["stored"], load)
        return rate(load, sent["began"], sent["ended"])

    def consume(self, load: Load) -> float:
        """Messages a second end to end: from the first send until the listener has had the last message."""
        load = one_each(load)
        with (
            self._ground(load) as server,
            self._client("consume", server, load) as consumer,
            self._client("produce", server, load) as producer,
        ):
            consumer.go()
            producer.go()
            sent, handled = producer.reply(), consumer.reply()
        self._check(sent["stored"], load)
        self._check(handled["handled"], load)
        return rate(load, sent["began"], handled["ended"])

    def native_produce(self, load: Load) -> float:
        """Messages a second by the benchmark that comes with the server."""
        if self.native is None:
            raise BenchError(f"{self.name}: {self.native_why_not}")
        with self._ground(load) as server:
            return self.native(load, server)

    @contextmanager
    def _ground(self, load: Load) -> Iterator[Server]:
        with scratch() as folder:
            if free_bytes(folder) < load.messages * (load.size + OVERHEAD) + SPARE:
                raise BenchError(f"the disk of {folder.parent} has too little room for {self.name}")
            with self.start(folder) as server:
                yield server

    def _client(self, role: str, server: Server, load: Load) -> AbstractContextManager[Any]:
        return worker(self.client, FOLDER, role=role, port=server.port, load=load.as_object())

    def _check(self, messages: int, load: Load) -> None:
        if messages != load.messages:
            raise BenchError(f"{self.name} has {messages} messages instead of {load.messages}")


def one_each(load: Load) -> Load:
    """Return the same load with one producer and one consumer, as peers are compared."""
    return dataclasses.replace(load, producers=1, consumers=1, connections=1)


def rate(load: Load, began: float, ended: float) -> float:
    """Messages a second."""
    return load.messages / (ended - began)


def missing_server(program: str, package: str) -> str:
    """Return why a server cannot be started, empty if it can."""
    return "" if found(program) else f"{program} is not installed: apt install {package}"


def missing_client(*modules: str) -> str:
    """Return why a server cannot be used from Python, empty if it can."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"the client is not installed (no {', '.join(missing)}): pip install 'rmq[peers]'" if missing else ""


def peers(flush: str = "async") -> list[PeerBroker]:
    """
    The brokers whose durability is comparable with ours in this mode, also those that are not installed.

    Comparable with ``sync`` is what is on the disk before it is acknowledged; with ``async`` also anything stricter.
    """
    from . import nats_jetstream, rabbitmq, redis_streams

    if flush == "sync":
        return [redis_streams.peer("always"), rabbitmq.peer()]
    return [redis_streams.peer("everysec"), nats_jetstream.peer(), rabbitmq.peer()]


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
    Start a server, wait until it gives this ``answer`` to ``ask``, and end it after the block.

    It has a process group of its own: Ctrl-C does not reach it, and what it started ends with it. Its output goes to
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
    """Find a program, also in the sbin next to a bin, where Debian keeps servers; empty if there is none."""
    folders = [Path(name) for name in os.environ.get("PATH", os.defpath).split(os.pathsep) if name]
    folders += [folder.with_name("sbin") for folder in folders if folder.name == "bin"]
    return shutil.which(program, path=os.pathsep.join(map(str, folders))) or ""


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        port: int = probe.getsockname()[1]
        return port


def last_words(output: Path) -> str:
    """Return the last line that a server wrote, to say why it ended."""
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
            os.killpg(process.pid, signal.SIGKILL)  # itself, or what it started and did not end
        except ProcessLookupError:
            pass
        process.wait()
