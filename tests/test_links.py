"""Every relative link in README.md and docs/ leads to a file that exists, and to a heading that it has."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from refdocs.markdown import anchor

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`+[^`\n]*`+")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_OUTSIDE = re.compile(r"[a-z]+:")


def links_of(text: str) -> list[str]:
    """Where a page leads, without what is code."""
    return _LINK.findall(_CODE.sub("", _FENCE.sub("", text)))


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings; the second of a name has a number."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#{1,6} +(.*?)\s*$", _FENCE.sub("", text), re.MULTILINE):
        name = anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


def broken_links(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    broken = []
    for link in links_of(page.read_text()):
        if _OUTSIDE.match(link):
            continue
        place, _, fragment = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists():
            broken.append(f"{page.name}: {link}: there is no such file")
        elif fragment and fragment not in _anchors(target):
            broken.append(f"{page.name}: {link}: the page has no such heading")
    return broken


@cache
def _anchors(page: Path) -> set[str]:
    return anchors_of(page.read_text())


def test_every_link_of_the_documents_leads_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

    assert len(pages) > 10
    assert [link for page in pages for link in broken_links(page)] == []


def test_every_page_of_docs_is_in_its_index() -> None:
    folder = ROOT / "docs"
    linked = {(folder / link.partition("#")[0]).resolve() for link in links_of((folder / "README.md").read_text())}

    assert {path.name for path in folder.rglob("*.md")} - {path.name for path in linked} - {"README.md"} == set(), (
        "add it there"
    )


def test_a_link_to_a_file_or_heading_that_is_not_there_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## A part, of it\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#a-part-of-it) [c](other.md#twice-1) [d](#own) [e](https://example.org/x)\n"
        "# Own\n[f](gone.md) [g](other.md#gone) [h](#gone) `[i](gone.md)`\n```\n[j](gone.md)\n```\n"
    )

    assert broken_links(page) == [
        "page.md: gone.md: there is no such file",
        "page.md: other.md#gone: the page has no such heading",
        "page.md: #gone: the page has no such heading",
    ]
