"""``rmq-admin completion``: a script that lets a shell complete all commands of rmq."""

from __future__ import annotations

import importlib
from typing import ClassVar, Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from .command import Command

PROGRAMS: Final = ("rmq-admin", "rmq-broker", "rmq-produce", "rmq-consume", "rmq-bench")


class _Bash(BashComplete):
    """As click's, but with the line cut at spaces alone: bash cuts 127.0.0.1:10911 at the colon, too."""

    source_template: ClassVar[str] = """\
%(complete_func)s() {
    local line=${COMP_LINE:0:COMP_POINT} kind value
    local -a words
    read -ra words <<< "$line"
    local at=$(( ${#words[@]} - 1 ))
    [[ $line == *[[:space:]] ]] && at=${#words[@]}
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_WORDS="$line" COMP_CWORD=$at %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def source(self) -> str:
        """The script; not asking the bash that is found here, which may not be the one that reads it."""
        return ShellComplete.source(self)


SHELLS: Final[dict[str, type[ShellComplete]]] = {"bash": _Bash, "zsh": ZshComplete, "fish": FishComplete}


@click.command(
    cls=Command,
    examples="""
    rmq-admin completion bash > ~/.rmq-completion.bash
    echo '. ~/.rmq-completion.bash' >> ~/.bashrc
    rmq-admin completion zsh > ~/.rmq-completion.zsh
    echo '. ~/.rmq-completion.zsh' >> ~/.zshrc
    rmq-admin completion fish > ~/.config/fish/conf.d/rmq.fish
    """,
)
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """
    Print a script that lets SHELL complete rmq-admin, rmq-broker, rmq-produce, rmq-consume and rmq-bench.

    Write it to a file that your shell reads when it starts, as the examples show (in .zshrc behind compinit), and open
    a new shell. Then the tab key completes commands, options and their values; names of topics and groups are those of
    the broker that --broker or RMQ_BROKER names, if it answers within half a second.
    """
    click.echo(script(shell), nl=False)


def script(shell: str) -> str:
    """What a shell has to read."""
    return "\n".join(_completer(shell, program).source().strip() + "\n" for program in PROGRAMS)


def _completer(shell: str, program: str) -> ShellComplete:
    name = program.replace("-", "_")
    command = importlib.import_module(f"rmq.cli.{name}").command
    return SHELLS[shell](command, {}, program, f"_{name}_COMPLETE".upper())
