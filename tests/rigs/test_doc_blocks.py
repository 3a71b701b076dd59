"""Following a document shows where it is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rigs.doc_blocks import Follower, blocks, commands, missing, shape

DOCUMENT = """\
# Heading

Some text.

Put this into
`hello.py`:

```python
print("hello 17")
```

```sh
python hello.py  # prints it
echo "# not a comment"
```

```text
hello 18
```
"""


def test_blocks_have_a_language_a_line_and_the_file_that_is_named_before_them() -> None:
    python, sh, text = blocks(DOCUMENT)

    assert (python.language, python.file_name, python.line) == ("python", "hello.py", 8)
    assert python.text == 'print("hello 17")\n'
    assert (sh.language, sh.file_name) == ("sh", None)
    assert commands(sh) == ["python hello.py", 'echo "# not a comment"']
    assert (text.language, text.text) == ("text", "hello 18\n")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("orders/0 @0 key=o-17", "orders/3 @12 key=o-4"),
        ("vm@17#0a1b2c3d  held  59.9s", "other-host@4242#ffffffff    held   3.0s"),
        ("id 87c4765033967773000000000002e000", "id b11e3775027f24f0000000000002e000"),
        ("at 2026-11-16T14:02:43.392+00:00", "at 2027-01-01 00:00:00.1"),
        ("|tag|count|", "| tag | count |"),
        ("owner 60b5d1d9", "owner 12345678"),
    ],
)
def test_what_differs_from_day_to_day_has_the_same_shape(one: str, other: str) -> None:
    assert shape(one) == shape(other)


def test_words_are_no_numbers_and_dots_stand_for_anything() -> None:
    assert shape("created") != shape("paid")
    assert missing("a 1\n...\nb 2\n", "x\na 5\n") == ["b 2"]
    assert missing("a 1\na 2\n", "a 5\n") == ["a 2"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("```sh\nfalse\n```\n", "line 1: false ended with 1"),
        ("```sh\nfalse | true\n```\n", "ended with 1"),
        ("```python\n1\n```\n", "no file is named before it"),
        ("In `a.py`:\n```python\n1\n```\n", "never used: {'a.py'}"),
        ("```ruby\n1\n```\n", "what is a block of 'ruby'"),
    ],
)
def test_what_does_not_do_what_it_says_fails(tmp_path: Path, wrong: str, said: str) -> None:
    with Follower(tmp_path, endless=(), elsewhere=()) as reader, pytest.raises(AssertionError, match=said):
        reader.follow(wrong)


def test_output_that_does_not_come_fails_and_the_document_that_is_right_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Follower(tmp_path, endless=(), elsewhere=()) as reader:
        reader.follow(DOCUMENT)
        monkeypatch.setattr("rigs.doc_blocks.DEADLINE_S", 0.2)
        with pytest.raises(AssertionError, match="never printed: " + re.escape("['goodbye']")):
            reader.follow("```sh\necho hello\n```\n```text\ngoodbye\n```\n")
