"""``Puller``: one long poll for each queue generation, which keeps its cache filled and carries its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rmq.client.log import get_logger
from rmq.wire import batch as batches
from rmq.wire.errors import (
    OK,
    BadBatch,
    ConnectionLost,
    Damaged,
    Fenced,
    OffsetOutOfRange,
    Refused,
    RequestTimeout,
    RmqError,
    code_name,
)
from rmq.wire.model import MessageQueue
from rmq.wire.ops import EMPTY, NO_OFFSET, PullQueue, PullResult

from .config import ConsumerConfig
from .generation import Generation
from .group_client import GroupClient
from .tasks import TaskSet
from .turns import SLICE_S

log = get_logger("rmq.consumer")

UNCOMMITTED_S = 60.0  # a cache full of what is not committed is warned of this often
LOOK_AGAIN_S = 60.0  # the share of a queue grows when others leave, which nobody tells


class Puller:
    """
    Pulls for generations, which exist only under a lease: the lock always comes before the first pull.

    ``is_new(queue)`` says that a queue came into being after the group subscribed: such a queue is read from 0.
    """

    def __init__(
        self,
        generations: Mapping[MessageQueue, Generation],
        config: ConsumerConfig,
        broker: GroupClient,
        *,
        tasks: TaskSet,
        believed: Callable[[Generation], bool],
        progressed: Callable[[], None],
        is_new: Callable[[MessageQueue], bool],
    ) -> None:
        self._generations = generations
        self._config = config
        self._broker = broker
        self._tasks = tasks
        self._believed = believed
        self._progressed = progressed
        self._is_new = is_new

    def start(self, generation: Generation) -> None:
        """Begin to fill a generation's cache; ends when it is dropped, at the latest by cancelling its task."""
        generation.puller = self._tasks.start(self._run(generation), f"puller of {generation.queue}")

    async def _run(self, generation: Generation) -> None:
        if generation.cache.end_offset == NO_OFFSET:
            await self._find_start(generation)
        while not generation.dropped:
            await self._room(generation)
            result = await self._pull(generation)
            if result is not None and not generation.dropped:
                await self._take_in(generation, result)

    # Where to begin

    async def _find_start(self, generation: Generation) -> None:
        """
        Decide where a group without progress begins, and have that recorded.

        A read that fails is repeated: guessing would skip messages or deliver them again.
        """
        queue = generation.queue
        while not generation.dropped:
            try:
                start = 0 if self._is_new(queue) else await self._read_start(queue)
            except RmqError as error:
                log.warning("start.unknown", queue=str(queue), error=str(error))
                await self._wait(generation, error)
                continue
            log.info("start.found", queue=str(queue), queue_offset=start)
            generation.cache.skip_to(start)
            self._progressed()
            return

    async def _read_start(self, queue: MessageQueue) -> int:
        held = await self._broker.range(queue)
        if held.status != OK:
            raise Refused(held.text or code_name(held.status), code=held.status)
        return held.min_offset if self._config.start_from == "first" else held.max_offset

    # One pull

    async def _pull(self, generation: Generation) -> PullResult | None:
        config, cache, share = self._config, generation.cache, self._share()
        # Above its share a queue is pulled only if the listener needs more before it commits: then as ever.
        room = max(1, share - cache.size) if cache.size < share or not cache.size else config.pull_bytes
        progress = cache.commit_offset
        rides = progress != generation.reported and self._believed(generation)
        if rides:
            generation.reported = progress
        wanted = PullQueue(*generation.queue, cache.end_offset, generation.epoch, progress if rides else NO_OFFSET)
        try:
            return await self._broker.pull(
                wanted,
                wait_s=config.pull_wait_s,
                max_bytes=min(config.pull_bytes, room),
                timeout_s=config.pull_timeout_s,
            )
        except Fenced as error:
            generation.lose(error.text)
        except RmqError as error:
            # Whether the progress arrived is not known: it is sent again.
            generation.reported = NO_OFFSET
            self._progressed()
            await self._wait(generation, error)
        return None

    async def _wait(self, generation: Generation, error: RmqError) -> None:
        """The pause after a failed request: until there is a connection, or some time."""
        if isinstance(error, RequestTimeout):
            return
        if isinstance(error, ConnectionLost):
            try:
                return await self._broker.link.wait_connected()
            except RmqError:
                pass  # closed for good: whoever closed it drops us
        else:
            log.error("pull.refused", queue=str(generation.queue), error=str(error))
        await generation.pause(self._config.lock_retry_s)

    # Flow control

    def _share(self) -> int:
        """The bytes a queue may hold; one batch is always let in."""
        return self._config.cache_bytes // max(1, len(self._generations))

    async def _room(self, generation: Generation) -> None:
        """
        Wait until another pull may be asked for.

        A listener that keeps its progress until it has seen more than a full cache gets more: nothing else could ever
        make room. The memory is its choice then.
        """
        cache, most = generation.cache, self._config.cache_messages
        while not cache.has_room(most, self._share()):
            if not cache.ready and not generation.guard.held:
                return self._warn_uncommitted(generation)
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            cache.when_room(most, self._share(), lambda room=room: _done(room))  # type: ignore[misc]
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await room
            except TimeoutError:
                pass

    def _warn_uncommitted(self, generation: Generation) -> None:
        now, cache = self._broker.now(), generation.cache
        if now - generation.uncommitted_told_at > UNCOMMITTED_S:
            generation.uncommitted_told_at = now
            advice = "memory grows until the listener returns COMMIT"
            log.warning("pull.uncommitted", queue=str(generation.queue), messages=cache.messages, advice=advice)

    # What came

    async def _take_in(self, generation: Generation, result: PullResult) -> None:
        asked = generation.cache.end_offset
        if result.status == OK:
            await self._put(generation, result)
        elif result.status == Fenced.code:
            generation.lose(result.text or "the pull was fenced")
        elif result.status == OffsetOutOfRange.code:
            goes_on_at = result.min_offset if asked < result.min_offset else result.max_offset
            if goes_on_at < asked and generation.cache.used:
                # The log was cut behind messages that we hold or have done: none of our offsets means anything now.
                generation.lose(f"the queue ends at {goes_on_at}, and {asked} was asked for")
            else:
                self._skip(generation, goes_on_at, result)
        elif result.status == Damaged.code and result.next_offset > asked:
            self._skip(generation, result.next_offset, result)
        elif result.status != EMPTY:
            text = result.text or code_name(result.status)
            await self._wait(generation, Refused(text, code=result.status))

    def _skip(self, generation: Generation, goes_on_at: int, result: PullResult) -> None:
        log.warning(
            "pull.offset_moved",
            queue=str(generation.queue),
            asked=generation.cache.end_offset,
            goes_on_at=goes_on_at,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
            reason=code_name(result.status),
        )
        generation.cache.skip_to(goes_on_at)

    async def _put(self, generation: Generation, result: PullResult) -> None:
        """Check and cache what came, giving the loop back every 2 ms; compressed batches only as there is room."""
        cache, clock = generation.cache, self._broker.now
        before, at, began = cache.end_offset, 0, clock()
        try:
            while at < len(result.batches) and not generation.dropped:
                batch = batches.read(result.batches, at, store_id=self._broker.store_id)
                at += batch.header.size
                if (batch.header.topic, batch.header.queue_id) != generation.queue:
                    raise BadBatch(f"a batch of {batch.header.topic}/{batch.header.queue_id} came")
                if cache.put(batch):
                    generation.arrived()
                if batch.header.codec:
                    # We asked for bytes as they are stored: what they unpack to may be a thousand times as much.
                    await self._room(generation)
                if clock() - began > SLICE_S:
                    await asyncio.sleep(0)
                    began = clock()
        except Refused as error:
            log.error("pull.bad_batch", queue=str(generation.queue), error=str(error))
        if cache.end_offset == before:
            # Nothing that can be used: asking again at once would be asked for ever.
            await generation.pause(self._config.lock_retry_s)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
