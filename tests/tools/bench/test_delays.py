"""The benchmark of delayed messages runs, with real processes, and says what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "bench" / "delays.py"


@pytest.mark.slow
def test_quick_figures_are_complete(tmp_path: Path) -> None:
    found = tmp_path / "figures.json"

    command = [sys.executable, str(SCRIPT), "--quick", "--json", str(found)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    figures = json.loads(found.read_text())
    assert (figures["messages"], figures["pairs"]) == (5_000, 1)
    for part in ("sync", "async", "singles"):
        for variant in ("plain", "delayed"):
            (run,) = figures["runs"][part][variant]
            assert run["fill_rate"] > 0
            assert run["fill_mib"] > 1
    headings = [line.split("|")[1].strip() for line in shown.splitlines() if "without delay" in line]
    assert headings == [
        "Messages a second", "Processor time of the broker, us a message", "Resident memory of the broker, MiB",
    ]  # fmt: skip
    assert len([line for line in shown.splitlines() if line.startswith("| ")]) == 3 + 4 + 5 + 5
