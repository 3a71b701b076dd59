"""
Prints what ``rmq-admin explain`` says of each cause, as in docs/explain.md: ``python tests/scenarios/show_explain.py``.

With names of causes (of ``tests/rigs/explain/stuck_groups.py``), only those. Sessions and ids are new each time.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from rmq.cli.admin.explain import text

import rigs.explain.stuck_groups  # noqa: F401  # enters the causes
from rigs.explain.staging import CAUSES, explained
from rigs.virtual_time import VirtualTimeLoop


def shown(name: str) -> str:
    """What is printed of a cause."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return text(runner.run(explained(name)))


def main(names: list[str]) -> None:
    """Print the causes that are named, or all."""
    logging.disable(logging.CRITICAL)
    for name in names or CAUSES:
        print(f"## {name.replace('_', ' ')}\n\n$ rmq-admin explain billing\n{shown(name)}")


if __name__ == "__main__":
    main(sys.argv[1:])
