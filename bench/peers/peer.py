"""What the other brokers have in common: how one is asked for a figure, and why one may not be there."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..options import Load
from ..processes import BenchError, free_bytes, scratch, worker
from .server import Server, found

Native = Callable[[Load, Server], float]
OVERHEAD = 200  # bytes beside the body that a stored message costs the worst of them, about
SPARE = 1 << 30  # a disk that has less than this left is left alone


@dataclass(frozen=True)
class Peer:
    """
    One broker with one durability, driven by one producer and one consumer process over loopback.

    Each figure has a server of its own, in a directory that is gone afterwards. ``why_not`` tells why it cannot be
    measured here, and is empty where it can. Figures raise :class:`~rmq.bench.processes.BenchError`.
    """

    name: str
    durability: str  # in a few words, to stand beside every figure
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
            sent = producer.told()
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
            sent, handled = producer.told(), consumer.told()
        self._check(sent["stored"], load)
        self._check(handled["handled"], load)
        return rate(load, sent["began"], handled["ended"])

    def native_produce(self, load: Load) -> float | None:
        """Messages a second by the benchmark that comes with the server; None where there is none."""
        if self.native is None:
            return None
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
        return worker(self.client, role=role, port=server.port, load=load.as_object())

    def _check(self, messages: int, load: Load) -> None:
        if messages != load.messages:
            raise BenchError(f"{self.name} has {messages} messages instead of {load.messages}")


def one_each(load: Load) -> Load:
    """The same by one producer and one consumer: all that peers are compared by."""
    return dataclasses.replace(load, producers=1, consumers=1, connections=1)


def rate(load: Load, began: float, ended: float) -> float:
    """Messages a second."""
    return load.messages / (ended - began)


def missing_server(program: str, package: str) -> str:
    """Why a server cannot be started; empty where it can."""
    return "" if found(program) else f"{program} is not installed: apt install {package}"


def missing_client(*modules: str) -> str:
    """Why a server cannot be driven from Python; empty where it can."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"the client is not installed (no {', '.join(missing)}): pip install 'rmq[peers]'" if missing else ""


def peers(flush: str = "async") -> list[Peer]:
    """
    The brokers whose durability is comparable with ours in this mode, also those that are not installed.

    Comparable with ``sync`` is what is on the disk before it is acknowledged; with ``async`` also anything stricter.
    """
    from . import nats_server, rabbitmq_server, redis_server

    if flush == "sync":
        return [redis_server.peer("always"), rabbitmq_server.peer()]
    return [redis_server.peer("everysec"), nats_server.peer(), rabbitmq_server.peer()]
