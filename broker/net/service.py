"""The broker as a connection sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from rmq.wire.errors import Fatal

from .answer_budget import AnswerBudget
from .outgoing import Outgoing
from .receive_budget import ReceiveBudget

if TYPE_CHECKING:
    from .connection import Connection

Handler = Callable[["Connection", int, Any], Any]


class Service(Protocol):
    """What a connection needs of the broker around it."""

    handlers: dict[int, Handler]
    max_in_flight: int
    high_water: int
    shared_buffer: memoryview
    budget: ReceiveBudget
    answers: AnswerBudget
    outgoing: Outgoing

    def now(self) -> float:
        """Seconds of a clock that never falls."""

    def clock(self) -> float:
        """A fine clock for measuring work on the loop."""

    def opened(self, connection: Connection) -> Fatal | None:
        """A connection came; the reason if it may not stay."""

    def closed(self, connection: Connection) -> None:
        """A connection ended."""

    def unblocked(self, connection: Connection) -> None:
        """A connection can take large answers again."""
