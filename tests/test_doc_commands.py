"""Every command line in README.md and docs/ names a command that exists, with options that it has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from refdocs.pages import programs

ROOT = Path(__file__).parents[1]
# At the start of a line, after a variable or the folder of the command, or where the shell starts another one.
_BEGINS = r"(?:^\s*|[|;&(]\s*|/|^(?:\w+=\S+\s+)+)"
_TYPED = re.compile(_BEGINS + r"(rmq-(?:admin|broker|produce|consume|bench)(?![\w.@-])[^`\n]*)")
_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "2>", "<", "#"}
_PROGRAMS = programs()


def lines_of(text: str) -> list[str]:
    """Return the command lines of a page: those of shell blocks, and inline code."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`(rmq-[^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL))
    typed = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()] + inline
    return [match[1] for line in typed for match in _TYPED.finditer(line)]


def fault_of(line: str) -> str | None:
    """Return the fault of a command line, or None."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        return f"{line}: {error}"
    end = next((at for at, word in enumerate(words) if word in _ENDS or word.startswith((">", "2>"))), len(words))
    command, rest = _PROGRAMS[words[0]], words[1:end]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name not in command.commands:
            return None if not name.isidentifier() or name.isupper() else f"{line}: there is no command {name!r}"
        command = command.commands[name]
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
    unknown = [word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    if unknown:
        return f"{line}: there is no option {unknown[0]}"
    surplus = _arguments(command, rest)[sum(isinstance(param, click.Argument) for param in command.params) :]
    return f"{line}: it does not take {surplus[0]}" if surplus and not isinstance(command, click.Group) else None


def _arguments(command: click.Command, words: list[str]) -> list[str]:
    """Return the positional arguments, without placeholders of usage lines."""
    with_value = [param for param in command.params if isinstance(param, click.Option) and not param.is_flag]
    takes = {name for param in with_value for name in param.opts}
    found, is_value = [], False
    for word in words:
        if not is_value and not word.startswith(("-", "[", "...")):
            found.append(word)
        is_value = word in takes
    return found


def sentences_of(source: str) -> list[str]:
    """Return the command lines that messages in the code suggest, between two backquotes."""
    return [match[1] for quoted in re.findall(r"`(rmq-[^`\n]+)`", source) for match in _TYPED.finditer(quoted)]


@pytest.mark.parametrize("folder", (ROOT / "scripts" / "packages").read_text().split())
def test_every_command_line_in_a_message_exists(folder: str) -> None:
    sources = [path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))]
    faults = [fault_of(line) for source in sources for line in sentences_of(source)]

    assert [fault for fault in faults if fault is not None] == []


@pytest.mark.parametrize("page", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))])
def test_every_command_line_of_a_page_exists(page: str) -> None:
    faults = [fault_of(line) for line in lines_of((ROOT / page).read_text())]

    assert [fault for fault in faults if fault is not None] == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("rmq-admin group reset-offset g --topic t --to first --dry-run", None),
        ("rmq-admin topic list --json | less", None),
        ("rmq-broker start --data-dir /x -o a=b &", None),
        ("rmq-admin group", None),
        ("rmq-admin COMMAND --help", None),
        ("rmq-admin dlq list GROUP", "it does not take GROUP"),
        ("rmq-admin explain billing orders --all", None),
        ("rmq-admin gruop list", "there is no command 'gruop'"),
        ("rmq-admin group list --jsn  # all", "there is no option --jsn"),
        ("rmq-consume --orderly --topik t", "there is no option --topik"),
    ],
)
def test_a_wrong_command_line_is_reported(line: str, fault: str | None) -> None:
    found = fault_of(line)

    assert found == (None if fault is None else f"{line}: {fault}")


def test_lines_are_found_in_blocks_and_in_sentences() -> None:
    sentence = "See `rmq-admin top` and `rmq-broker.service`.\n\n"
    block = "```sh\necho x | rmq-produce --topic t\nA=1 rmq-bench produce\njournalctl -u rmq-broker -f\n```\n\n"
    shown = "```\nrmq-admin shown\n```\n"

    assert lines_of(sentence + block + shown) == ["rmq-produce --topic t", "rmq-bench produce", "rmq-admin top"]
