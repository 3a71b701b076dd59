"""
``make bench-report``: the part of docs/benchmarks.md that is made from measurements, and its plots.

    make bench-report                      from docs/benchmarks.json, which is kept
    make bench-report RUN=1                measures first, some 12 minutes, and keeps that instead

The part stands between two comments; what is written around it stays. Plots are docs/images/bench-*.svg; those that no
longer belong to anything are removed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .findings import NotAReport, read
from .report_plots import plots
from .report_text import text

BEGINS = "<!-- made by `make bench-report` from benchmarks.json, as are the plots; not by hand -->"
ENDS = "<!-- the end of what `make bench-report` makes -->"


def main() -> None:
    """Parse the command line, write the files that changed."""
    parser = argparse.ArgumentParser(description="Make the report of the benchmarks from their JSON.")
    parser.add_argument("docs", nargs="?", type=Path, default=Path("docs"), help="the folder (default: %(default)s)")
    docs = parser.parse_args().docs
    try:
        made = report(docs)
    except (NotAReport, OSError, ValueError) as error:
        sys.exit(f"bench-report: {error}")
    for path, content in made.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    for path in stale_plots(docs, made):
        path.unlink()


def report(docs: Path) -> dict[Path, str]:
    """
    Every file of the report, and what is to be in it.

    Raises:
        NotAReport: the JSON is of something else, or the page has no place for the report.
    """
    found = read(json.loads((docs / "benchmarks.json").read_text()))
    drawn = plots(found)
    page = docs / "benchmarks.md"
    made = {docs / "images" / plot.name: plot.svg for plot in drawn}
    return {page: placed(page.read_text(), text(found, drawn)), **made}


def placed(page: str, part: str) -> str:
    """The page with this part in its place."""
    before, begins, rest = page.partition(BEGINS)
    _, ends, after = rest.partition(ENDS)
    if not begins or not ends:
        raise NotAReport(f"the page has no place for the report: a line {BEGINS} and a line {ENDS}")
    return f"{before}{BEGINS}\n\n{part.strip()}\n\n{ENDS}{after}"


def stale_plots(docs: Path, made: dict[Path, str]) -> list[Path]:
    """Plots of a report that was."""
    return sorted(path for path in (docs / "images").glob("bench-*.svg") if path not in made)


if __name__ == "__main__":
    main()
