"""docs/tutorial.md is followed word for word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rigs.doc_blocks import Follower

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "tutorial.md").read_text()
WORKER = "rmq-consume --orderly --topic orders --group billing --listener billing:on_order"
ENDLESS = ("rmq-broker start", WORKER, f"{WORKER} -o max_attempts=2")
# Environments are made by tests/test_wheel.py and scripts/try-install; Spark reads in tests/spark/test_readme.py.
ELSEWHERE = (
    "python3 -m venv .venv && .venv/bin/pip install .",
    ". .venv/bin/activate",
    "mkdir -p ~/rmq-tutorial && cd ~/rmq-tutorial",
    "pip install '.[spark,java]'",
    "python report.py",
)


@pytest.mark.slow
def test_every_step_does_what_it_says(tmp_path: Path) -> None:
    with Follower(tmp_path, endless=ENDLESS, elsewhere=ELSEWHERE) as reader:
        reader.follow(TEXT)


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXT)

    assert links
    assert [target for target in links if not (ROOT / "docs" / target).exists()] == []
