"""``rmq-admin broker config``: the settings that a running broker works with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from ..output.render import printable, table, to_json
from ..shell.command import Command, run
from ..shell.options import broker_option, json_option, log_options
from ..shell.reach import admin_of
from ..shell.settings import settings_of, toml_of

COLUMNS = ("setting", "value", "default")
SHOWN = 40  # characters of a value in the table


class InForce(NamedTuple):
    """A setting of a running broker; ``default`` is what this version of rmq has, None for one it does not know."""

    setting: str
    value: Any
    default: Any
    changed: bool
    help: str


@click.command(
    cls=Command,
    examples="""
    rmq-admin broker config
    rmq-admin broker config --changed
    rmq-admin broker config --toml > broker.toml
    rmq-admin broker config --json | python3 -m json.tool
    """,
)
@click.option("--changed", is_flag=True, help="Only what differs from the default.")
@click.option("--toml", "as_toml", is_flag=True, help="Print a file for rmq-broker start --config.")
@json_option
@broker_option
@log_options("error")
def config(changed: bool, as_toml: bool, broker: str, as_json: bool) -> None:
    """
    Show the settings that the running broker works with.

    Whatever they come from: its file, the environment, the command line, or the defaults. The last column is filled
    where the value differs from the default. With --json: one array of objects.
    """
    if as_toml and as_json:
        raise click.UsageError("--toml and --json exclude each other.")
    told = in_force(run(_config(broker)))
    shown = [setting for setting in told if setting.changed or not changed]
    if as_json:
        click.echo(to_json([setting._asdict() for setting in shown]))
    elif as_toml:
        heading = f"The settings of the broker at {broker}."
        click.echo(toml_of(heading, [(setting.value, setting.setting, setting.help) for setting in shown]), nl=False)
    else:
        click.echo(settings_table(shown), nl=False)


async def _config(broker: str) -> dict[str, Any]:
    async with admin_of(broker) as admin:
        return await admin.config()


def in_force(values: Mapping[str, Any]) -> list[InForce]:
    """The settings of a broker beside the defaults; one of another version may have others."""
    from rmq.broker.config import BrokerConfig

    known = settings_of(BrokerConfig)
    told = []
    for name, value in values.items():
        setting = known.get(name)
        default = None if setting is None else setting.default
        told.append(InForce(name, value, default, value != default, "" if setting is None else setting.help))
    return told


def settings_table(shown: Sequence[InForce]) -> str:
    """The settings for people; without any, the heading alone."""
    return table(COLUMNS, [[s.setting, _cell(s.value), _cell(s.default) if s.changed else ""] for s in shown])


def _cell(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else printable(str(value))
    return (text if len(text) <= SHOWN else text[: SHOWN - 3] + "...") or '""'
