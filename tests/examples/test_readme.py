"""README.md is followed word for word, and what it says of the rest of the repository is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rigs.doc_blocks import Follower, blocks, commands

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
ENDLESS = ("rmq-broker start", "rmq-consume --orderly --topic orders", "python consumer.py")
# Environments take minutes to make: these are compared below with what makes and tests them elsewhere.
WITH_MAKE = ("make demo", "make test")
WITHOUT_MAKE = (
    "python3 -m venv .venv && .venv/bin/pip install '.[spark,dev]' && .venv/bin/pytest -n auto --dist loadfile"
)
CLIENTS_ALONE = "python3 -m venv .venv && .venv/bin/pip install ."
IN_SPARK = "python report.py"  # by tests/spark/test_readme.py, with the Spark that is there
ELSEWHERE = (*WITH_MAKE, WITHOUT_MAKE, CLIENTS_ALONE, IN_SPARK)


@pytest.mark.slow
def test_every_snippet_does_what_it_says(tmp_path: Path) -> None:
    with Follower(tmp_path, endless=ENDLESS, elsewhere=ELSEWHERE) as reader:
        reader.follow(TEXT)


def test_the_install_blocks_are_there_and_are_what_ci_and_the_set_up_do() -> None:
    typed = [commands(block) for block in blocks(TEXT) if block.language == "sh"]
    assert list(WITH_MAKE) in typed
    assert [WITHOUT_MAKE] in typed

    makefile, ci, setup = ((ROOT / name).read_text() for name in ("Makefile", ".ci/run", "scripts/setup"))
    assert "\ndemo: install\n\t$(BIN)/python examples/demo.py\n" in makefile
    assert "\ntest: install\n" in makefile
    assert "    make test\n" in ci
    assert re.search(r"^ +\.venv/bin/pytest -n auto .*--dist loadfile$", ci, re.MULTILINE)
    assert "pip_install --no-build-isolation '.[spark,dev]'" in setup


def test_the_producer_and_the_consumer_are_some_ten_lines_and_spark_is_three() -> None:
    def code(name: str) -> list[str]:
        (block,) = [block for block in blocks(TEXT) if block.file_name == name]
        lines = block.text.splitlines()
        return [line for line in lines if line and not line.startswith(("import", "from", "asyncio.run"))]

    assert len(code("producer.py")) <= 10
    assert len(code("consumer.py")) <= 10
    assert len(code("report.py")) == 3


def test_every_figure_of_the_benchmarks_is_one_of_those_that_were_measured() -> None:
    section = TEXT.split("\n## How fast it is\n")[1].split("\n## ")[0]
    figures = re.findall(r"\*\*([\d.,]+(?: MB)?)\*\*", section)

    assert len(figures) > 8
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [figure for figure in figures if f"**{figure}**" not in measured] == []


def test_every_link_leads_somewhere_and_every_target_of_make_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert [target for target in links if not (ROOT / target).exists()] == []

    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    assert set(re.findall(r"`make ([a-z-]+)`", TEXT)) <= set(targets[1].split())
