"""The cursors of a process queue in the hands of whoever calls the listener: as good as its methods, and as safe."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rmq.consumer.fetch.process_queue import ProcessQueue
from rmq.consumer.group.tag_filter import Subscription

from .test_process_queue import made

Told = list[int]


def by_methods(queue: ProcessQueue) -> Iterator[int]:
    while messages := queue.take(1):
        yield messages[0].queue_offset
        queue.commit()


def by_cursors(queue: ProcessQueue) -> Iterator[int]:
    """As the orderly scheduler does it: along a copy of the line, and no further than the mark."""
    while queue.ready:
        for message in queue.line[queue.fill() :]:
            queue.next += 1
            yield message.queue_offset
            queue.first = queue.next
            if queue.first >= queue.mark:
                queue.settle()
                break


def filled() -> ProcessQueue:
    queue = ProcessQueue(0, subscription=Subscription("a || b"))
    tags = ["a", None, "b", "c", "a"]
    for base, count in ((0, 1), (1, 299), (300, 2), (302, 130), (432, 4)):
        queue.put(made(base, count, tags=[tags[i % 5] for i in range(base, base + count)]))
    queue.skip_to(440)
    return queue


@pytest.mark.parametrize(("messages", "size"), [(0, 1 << 20), (200, 1 << 20), (1000, 1), (431, 9000), (3, 2000)])
def test_progress_memory_and_room_are_the_same_at_every_message(messages: int, size: int) -> None:
    def seen(walk: Callable[[ProcessQueue], Iterator[int]]) -> list[object]:
        queue, told = filled(), Told()
        queue.when_room(messages, size, lambda: told.append(queue.commit_offset))
        return [(at, queue.commit_offset, queue.messages, queue.size, queue.head, list(told)) for at in walk(queue)]

    assert seen(by_cursors) == seen(by_methods)


def test_everything_is_done_in_the_end() -> None:
    queue = filled()

    given = list(by_cursors(queue))

    assert given == [at for at in range(436) if at % 5 in (0, 2, 4)]
    assert (queue.commit_offset, queue.messages, queue.size) == (440, 0, 0)


@pytest.mark.parametrize("cut_at", [1, 2, 100, 127, 128, 129, 299, 300, 301, 350, 500])
@pytest.mark.parametrize("during", [0, 1, 99, 126, 127, 128, 250, 299, 300])
def test_what_the_log_lost_during_a_call_is_not_given_from_the_copy(during: int, cut_at: int) -> None:
    queue = ProcessQueue(0)
    queue.put(made(0, 300))
    queue.put(made(300, 200))
    given = []

    for offset in by_cursors(queue):
        given.append(offset)
        if offset == during:
            assert queue.cut(cut_at) == (cut_at > during)

    assert given == list(range(cut_at if cut_at > during else 500))
    assert queue.commit_offset == len(given)
