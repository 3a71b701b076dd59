"""Copies go into the log together with the changes that hold only with them: all of it is there, or nothing is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq.wire.errors import DiskFull, Refused

from ..state.delays import Delays
from ..state.ledger import Entry, Ledger
from ..state.topics import Topic
from ..store.committer import Committer, refusal_of
from ..store.message_store import MessageStore
from ..store.staged import Placed
from .copies import Copy


class Ticket:
    """Copies that wait for the disk; ``answer`` follows when they are durable."""

    __slots__ = ("_answer", "error")

    def __init__(self, answer: Callable[[], None] = lambda: None) -> None:
        self._answer = answer
        self.error: Refused | None = None

    def stored(self) -> None:
        """They are durable."""
        self._answer()

    def failed(self, error: OSError) -> None:
        """Nothing of them exists."""
        self.error = refusal_of(error)


class Appending:
    """
    Puts copies into the log, together with the changes that hold only with them.

    ``make_topic`` gives the topic of a name, and makes it with one queue if it is missing; ``refusal`` says why nothing
    may be stored at present.
    """

    def __init__(
        self, store: MessageStore, committer: Committer, delays: Delays, ledger: Ledger,
        *, make_topic: Callable[[str], Topic], refusal: Callable[[], str | None],
    ) -> None:  # fmt: skip
        self._store = store
        self._committer = committer
        self._delays = delays
        self._ledger = ledger
        self._make_topic = make_topic
        self._refusal = refusal

    def append(
        self, copies: Sequence[Copy], changes: Sequence[Entry], ticket: Ticket, written: Callable[[], None]
    ) -> list[Placed]:
        """
        Write copies and changes; where the copies lie. ``written`` is called when it is true, before anybody can look.

        Raises:
            DiskFull, StoreFailed: nothing of it exists.
        """
        if (refusal := self._refusal()) is not None:
            raise DiskFull(refusal)
        # A topic must be made before what lies in it: all of them first.
        topics = {name: self._make_topic(name) for name in dict.fromkeys(copy.to.topic for copy in copies)}
        self._committer.in_order()
        placed = [self._stage(copy, topics[copy.to.topic]) for copy in copies]
        self._committer.append_now(changes, ticket, lambda: self._apply(changes, written))
        if ticket.error is not None:
            raise ticket.error
        return placed

    def _stage(self, copy: Copy, topic: Topic) -> Placed:
        due_at = self._delays.due_of_level(copy.level) if copy.level else 0
        return self._store.stage(copy.to, topic.generation, copy.batch, copy.checked, copy.origin, due_at)

    def _apply(self, changes: Sequence[Entry], written: Callable[[], None]) -> None:
        for change in changes:
            self._ledger.apply(change)
        written()
