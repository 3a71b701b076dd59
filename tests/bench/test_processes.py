"""
Processes of a benchmark: waited for by what they say, and ended with the block that started them.

The beginning and the end of a client: what it did before the clock, and how it fails.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

from rmq.bench import processes
from rmq.bench.processes import BenchError, BrokerProcess, Child, free_bytes, own_broker, scratch
from rmq.wire.errors import RmqError

ECHO = "import sys; print('{\"ready\": true}', flush=True); print(sys.stdin.readline(), end='', flush=True)"
STUBBORN = "import signal; signal.signal(15, signal.SIG_IGN); print('{}', flush=True); signal.pause()"


def python(code: str) -> Child:
    return Child("client", [sys.executable, "-S", "-c", code])


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_child_prints_lines_and_waits_for_the_start_signal() -> None:
    child = python(ECHO)
    try:
        assert child.reply(30) == {"ready": True}
        child.go()
        assert child.line(30) == "go\n"
    finally:
        child.close()

    assert is_gone(child.pid)


def test_waiting_for_a_silent_child_times_out() -> None:
    child = python("input()")
    try:
        with pytest.raises(BenchError, match="the client of this benchmark said nothing for 0 s"):
            child.line(0.0)
    finally:
        child.close()

    assert is_gone(child.pid)


def test_a_child_that_ends_too_early_is_an_error() -> None:
    child = python("")
    try:
        with pytest.raises(BenchError, match="the client of this benchmark ended too early"):
            child.line(30)
    finally:
        child.close()


def test_waiting_for_a_child_ends_with_the_process_it_needs() -> None:
    gone = Child("broker", [sys.executable, "-S", "-c", "raise SystemExit(7)"])
    child = Child("client", [sys.executable, "-S", "-c", "input()"], needs=gone)
    try:
        with pytest.raises(BenchError, match=r"the broker of this benchmark ended in the middle \(code 7\)"):
            child.line(30)
    finally:
        child.close()
        gone.close()


def test_a_child_that_ignores_a_stop_is_killed() -> None:
    child = python(STUBBORN)
    child.line(30)

    child.stop(0.0)
    child.close()

    assert child.process.returncode == -9


def test_ctrl_c_does_not_reach_a_child() -> None:
    child = python(ECHO)
    try:
        assert os.getpgid(child.pid) != os.getpgid(0)
    finally:
        child.close()


def test_memory_is_that_of_the_child() -> None:
    child = python(ECHO)
    try:
        child.line(30)
        assert 1 < child.memory_mb() <= child.memory_mb("VmHWM") < 200
    finally:
        child.close()


def test_a_scratch_directory_is_gone_after_an_error_too() -> None:
    with pytest.raises(KeyboardInterrupt), scratch() as folder:
        (folder / "sub").mkdir()
        assert free_bytes(folder) > 0
        raise KeyboardInterrupt

    assert not folder.exists()


@pytest.mark.slow
def test_an_own_broker_and_its_files_are_gone_after_the_block() -> None:
    with own_broker("async") as broker:
        assert broker.ready_s > 0
        folders = [word for word in Path(f"/proc/{broker.pid}/cmdline").read_text().split("\0") if "rmq-bench-" in word]
        assert Path(folders[0]).is_dir()

    assert is_gone(broker.pid)
    assert not Path(folders[0]).exists()


def test_a_broker_is_not_started_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs(tmp_path)
    full = os.statvfs_result((*room[:4], 100_000_000 // room.f_frsize, *room[5:]))
    monkeypatch.setattr(os, "statvfs", lambda folder: full)

    with pytest.raises(BenchError, match=r"has 100 MB left, and a broker needs 537$"):
        BrokerProcess(tmp_path / "data")


@pytest.mark.slow
def test_a_broker_that_cannot_start_is_an_error() -> None:
    with pytest.raises(BenchError, match="the broker of this benchmark ended too early"), own_broker("never"):
        pass


async def refused(**orders: object) -> None:
    raise ExceptionGroup("tasks", [ExceptionGroup("tasks", [RmqError(f"no room\nfor {orders['what']}")])])


async def wrong() -> None:
    raise ExceptionGroup("tasks", [KeyError("oh")])


def test_a_refusal_of_the_broker_ends_a_client_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/sending.py", '{"what": "it"}'])

    with pytest.raises(SystemExit, match=r"^sending: no room for it$"):
        processes.run(refused)


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/sending.py", "{}"])

    with pytest.raises(ExceptionGroup):
        processes.run(wrong)


def test_only_objects_made_after_the_clock_started_are_collected() -> None:
    try:
        processes.settle()
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
    finally:
        gc.unfreeze()
