from __future__ import annotations

from typing import cast

from rmq.broker.handlers.pull_read import PullRequest
from rmq.broker.net.connection import Connection
from rmq.wire.batch.tags import wanted
from rmq.wire.model import MessageQueue
from rmq.wire.protocol.ops.core import Pull, PullQueue

A, B = MessageQueue("orders", 0), MessageQueue("orders", 1)


def make(*offsets: int) -> PullRequest:
    queues = [PullQueue("orders", i % 2, offset) for i, offset in enumerate(offsets)]
    return PullRequest(cast(Connection, None), 7, Pull("g", 0, 1, queues), 1.0, [1] * len(offsets))


def test_a_new_pull_reads_everything_from_where_it_asks() -> None:
    request = make(5, 9)

    assert (request.queues, request.offsets, request.wanted) == ((A, B), [5, 9], [None, None])
    assert not request.is_filtered
    assert not request.has_passed(0)


def test_a_free_pull_for_some_tags_is_filtered_from_the_start() -> None:
    queues = [PullQueue("orders", 0, 5), PullQueue("orders", 1, 9)]
    pull = Pull(None, 0, 1, queues, "a")
    request = PullRequest(cast(Connection, None), 7, pull, 1.0, [1, 1], wanted=wanted("a"))

    assert request.wanted == [wanted("a")] * 2
    assert request.is_filtered


def test_what_was_passed_counts_as_long_as_the_same_is_wanted() -> None:
    request = make(5, 9)
    request.want(0, wanted("a"))
    request.offsets[0] = 20
    assert request.is_filtered
    assert (request.has_passed(0), request.has_passed(1)) == (True, False)

    request.want(0, wanted("a||a"))
    assert request.offsets == [20, 9]
    request.want(0, wanted("a||b"))
    assert request.offsets == [5, 9]


def test_a_pull_is_filtered_while_any_of_its_places_is() -> None:
    request = make(5, 9)
    request.want(0, wanted("a"))
    request.want(1, wanted("a"))
    request.want(0, None)
    assert request.is_filtered

    request.want(1, None)
    assert not request.is_filtered


def test_places_are_served_in_turn() -> None:
    request = make(0, 0, 0)
    assert request.order() == [0, 1, 2]

    request.first = 2
    assert request.order() == [2, 0, 1]


def test_a_queue_has_every_place_at_which_it_is_named() -> None:
    request = make(0, 0, 0)

    assert (request.places_of(A), request.places_of(B)) == ([0, 2], [1])
