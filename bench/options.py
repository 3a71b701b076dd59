"""The arguments of a benchmark: its load (what is sent), options (how it is run), and steps (its progress)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from .processes import BenchError, own_broker
from .rivals import Rivals, no_rivals


@dataclass(frozen=True)
class Options:
    """How a benchmark is run."""

    flush: str = "async"  # durability of the broker that is started; with a broker that runs, its own
    broker: str | None = None  # the address of a broker that runs; None: each sample has one of its own
    rounds: int = 5
    quick: bool = False  # small and once: shows that it works, measures nothing
    rivals: Rivals = no_rivals

    @contextmanager
    def ground(self, flush: str | None = None) -> Iterator[str]:
        """Give the address of a broker for one sample."""
        if self.broker is not None:
            yield self.broker
            return
        with own_broker(flush or self.flush) as broker:
            yield broker.address


Show = Callable[[float, str], None]  # which part of the whole is done, and what is measured now


class Steps:
    """Counts the samples of a benchmark, for its progress; a sample is done when the next one begins."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._expected = 0
        self._begun = 0

    def expect(self, more: int) -> None:
        """Announce further samples."""
        self._expected += more

    def __call__(self, what: str) -> None:
        """Begin the next sample."""
        done = self._begun / max(self._expected, self._begun, 1)
        self._begun += 1
        self._show(done, what)


class Whole:
    """Adds up the progress of several benchmarks, each as long as its weight says; each may run in its own thread."""

    def __init__(self, show: Show, weights: Sequence[float]) -> None:
        self._show = show
        self._shares = [weight / sum(weights) for weight in weights]
        self._done = [0.0] * len(weights)
        self._lock = Lock()
        self._is_stopped = False

    def part(self, number: int) -> Steps:
        """Return the steps of one of them."""
        return Steps(lambda done, what: self._shown(number, done, what))

    def ended(self, number: int) -> None:
        """Count one of them as finished."""
        self._done[number] = 1.0

    def stop(self) -> None:
        """End those that run at their next sample, by a :class:`BenchError`."""
        self._is_stopped = True

    def _shown(self, number: int, done: float, what: str) -> None:
        if self._is_stopped:
            raise BenchError("it was interrupted")
        with self._lock:
            self._done[number] = done
            parts = zip(self._shares, self._done, strict=True)
            self._show(sum(share * part for share, part in parts), what)


@dataclass(frozen=True)
class Load:
    """Messages to send, all different, and how they are sent."""

    messages: int = 1_000_000
    size: int = 100
    batch: int = 500  # messages a call; 1: each by a call of its own
    queues: int = 8
    in_flight: int = 64  # calls that wait for their answer at once, of all connections of a process together
    producers: int = 1  # processes that send
    consumers: int = 1  # processes that consume
    connections: int = 1  # of each process that sends
    tags: int = 0  # so many tags take turns
    keys: bool = False  # each message has a key of its own

    def share(self, part: int) -> Load:
        """Return what one producer sends: the first ones get one message more if it does not divide."""
        whole, rest = divmod(self.messages, self.producers)
        return dataclasses.replace(self, messages=whole + (part < rest), producers=1)

    @cached_property
    def _noise(self) -> bytes:
        # Message i is the window [i, i + size) of it: a body of its own for each at the cost of one slice.
        return os.urandom(self.messages + self.size)

    def bodies(self) -> list[list[bytes]]:
        """Make all bodies, in lists of ``batch``, before any clock runs."""
        noise, size = self._noise, self.size
        return [
            [noise[i : i + size] for i in range(start, min(start + self.batch, self.messages))]
            for start in range(0, self.messages, self.batch)
        ]

    def as_object(self) -> dict[str, Any]:
        """For programs, and for the processes that carry it out."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
