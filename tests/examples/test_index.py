"""examples/README.md: names every example, and how each is run."""

from __future__ import annotations

import re

from .running import EXAMPLES

TEXT = (EXAMPLES / "README.md").read_text()
PARTS_OF_THE_DEMO = {"demo_stage.py", "demo_worker.py"}


def test_every_example_is_named_and_everything_that_is_named_exists() -> None:
    named = set(re.findall(r"^\| \[([\w./]+)\]\(\1?", TEXT, re.MULTILINE))
    there = {path.name + "/" * path.is_dir() for path in EXAMPLES.iterdir()} - PARTS_OF_THE_DEMO

    assert named == {name for name in there if name[0] not in "._" and name != "README.md"}


def test_what_is_to_be_run_exists() -> None:
    for path in re.findall(r"examples/[\w./]+", TEXT):
        assert (EXAMPLES.parent / path).exists(), path
