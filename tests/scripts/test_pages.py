"""The pages of docs/reference match the code."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from refdocs.pages import TARGET, found_events, main, pages, programs, stale

ROOT = Path(__file__).parents[2]


def test_the_reference_matches_the_code() -> None:
    old = stale(pages(found_events()), TARGET)

    assert old == [], "docs/reference is stale: `make docs` (or scripts/reference) renews it"


def test_a_differing_missing_or_surplus_page_is_stale(tmp_path: Path) -> None:
    (tmp_path / "same.md").write_text("x")
    (tmp_path / "other.md").write_text("x")
    (tmp_path / "extra.md").write_text("x")

    assert stale({"same.md": "x", "other.md": "y", "new.md": "z"}, tmp_path) == ["extra.md", "new.md", "other.md"]


def test_the_pages_cover_every_installed_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert set(programs()) == set(project["project"]["scripts"])


def test_a_check_changes_nothing_and_accepts_fresh_pages(capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in TARGET.iterdir()}

    assert main(["--check"]) == 0

    assert capsys.readouterr() == ("", "")
    assert {path: path.stat().st_mtime_ns for path in TARGET.iterdir()} == before
