"""The consumer of ``scale``: one member that has all queues of all topics, and says messages a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from rmq.consumer import Consumer

from . import worker
from .receiving import BATCH, Tally

TOO_LONG_S: Final = 120.0


async def main(address: str, topics: Sequence[str], group: str, messages: int) -> None:
    """Read ``messages`` from the beginning on, in order; the clock runs from the first to the last."""
    tally = Tally()
    tally.expect(messages)
    await worker.go()
    asked = dict.fromkeys(topics, "*")
    async with Consumer(address, group=group, listener=tally.listen_to_many, topics=asked, batch=BATCH):
        async with asyncio.timeout(TOO_LONG_S):
            await tally.done.wait()
        worker.say(per_s=tally.count / (tally.last_at - tally.first_at))


if __name__ == "__main__":
    # So many queues of one member fill its cache and keep it busy, of which it warns: that is what is measured.
    logging.getLogger("rmq.consumer").setLevel(logging.ERROR)
    worker.run(main)
