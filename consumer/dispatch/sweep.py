"""``Sweep``: calls that take too long do not keep the progress of their queue back for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from rmq.engine.native.group import GroupClient
from rmq.runtime.logging import get_logger

from ..config import ConsumerConfig
from ..fetch.concurrent_queue import Chunk
from ..group.assignment import Generation
from .lane import Call, Lane
from .send_backs import EXPIRED_LEVEL, Failures, Fate

log = get_logger("rmq.consumer")


class Sweep:
    """
    Looks at all queues every ``consume_timeout_s``.

    Up to 16 messages at the head of a queue, whose calls have run for longer than that, are given back, to come again
    after 10 s, and passed. The calls go on, and what they say of those messages counts for nothing.
    """

    def __init__(
        self, lanes: Mapping[Generation, Lane], config: ConsumerConfig, broker: GroupClient, failures: Failures
    ) -> None:
        self._lanes = lanes
        self._config = config
        self._broker = broker
        self._failures = failures

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._config.consume_timeout_s)
            for lane in list(self._lanes.values()):
                await self.sweep(lane)

    async def sweep(self, lane: Lane) -> None:
        """Give up what has expired of one queue; ends at the first that cannot be given back."""
        expired = lane.cache.expired(self._broker.now() - self._config.consume_timeout_s)
        calls = {call.chunk: call for call in lane.calls.running()}
        for chunk, count in expired:
            # A call that ended while others were given back has said what becomes of its messages.
            if chunk.called_at is not None and not await self._give_up(lane, calls[chunk], chunk, count):
                return

    async def _give_up(self, lane: Lane, call: Call, chunk: Chunk, count: int) -> bool:
        """Give back the first messages of a chunk; a call that ends meanwhile waits for what comes of that."""
        call.sweep = asyncio.get_running_loop().create_future()
        ran_s = round(self._broker.now() - call.began_at, 3)
        messages = lane.cache.messages_of(chunk)[:count]
        try:
            fate = await self._failures.give_back(
                lane.generation,
                messages,
                progress=lambda: lane.cache.progress_without(chunk, count),
                delay_level=EXPIRED_LEVEL,
                reason=f"delivery {messages[0].attempt} took longer than {ran_s:g} s",
            )
            if fate is Fate.GIVEN_BACK:
                log.warning(
                    "message.expired",
                    queue=str(lane.generation.queue),
                    queue_offset=messages[0].queue_offset,
                    count=count,
                    call_runs_s=ran_s,
                )
                lane.cache.done_first(chunk, count)
            return fate is Fate.GIVEN_BACK
        finally:
            call.sweep.set_result(None)
            call.sweep = None
