"""One request is worked off at a time, groups take turns, and what one raises is its own answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from rmq.broker.handlers.redelivery import CopyQueue
from rmq.broker.net.connection import Connection
from rmq.wire.errors import BadRequest, Internal, Refused, TooManyInFlight

from ..fakes import HeldPool


class Asker:
    """A connection; what it was refused is kept."""

    def __init__(self) -> None:
        self.closing = False
        self.refused: list[tuple[int, type[Refused]]] = []

    def refuse(self, request_id: int, error: Refused) -> None:
        self.refused.append((request_id, type(error)))

    def defect(self, error: Exception, request_id: int) -> Refused:
        return Internal(str(error))


class Task:
    """So many portions of work; notes in ``done`` what is finished."""

    def __init__(self, done: list[str], name: str, *, portions: int = 1, asker: Asker | None = None) -> None:
        self.name = name
        self.group = name[0]
        self.connection = cast(Connection, asker or Asker())
        self.request_id = 7
        self.messages = 10
        self.portions = portions
        self.error: Exception | None = None
        self._done = done

    def begin(self) -> Callable[[], Any] | None:
        if isinstance(self.error, BadRequest):
            raise self.error
        if not self.portions:
            self._done.append(self.name)
            return None
        return lambda: self.name

    def finish(self, result: Any) -> bool:
        if self.error is not None:
            raise self.error
        assert result == self.name
        self._done.append(self.name)
        self.portions -= 1
        return self.portions > 0


@pytest.fixture
def pool() -> HeldPool:
    return HeldPool()


@pytest.fixture
def copy_queue(pool: HeldPool) -> Iterator[CopyQueue]:
    copy_queue = CopyQueue(pool)
    yield copy_queue
    while pool.run():
        pass
    assert len(copy_queue) == 0


@pytest.fixture
def done() -> list[str]:
    return []


def work(pool: HeldPool) -> None:
    while pool:
        assert len(pool) == 1  # never two at once
        pool.run()


def test_the_tasks_of_a_group_are_done_in_the_order_they_came(
    copy_queue: CopyQueue, pool: HeldPool, done: list[str]
) -> None:
    for name in ("a1", "a2", "a3"):
        copy_queue.add(Task(done, name))
    assert (len(pool), len(copy_queue)) == (1, 2)

    work(pool)

    assert done == ["a1", "a2", "a3"]


def test_groups_take_turns_whatever_they_have_in_line(copy_queue: CopyQueue, pool: HeldPool, done: list[str]) -> None:
    for name in ("a1", "a2", "a3", "b1", "a4", "c1", "b2"):
        copy_queue.add(Task(done, name))

    work(pool)

    assert done == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


def test_the_rest_of_a_large_task_comes_behind_other_groups_and_before_its_own(
    copy_queue: CopyQueue, pool: HeldPool, done: list[str]
) -> None:
    copy_queue.add(Task(done, "a1", portions=3))
    copy_queue.add(Task(done, "a2"))
    copy_queue.add(Task(done, "b1"))
    copy_queue.add(Task(done, "b2"))

    work(pool)

    assert done == ["a1", "a1", "b1", "a1", "b2", "a2"]


def test_a_task_with_nothing_left_takes_no_thread(copy_queue: CopyQueue, pool: HeldPool, done: list[str]) -> None:
    copy_queue.add(Task(done, "a1", portions=0))

    assert (done, len(pool)) == (["a1"], 0)


def test_a_task_whose_asker_is_gone_is_left_out_before_and_after_its_job(
    copy_queue: CopyQueue, pool: HeldPool, done: list[str]
) -> None:
    first, second = Asker(), Asker()
    copy_queue.add(Task(done, "a1", asker=first))
    copy_queue.add(Task(done, "a2", asker=second))
    copy_queue.add(Task(done, "a3"))
    first.closing = second.closing = True

    work(pool)

    assert done == ["a3"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(BadRequest("no"), BadRequest), (TooManyInFlight("no"), TooManyInFlight), (KeyError(), Internal)],
)
def test_what_a_task_raises_is_its_answer_and_the_next_is_done(
    copy_queue: CopyQueue, pool: HeldPool, done: list[str], error: Exception, code: type[Refused]
) -> None:
    asker = Asker()
    task = Task(done, "a1", asker=asker)
    task.error = error
    copy_queue.add(task)
    copy_queue.add(Task(done, "a2"))

    work(pool)

    assert (asker.refused, done) == ([(7, code)], ["a2"])


def test_a_pool_that_is_full_refuses_the_task_and_not_those_behind_it(
    copy_queue: CopyQueue, pool: HeldPool, done: list[str]
) -> None:
    asker = Asker()
    pool.full = True
    copy_queue.add(Task(done, "a1", asker=asker))
    pool.full = False
    copy_queue.add(Task(done, "a2"))

    work(pool)

    assert (asker.refused, done) == ([(7, TooManyInFlight)], ["a2"])


def test_requests_that_name_too_many_messages_together_are_refused_until_some_are_done(
    pool: HeldPool, done: list[str]
) -> None:
    copy_queue = CopyQueue(pool, most=30)
    for name in ("a1", "a2", "b1", "c1"):  # the first is under way, and in line no more
        copy_queue.add(Task(done, name, portions=2))
    with pytest.raises(TooManyInFlight, match="30 messages wait to be copied already: try again soon"):
        copy_queue.add(Task(done, "d1"))

    pool.run()  # the rest of the first stands in line again, and another one is under way
    with pytest.raises(TooManyInFlight):
        copy_queue.add(Task(done, "d1"))
    while pool.run():
        pass

    copy_queue.add(Task(done, "d1"))
    work(pool)
    assert sorted(done) == ["a1", "a1", "a2", "a2", "b1", "b1", "c1", "c1", "d1"]
