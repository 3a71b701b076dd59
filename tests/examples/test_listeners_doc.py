"""docs/listeners.md shows code that is run: what it quotes of an example is what the example says."""

from __future__ import annotations

import re
import textwrap
from dataclasses import fields

from rmq.consumer import ConsumeContext, ConsumerConfig

from .running import EXAMPLES

TEXT = (EXAMPLES.parent / "docs" / "listeners.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_what_is_quoted_of_the_fencing_example_is_in_it() -> None:
    example = (EXAMPLES / "fencing_sqlite.py").read_text()

    quoted = BLOCKS[1:]
    assert len(quoted) == 2
    assert [block for block in quoted if block not in example] == []


def test_every_block_is_python() -> None:
    for block in BLOCKS:
        compile(f"async def f():\n{textwrap.indent(textwrap.dedent(block), '    ')}", "listeners.md", "exec")


def test_every_setting_and_every_part_of_the_context_that_is_named_exists() -> None:
    settings = {item.name for item in fields(ConsumerConfig)}
    named = set(re.findall(r"`(\w+)(?: = [^`]*)?`", TEXT))
    context = set(re.findall(r"`(?:await )?context\.(\w+)", TEXT))

    assert {"batch", "max_attempts", "crash_limit", "cancel_on_loss", "drain_s", "stall_limit_s"} <= named & settings
    assert {name for name in named if name.endswith("_s")} <= settings
    assert all(hasattr(ConsumeContext, name) for name in context), context
