"""The launcher samples what it runs, and leaves it alone otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BUSY = """
import gc, sys, time

def of_its_own(until):
    while time.process_time() < until:
        pass

def collecting(until):
    while time.process_time() < until:
        gc.collect()

def in_c(until):
    while time.process_time() < until:
        sum(range(1_000_000))

for work in (of_its_own, collecting, in_c):
    work(time.process_time() + 0.2)
print(__name__, *sys.argv[1:])
sys.exit(7)
"""


@pytest.mark.slow
def test_a_module_runs_as_the_main_one_and_its_time_is_found_where_it_was_spent(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    dump = tmp_path / "dump"

    command = [sys.executable, "-m", "rmq.bench.profiled", str(dump), "busy", "--fast"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("__main__ --fast\n", "", 7)
    innermost = {line.split(";")[0] for line in dump.read_text().splitlines()}
    assert {"of_its_own", "in_c"} <= {frame.split("|")[1] for frame in innermost if "|" in frame}
    assert "(garbage collector)" in innermost
