"""Completion: in a real bash where there is one, and by what each shell is given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq.cli.admin.completion import PROGRAMS, SHELLS, script
from rmq.cli.rmq_bench import command as bench
from rmq.client import Admin, Message, Producer
from rmq.wire.model import MessageQueue

from ..commands import admin


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_one_script_completes_all_programs(shell: str) -> None:
    result = admin("completion", shell)

    assert (result.exit_code, result.stdout) == (0, script(shell))
    for program in PROGRAMS:
        assert f"_{program.replace('-', '_')}_COMPLETE={shell}_complete".lower() in result.stdout.lower()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment in which the commands are called by their names."""
    folder = tmp_path_factory.mktemp("bin")
    for program in PROGRAMS:
        module = f"rmq.cli.{program.replace('-', '_')}"
        file = folder / program
        file.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        file.chmod(0o755)
    (folder / "completion.bash").write_text(script("bash"))
    (folder / "completion.fish").write_text(script("fish"))
    yield {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HERE": str(folder)}


def offered(programs: dict[str, str], line: str) -> list[str]:
    """What a tab at the end of the line offers, in bash; where there is none, what a shell would be told."""
    program, *words = line.split(" ")
    if shutil.which("bash") is None:
        return told(programs, program, words)
    function = f"_{program.replace('-', '_')}_completion"
    typed = f"""
        . "$HERE/completion.bash"
        compopt() {{ echo "compopt $*"; }}
        COMP_LINE=$1 COMP_POINT=${{#1}}
        {function} ${{1%% *}}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", typed, "bash", line], env=programs, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def told(programs: dict[str, str], program: str, words: list[str]) -> list[str]:
    """What click's own bash support answers, as the script shows it."""
    asked = {
        "COMP_WORDS": " ".join([program, *words]),
        "COMP_CWORD": str(len(words)),
        f"_{program.replace('-', '_')}_COMPLETE".upper(): "bash_complete",
    }
    answer = subprocess.run([program], env={**programs, **asked}, capture_output=True, text=True, check=False).stdout
    items = [line.split(",", 1) for line in answer.splitlines() if line]
    shell = [f"compopt -o {'dirnames' if kind == 'dir' else 'default'}" for kind, _ in items if kind != "plain"]
    return [*shell, *[value for kind, value in items if kind == "plain"]] + ([""] if shell or not items else [])


@pytest.mark.slow
async def test_a_tab_in_bash_offers_commands_options_values_and_names(
    programs: dict[str, str], broker: str, topic: str
) -> None:
    async with Producer(broker) as producer, Admin(broker) as admin:
        await producer.send(Message(topic, b"x"))
        await admin.reset_offsets(f"of-{topic}", {MessageQueue(topic, 0): 0})

    assert "describe" in offered(programs, "rmq-admin topic de")
    assert offered(programs, "rmq-admin group list --js") == ["--json"]
    # The address is one word, though bash cuts it at its colon.
    assert topic in offered(programs, f"rmq-admin topic describe --broker {broker} ")
    assert offered({**programs, "RMQ_BROKER": broker}, f"rmq-admin group describe of-{topic[:-1]}") == [f"of-{topic}"]
    assert offered({**programs, "RMQ_BROKER": broker}, f"rmq-consume --topic={topic[:-1]}") == [topic]
    assert offered(programs, "rmq-broker start --flush a") == ["async"]
    assert offered(programs, "rmq-broker start --data-dir ") == ["compopt -o dirnames", ""]


@pytest.mark.slow
def test_without_a_broker_completion_is_empty_and_silent(programs: dict[str, str], nowhere: str) -> None:
    assert offered(programs, f"rmq-admin topic describe --broker {nowhere} ") == [""]


def test_in_zsh_and_fish_a_value_after_an_equals_sign_keeps_its_option() -> None:
    assert "compset -P '--*='" in script("zsh")
    assert "compadd -V unsorted -a plain" in script("zsh")  # with -U it would replace the option, too
    assert """set -l before (string match -r -- '^--[^=]*=' (commandline -t))""" in script("fish")
    assert 'echo -- "$before$parts[2]"' in script("fish")


@pytest.mark.parametrize("shell", SHELLS)
def test_no_completion_script_prints_while_the_user_types(shell: str) -> None:
    assert script(shell).count("2>/dev/null") == len(PROGRAMS)


@pytest.mark.slow
def test_a_tab_in_fish_offers_whole_words_with_whole_descriptions(programs: dict[str, str]) -> None:
    if shutil.which("fish") is None:
        assert script("fish").count("string split -m 1 ,") == len(PROGRAMS)
        return
    typed = 'source "$HERE/completion.fish"; complete -C "rmq-broker start --flush=a"; complete -C "rmq-bench failo"'

    done = subprocess.run(
        ["fish", "--no-config", "-c", typed], env=programs, capture_output=True, text=True, check=True
    )

    assert done.stdout == "--flush=async\nfailover\t" + bench.commands["failover"].get_short_help_str() + "\n"


def test_help_says_how_to_install_it(tmp_path: Path) -> None:
    text = admin("completion", "--help").stdout

    assert "rmq-admin completion bash > ~/.rmq-completion.bash\n  echo '. ~/.rmq-completion.bash' >> ~/.bashrc" in text
