"""What a benchmark that is killed leaves behind is ended and removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmq.bench import janitor

KILLED = """
import os, signal, subprocess, sys
sys.path.insert(0, sys.argv[1])
from janitor import Janitor
watch = Janitor()
watch.add(sys.argv[2])
child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, process_group=0)
watch.add(child.pid)
print(child.pid, watch._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (["+/a\n", "+12\n"], ["12", "/a"]),
        (["+/a\n", "+12\n", "-12\n"], ["/a"]),
        (["+/a\n", "-/a\n", "+/half"], []),
        ([], []),
    ],
)
def test_what_was_added_and_not_removed_is_left_over_processes_first(lines: list[str], left: list[str]) -> None:
    assert janitor.left_over(lines) == left


def test_a_killed_benchmark_leaves_no_processes_and_no_directories(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)

    command = [sys.executable, "-S", "-c", KILLED, str(Path(janitor.__file__).parent), str(folder)]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)

    child, watching = map(int, found.stdout.split())
    _until_gone(watching)
    assert not folder.exists()
    _until_gone(child)


def test_it_runs_only_while_there_is_something(tmp_path: Path) -> None:
    watch = janitor.Janitor()
    watch.remove(str(tmp_path))  # never added
    watch.add(str(tmp_path))
    process = watch._process
    assert process is not None

    watch.remove(str(tmp_path))

    assert process.returncode == 0
    assert tmp_path.exists()


def _until_gone(pid: int) -> None:
    """Wait for the end of a process that is not ours; one that is not waited for has ended, too."""
    try:
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            os.sched_yield()
    except (FileNotFoundError, ProcessLookupError):
        pass
