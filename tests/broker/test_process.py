from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmq.broker.process import cpu_s, resident_bytes


def test_memory_in_use_is_the_second_number_in_pages(tmp_path: Path) -> None:
    statm = tmp_path / "statm"
    statm.write_text("100 25 3 4 5 6 7\n")

    assert resident_bytes(statm) == 25 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("content", [None, "", "1", "1 x"])
def test_where_the_system_does_not_tell_it_is_unknown(tmp_path: Path, content: str | None) -> None:
    statm = tmp_path / "statm"
    if content is not None:
        statm.write_text(content)

    assert resident_bytes(statm) is None


def test_processor_time_never_falls() -> None:
    first = cpu_s()

    assert cpu_s() >= first >= 0.0
