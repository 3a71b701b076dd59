"""The consumer of ``scale``: one member that has all queues of all topics, and says messages a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic
from typing import Final

from rmq.consumer import Consumer

from .. import processes
from .receiving import BATCH, LOOK_AGAIN_S, Tally

TOO_LONG_S: Final = 120.0


async def main(address: str, topics: Sequence[str], queues: int, group: str, messages: int) -> None:
    """Read ``messages`` in order, from the beginning on; the clock runs from when it has all queues to the last one."""
    tally = Tally()
    tally.expect(messages)
    await processes.go()
    asked = dict.fromkeys(topics, "*")
    consumer = Consumer(address, group=group, listener=tally.listen_to_many, topics=asked, batch=BATCH)
    consumer.pause()
    async with asyncio.timeout(TOO_LONG_S), consumer:
        while len(consumer.assignment) < queues:
            await asyncio.sleep(LOOK_AGAIN_S)
        began = monotonic()
        consumer.resume()
        await tally.done.wait()
        processes.say(per_s=tally.count / (tally.last_at - began))


if __name__ == "__main__":
    # So many queues of one member fill its cache and keep it busy, of which it warns: that is what is measured.
    logging.getLogger("rmq.consumer").setLevel(logging.ERROR)
    processes.run(main)
