"""What a member subscribes to: what its user wants, and the retries of its group beside it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from .tag_filter import Subscription


class Subscribed:
    """
    The user's subscriptions, as they are at the moment, and the topic of the group's own retries.

    Messages that were given back, and dead letters that are replayed, come by way of ``retry_topic`` (None: there is
    none). So every member subscribes to it, as long as its user wants anything, and nobody has to know.
    """

    def __init__(self, chosen: dict[str, Subscription], retry_topic: str | None) -> None:
        self._chosen = chosen
        self.retry_topic = retry_topic
        self.resting = False  # nothing is consumed for the time being, whatever the user wants
        self._every_retry = Subscription()

    def __bool__(self) -> bool:
        return bool(self._chosen) and not self.resting

    def __contains__(self, topic: str) -> bool:
        return bool(self) and (topic in self._chosen or topic == self.retry_topic)

    def all(self) -> dict[str, Subscription]:
        """Everything that is to be consumed; nothing if the user wants nothing."""
        if not self:
            return {}
        if self.retry_topic is None:
            return dict(self._chosen)
        return {self.retry_topic: self._every_retry, **self._chosen}

    def go_back(self, accepted: Mapping[str, Subscription]) -> None:
        """The broker wants us to consume what it accepted before: so does the user from here on."""
        self._chosen.clear()
        self._chosen.update({topic: wanted for topic, wanted in accepted.items() if topic != self.retry_topic})
