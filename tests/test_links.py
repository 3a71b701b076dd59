"""Links in documents lead to files and headings that exist, and the pages for developers name files that exist."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from refdocs.markdown import anchor

ROOT = Path(__file__).parents[1]
MADE = {".git", ".venv", ".cache", ".typing", "build", "dist", "__pycache__"}
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`+[^`\n]*`+")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_OUTSIDE = re.compile(r"[a-z]+:")
_WORD = re.compile(r"(?<![\w./<@%*-])[\w.-]+(?:/[\w.-]+)*/?(?![\w<*])")
_COMING = re.compile(r"\bComing: .*?(?=\.\s|\||\Z)", re.DOTALL)
_SOURCES = (".py", ".c", ".md", ".toml", ".svg")
# Folders of a data directory, not of the checkout.
_STORED = {"commitlog/", "consumequeue/", "index/", "config/", "quarantine/"}


def links_of(text: str) -> list[str]:
    """Return the targets of the links of a page, without those in code."""
    return _LINK.findall(_CODE.sub("", _FENCE.sub("", text)))


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page's headings; a repeated name gets a number."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#{1,6} +(.*?)\s*$", _FENCE.sub("", text), re.MULTILINE):
        name = anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


def broken_links(page: Path) -> list[str]:
    """Return the links of a page that have no target."""
    broken = []
    for link in links_of(page.read_text()):
        if _OUTSIDE.match(link):
            continue
        place, _, fragment = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists():
            broken.append(f"{page.name}: {link}: no such file")
        elif fragment and fragment not in _anchors(target):
            broken.append(f"{page.name}: {link}: no such heading in the page")
    return broken


@cache
def tree() -> frozenset[str]:
    """Return every file and folder of the checkout by path, and by each end of its path; a folder also with a slash."""
    listed = (Path(folder, name) for folder, names in source_files() for name in names)
    paths = {path.relative_to(ROOT) for path in listed}
    folders = {parent for path in paths for parent in path.parents}
    names = [path.as_posix() for path in paths | folders] + [f"{folder.as_posix()}/" for folder in folders]
    return frozenset(name.split("/", depth)[-1] for name in names for depth in range(name.rstrip("/").count("/") + 1))


def source_files() -> Iterator[tuple[str, list[str]]]:
    """Walk the checkout without what is made in it."""
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [name for name in subfolders if name not in MADE and not name.endswith(("_cache", "-info"))]
        yield folder, names


def paths_of(text: str) -> list[str]:
    """
    Return the files and folders of the checkout that a page names in code, inline or in blocks.

    A sentence that starts with ``Coming:`` names those of a later version.
    """
    text = _COMING.sub("", text)
    blocks = [match[0] for match in _FENCE.finditer(text)]
    words = [word for code in (*blocks, *_CODE.findall(_FENCE.sub("", text))) for word in _WORD.findall(code)]
    tops = {name.split("/")[0] for name in tree()}
    return [
        word for word in words
        if word not in _STORED and (word.endswith((*_SOURCES, "/")) or ("/" in word and word.split("/")[0] in tops))
    ]  # fmt: skip


def missing(paths: list[str]) -> list[str]:
    """Return the paths that do not exist. One that starts with a top folder is whole, any other may be an end."""
    tops = {path.name for path in ROOT.iterdir() if path.is_dir()}
    return sorted(
        path for path in set(paths)
        if path not in tree() or (path.split("/")[0] in tops and not (ROOT / path).exists())
    )  # fmt: skip


@cache
def _anchors(page: Path) -> set[str]:
    return anchors_of(page.read_text())


def test_every_link_of_the_documents_has_a_target() -> None:
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

    assert len(pages) > 10
    assert [link for page in pages for link in broken_links(page)] == []


def test_every_page_of_docs_is_in_its_index() -> None:
    folder = ROOT / "docs"
    linked = {(folder / link.partition("#")[0]).resolve() for link in links_of((folder / "README.md").read_text())}

    assert {path.name for path in folder.rglob("*.md")} - {path.name for path in linked} - {"README.md"} == set(), (
        "add it there"
    )


def test_a_link_to_a_missing_file_or_heading_is_reported(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## A part, of it\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#a-part-of-it) [c](other.md#twice-1) [d](#own) [e](https://example.org/x)\n"
        "# Own\n[f](gone.md) [g](other.md#gone) [h](#gone) `[i](gone.md)`\n```\n[j](gone.md)\n```\n"
    )

    assert broken_links(page) == [
        "page.md: gone.md: no such file",
        "page.md: other.md#gone: no such heading in the page",
        "page.md: #gone: no such heading in the page",
    ]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_path_that_a_page_for_developers_names_exists(page: str) -> None:
    named = paths_of((ROOT / page).read_text())

    assert len(named) > 40
    assert missing(named) == []


def test_the_architecture_names_every_folder_of_the_packages() -> None:
    named = paths_of((ROOT / "docs" / "architecture.md").read_text())
    tops = (ROOT / "scripts" / "packages").read_text().split()
    folders = {path.parent.relative_to(ROOT) for top in tops for path in (ROOT / top).rglob("__init__.py")}

    assert sorted(str(folder) for folder in folders if f"{folder}/" not in named) == []


def test_a_path_that_does_not_exist_is_reported() -> None:
    text = "`broker/store/files.py`, `store/files.py`, `files.py`, `broker/gone.py`; `rmq-admin top` or `a / b`.\n"
    coming = "Coming: `net/gone.py`, later.\n"
    block = "```none\nwire/gone/  tests/scripts/  bench/peers/  peers/  --> gone.c\n```\n"

    assert missing(paths_of(text + coming + block)) == ["bench/peers/", "broker/gone.py", "gone.c", "wire/gone/"]
