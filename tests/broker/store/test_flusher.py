from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rmq.broker.store.flusher import EARLY, SHORT_S, Flusher, pause_s

PATIENCE_S = 10.0


class ScriptedLog:
    """A log whose syncs begin when the test says so."""

    def __init__(self) -> None:
        self.written = 0
        self.began: queue.Queue[int] = queue.Queue()
        self.go_on: queue.Queue[Exception | None] = queue.Queue()
        self.written_back: queue.Queue[int] = queue.Queue()
        self.while_written_back: Callable[[], None] = lambda: None

    def begin_writeback(self) -> None:
        self.written_back.put(self.written)
        self.while_written_back()

    def sync(self) -> int:
        position = self.written
        self.began.put(position)
        error = self.go_on.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        return position


class Posts:
    """What the flusher posted to the loop, in order."""

    def __init__(self) -> None:
        self.line: queue.Queue[object] = queue.Queue()

    def __call__(self, callback: Callable[..., object], *args: object) -> None:
        callback(*args)

    def next(self) -> object:
        return self.line.get(timeout=PATIENCE_S)


@contextmanager
def flushing(log: ScriptedLog, posts: Posts, interval_s: float = 0.0) -> Iterator[Flusher]:
    flusher = Flusher(log, posts, posts.line.put, posts.line.put, interval_s=interval_s)
    flusher.start()
    try:
        yield flusher
    finally:
        log.go_on.put(None)
        log.go_on.put(None)
        flusher.stop()


def began(log: ScriptedLog) -> int:
    return log.began.get(timeout=PATIENCE_S)


def test_a_request_is_answered_with_the_position_that_was_synced() -> None:
    log, posts = ScriptedLog(), Posts()
    with flushing(log, posts) as flusher:
        log.written = 100
        flusher.request()
        assert began(log) == 100
        log.go_on.put(None)

        assert posts.next() == 100
        told = flusher.stats()
        assert (told["syncs"], told["total_sync_s"]) == (1, told["last_sync_s"])


def test_a_write_during_the_sync_is_not_covered_by_it_and_asks_again() -> None:
    log, posts = ScriptedLog(), Posts()
    with flushing(log, posts) as flusher:
        log.written = 100
        flusher.request()
        began(log)
        log.written = 200
        flusher.request()
        log.go_on.put(None)

        assert posts.next() == 100
        assert began(log) == 200
        log.go_on.put(None)
        assert posts.next() == 200


def test_many_requests_share_one_sync() -> None:
    log, posts = ScriptedLog(), Posts()
    with flushing(log, posts) as flusher:
        flusher.request()
        began(log)
        for position in range(300, 400):
            log.written = position
            flusher.request()
        log.go_on.put(None)
        posts.next()

        assert began(log) == 399
        log.go_on.put(None)
        assert posts.next() == 399
        assert log.began.empty()


def test_a_failed_sync_is_reported_once_and_never_tried_again() -> None:
    log, posts = ScriptedLog(), Posts()
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    with flushing(log, posts) as flusher:
        flusher.request()
        began(log)
        flusher.request()
        log.go_on.put(error)
        assert posts.next() is error

        flusher.request()
        flusher.stop()

        assert posts.line.empty()
        assert log.began.empty()


def test_a_defect_in_a_sync_is_reported_like_a_failed_disk(logs: list[dict[str, object]]) -> None:
    log, posts = ScriptedLog(), Posts()
    error = ValueError("a defect")
    with flushing(log, posts) as flusher:
        flusher.request()
        began(log)
        log.go_on.put(error)

        assert posts.next() is error

    assert [entry["event"] for entry in logs] == ["flusher.failed"]


def test_stopping_syncs_what_was_written_during_the_last_sync() -> None:
    log, posts = ScriptedLog(), Posts()
    with flushing(log, posts) as flusher:
        log.written = 100
        flusher.request()
        began(log)
        log.written = 200
        flusher.request()
        stopping = threading.Thread(target=flusher.stop)
        stopping.start()
        log.go_on.put(None)
        assert began(log) == 200
        log.go_on.put(None)
        stopping.join(PATIENCE_S)

        assert not stopping.is_alive()
        assert [posts.next(), posts.next()] == [100, 200]


def test_stopping_does_not_wait_for_the_interval() -> None:
    log, posts = ScriptedLog(), Posts()
    with flushing(log, posts, interval_s=3600.0) as flusher:
        log.written = 100
        flusher.request()
        log.go_on.put(None)
        flusher.stop()

        assert posts.next() == 100


def test_nothing_is_synced_in_an_interval_without_a_request() -> None:
    log, posts = ScriptedLog(), Posts()
    with flushing(log, posts, interval_s=1.2 * SHORT_S) as flusher:
        with pytest.raises(queue.Empty):
            log.began.get(timeout=4 * SHORT_S)
        log.written = 100
        flusher.request()

        assert began(log) == 100
        log.go_on.put(None)
        assert posts.next() == 100
        with pytest.raises(queue.Empty):
            log.began.get(timeout=4 * SHORT_S)


def test_a_disk_too_slow_for_the_interval_is_waited_for_by_requests_not_by_the_clock() -> None:
    log, posts = ScriptedLog(), Posts()
    with flushing(log, posts, interval_s=1e-9) as flusher:  # no sync is as quick
        for written in (1, 2):
            log.written = written
            flusher.request()
            assert began(log) == written
            log.go_on.put(None)
            assert posts.next() == written

        assert log.began.empty()


# ---- the system begins early


def test_the_system_is_asked_to_write_out_what_came_since_it_was_last_asked() -> None:
    log, posts = ScriptedLog(), Posts()
    with flushing(log, posts, interval_s=3600.0) as flusher:
        for written in (EARLY - 1, EARLY, 2 * EARLY - 1, 2 * EARLY + 5):
            log.written = written
            flusher.request()
            if written in (EARLY, 2 * EARLY + 5):
                assert log.written_back.get(timeout=PATIENCE_S) == written

        assert log.written_back.empty()
        assert log.began.empty()


def test_a_sync_with_waiting_sends_is_not_delayed_by_it() -> None:
    log, posts = ScriptedLog(), Posts()
    with flushing(log, posts) as flusher:
        log.written = 2 * EARLY
        flusher.request()
        began(log)
        log.go_on.put(None)
        posts.next()

        assert log.written_back.empty()


def test_a_disk_slower_than_the_senders_is_synced_when_the_interval_is_over() -> None:
    log, posts = ScriptedLog(), Posts()
    with flushing(log, posts, interval_s=0.01) as flusher:

        def more() -> None:  # as much comes while the system takes what was there
            log.written += EARLY
            flusher.request()

        log.while_written_back = more
        more()

        began(log)


def test_a_failure_to_write_out_is_reported_like_a_failed_sync() -> None:
    log, posts = ScriptedLog(), Posts()
    error = OSError(errno.EIO, os.strerror(errno.EIO))

    def fail() -> None:
        raise error

    log.while_written_back = fail
    with flushing(log, posts, interval_s=3600.0) as flusher:
        log.written = EARLY
        flusher.request()

        assert posts.next() is error
        assert log.began.empty()


# ---- the pace


@pytest.mark.parametrize(("last_s", "pause"), [(0.0, 0.5), (0.1, 0.3), (0.25, 0.0), (3.0, 0.0)])
def test_what_is_written_while_a_sync_runs_is_durable_within_the_interval(last_s: float, pause: float) -> None:
    assert pause_s(0.5, last_s) == pytest.approx(pause)
    assert last_s + pause + last_s <= max(0.5, 2 * last_s) + 1e-9
