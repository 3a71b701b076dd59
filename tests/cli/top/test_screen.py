from __future__ import annotations

import pytest

from rmq.cli.top.screen import is_end


@pytest.mark.parametrize(
    ("typed", "ends"),
    [(b"q", True), (b"Q", True), (b"xq", True), (b"\x03", True), (b"\x04", True), (b"\x1b", True), (b"\x1b[A", False),
     (b"x", False), (b"\r", False), (b" ", False)],
)  # fmt: skip
def test_keys_that_end_the_view(typed: bytes, ends: bool) -> None:
    assert is_end(typed) == ends
