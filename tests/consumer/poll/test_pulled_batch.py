"""What a poll returns beside the messages."""

from __future__ import annotations

import pytest

from rmq.consumer.group.assignment import Generation, Lease
from rmq.consumer.poll.queue import NotAssigned, PullCache, PulledBatch
from rmq.wire.model import MessageQueue

from ..fetch.test_process_queue import made


def generation() -> Generation:
    return Generation(Lease(MessageQueue("t", 0), 7, 0.0), PullCache(0), on_lost=lambda generation, reason: None)


def test_a_batch_is_a_list_that_knows_its_queue_and_its_epoch() -> None:
    of = generation()
    of.cache.put(made(0, 2))
    messages = PullCache(0)
    messages.put(made(0, 2))

    batch = PulledBatch(messages.take(2), of)

    assert isinstance(batch, list)
    assert (len(batch), batch.queue, batch.epoch, batch.lost) == (2, ("t", 0), 7, False)


def test_a_batch_is_lost_with_its_lease_or_when_its_queue_was_given_back_without_it() -> None:
    of = generation()
    first, second = PulledBatch((), of), PulledBatch((), of)

    second.given_back = True
    assert (first.lost, second.lost) == (False, True)

    of.lose("somebody else has it")
    assert first.lost


def test_an_empty_batch_is_of_no_queue() -> None:
    batch = PulledBatch()

    assert (batch, batch.lost) == ([], False)
    for name in ("queue", "epoch"):
        with pytest.raises(NotAssigned, match="an empty batch is of no queue"):
            getattr(batch, name)
