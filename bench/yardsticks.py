"""What loads are measured by: the floor of this machine, and the peers that it has."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Protocol, cast

from .loads import Load
from .processes import BenchError


class Floor(Protocol):
    """The functions of :mod:`rmq.bench.floor` that loads are compared with, each one sample."""

    def produce(self, load: Load) -> float:
        """Messages a second that are packed, sent, appended and answered."""

    def consume(self, load: Load) -> float:
        """Messages a second that are pulled, unpacked and each given to a listener."""

    def socket_to_file(self, load: Load) -> float:
        """Messages a second whose bytes go through a socket into a file."""

    def fdatasync_ms(self) -> float:
        """How long an append of one batch with ``fdatasync`` takes."""


def machine() -> Floor:
    """The floor of this machine."""
    return cast(Floor, importlib.import_module("rmq.bench.floor"))


class Peer(Protocol):
    """Another broker, as :mod:`rmq.bench.peers` offers it; ``why_not`` says why it cannot be measured here."""

    @property
    def name(self) -> str:
        """Of the server."""

    @property
    def durability(self) -> str:
        """In a few words, to stand beside every figure."""

    @property
    def why_not(self) -> str:
        """Why it cannot be measured here; empty where it can."""

    def produce(self, load: Load) -> float:
        """Messages a second that its best Python client sends."""

    def consume(self, load: Load) -> float:
        """Messages a second that its best Python client gets, from the first send to the last one handled."""

    def native_produce(self, load: Load) -> float | None:
        """Messages a second by the benchmark that it brings along, if it does."""


def rivals(flush: str) -> Sequence[Peer]:
    """The peers that this machine may have, as durable as ours with this flush mode."""
    if importlib.util.find_spec("rmq.bench.peers") is None:
        return ()
    return cast(Sequence[Peer], importlib.import_module("rmq.bench.peers").peers(flush))


def reason(peer: Peer | None, name: str) -> str:
    """Why there is nothing to compare with."""
    return f"{name} is not among the peers" if peer is None else peer.why_not


def native_rate(peer: Peer, load: Load) -> float:
    """A sample of a peer's own benchmark."""
    rate = peer.native_produce(load)
    if rate is None:
        raise BenchError(f"{peer.name} brings no benchmark along")
    return rate
