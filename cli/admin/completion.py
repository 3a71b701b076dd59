"""``rmq-admin completion``: prints a script that completes all commands of rmq in a shell."""

from __future__ import annotations

import importlib
from typing import ClassVar, Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from ..shell.command import Command

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


class _Zsh(ZshComplete):
    """As click's, but ``--flush=a`` keeps what is before the value, and nothing is said between two letters."""

    source_template: ClassVar[str] = """\
%(complete_func)s() {
    local -a answer plain described
    local type key descr
    answer=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \\
        %(complete_var)s=zsh_complete %(prog_name)s 2>/dev/null)}")
    compset -P '--*='
    for type key descr in $answer; do
        case $type in
            plain) [[ $descr == _ ]] && plain+=("$key") || described+=("$key:$descr") ;;
            dir) _path_files -/ ;;
            file) _path_files -f ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described
    (( $#plain )) && compadd -V unsorted -a plain
}
compdef %(complete_func)s %(prog_name)s
"""


class _Fish(FishComplete):
    """As click's, but ``--flush=a`` keeps what is before the value, and a comma does not end a description."""

    source_template: ClassVar[str] = """\
function %(complete_func)s
    set -l before (string match -r -- '^--[^=]*=' (commandline -t))
    for answer in (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -t) \\
            %(prog_name)s 2>/dev/null)
        set -l parts (string split -m 1 , -- $answer)
        switch $parts[1]
            case dir
                string replace -r -- '^' "$before" (__fish_complete_directories $parts[2])
            case file
                string replace -r -- '^' "$before" (__fish_complete_path $parts[2])
            case plain
                echo -- "$before$parts[2]"
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


SHELLS: Final[dict[str, type[ShellComplete]]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


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
@click.argument("shell", metavar="SHELL", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """
    Print a script that lets SHELL complete rmq-admin, rmq-broker, rmq-produce, rmq-consume and rmq-bench.

    SHELL is bash, zsh or fish. Write it to a file that your shell reads when it starts, as the examples show (in
    .zshrc after compinit), and open a new shell. The tab key then completes commands, options and values; topics and
    groups come from the broker of --broker or RMQ_BROKER, if it answers within half a second.
    """
    click.echo(script(shell), nl=False)


def script(shell: str) -> str:
    """Return the script for a shell."""
    return "\n".join(_completer(shell, program).source().strip() + "\n" for program in PROGRAMS)


def _completer(shell: str, program: str) -> ShellComplete:
    name = program.replace("-", "_")
    command = importlib.import_module(f"rmq.cli.{name}").command
    return SHELLS[shell](command, {}, program, f"_{name}_COMPLETE".upper())
