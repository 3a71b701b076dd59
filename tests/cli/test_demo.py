"""The demo tells its story to the end; it checks its promises itself. Spark has tests of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.slow
def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    demo = subprocess.run(
        [sys.executable, str(DEMO), "--no-spark"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert demo.returncode == 0, demo.stderr
    assert "order checked: 100 orders, steps 1 to 10 each, no gap" in demo.stdout
    assert demo.stdout.endswith("every promise held\n")
