"""``rmq-consume --pull``: poll, print, and have what was printed committed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from rmq.consumer import PullConsumer
from rmq.consumer.config import ConsumerConfig
from rmq.wire.names import wrap

from ..shell.reach import refuse_missing_topic
from ..shell.stopping import first_of, stop_signals
from .listeners import Printer
from .waiting import saying_what_is_missing


async def poll_and_print(config: ConsumerConfig, topics: Mapping[str, str], printer: Printer) -> None:
    """Poll and print until there is enough or a signal; then stop cleanly: the batch that is being printed counts."""
    if not topics:
        await refuse_missing_topic(config.broker)
    with stop_signals() as asked:
        names = [wrap(config.namespace, topic) for topic in topics]
        async with (
            PullConsumer(topics=topics, config=config, handle_signals=False) as consumer,
            saying_what_is_missing(config.broker, names),
        ):
            await _print_until(asked, consumer, printer)


async def _print_until(asked: asyncio.Event, consumer: PullConsumer, printer: Printer) -> None:
    printing = asyncio.create_task(_print_all(consumer, printer))
    enough = asyncio.create_task(first_of(asked, printer.done))
    try:
        await asyncio.wait([printing, enough], return_when=asyncio.FIRST_COMPLETED)
        await consumer.stop()
        printing.cancel()  # if it still waits for a reader: what that would read was given back
        await asyncio.wait([printing])
        if not printing.cancelled():
            printing.result()  # raises what ended it, if that was an error
    finally:
        enough.cancel()
        printing.cancel()


async def _print_all(consumer: PullConsumer, printer: Printer) -> None:
    async for batch in consumer:
        if not await printer.show(batch, batch.epoch):
            return await consumer.stop()  # said by the task that has them: they are not done
