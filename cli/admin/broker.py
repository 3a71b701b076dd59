"""``rmq-admin broker``: settings and metrics of a broker, backups of its log, verification of a data directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from ..output.render import counted, cut, printable, table, to_json
from ..output.terminal import progress_bar
from ..shell import exit_codes
from ..shell.command import Failure, Group, store_failure
from ..shell.connect import ask
from ..shell.options import admin_options, json_option, log_options
from ..shell.settings import settings_of, toml_of


@click.group(
    cls=Group,
    examples="""
    rmq-admin broker stats
    rmq-admin broker config
    rmq-admin broker backup /backups/monday
    rmq-admin broker verify-store /backups/monday
    """,
)
def broker() -> None:
    """Inspect, copy and verify a broker."""


@broker.command(
    examples="""
    rmq-admin broker config
    rmq-admin broker config --changed
    rmq-admin broker config --toml > broker.toml
    rmq-admin broker config --json | python3 -m json.tool
    """,
)
@click.option("--changed", is_flag=True, help="Only settings that differ from the default.")
@click.option("--toml", "as_toml", is_flag=True, help="Print a file for `rmq-broker start --config`.")
@admin_options
def config(changed: bool, as_toml: bool, broker: str, as_json: bool) -> None:
    """
    Show the settings of the running broker.

    Wherever they come from: file, environment, command line or defaults. DEFAULT is filled where the value differs.
    With --json: one array of objects.
    """
    if as_toml and as_json:
        raise click.UsageError("--toml and --json cannot be combined.")
    settings = in_force(ask(broker, lambda admin: admin.config()))
    shown = [setting for setting in settings if setting.changed or not changed]
    if as_json:
        click.echo(to_json([setting._asdict() for setting in shown]))
    elif as_toml:
        heading = f"Settings of the broker at {broker}."
        click.echo(toml_of(heading, [(setting.value, setting.setting, setting.help) for setting in shown]), nl=False)
    else:
        click.echo(settings_table(shown), nl=False)


@broker.command(
    examples="""
    rmq-admin broker stats
    rmq-admin broker stats --json
    """,
)
@admin_options
def stats(broker: str, as_json: bool) -> None:
    """Show the broker's metrics: log, flush, upkeep, connections."""
    numbers = ask(broker, lambda admin: admin.stats())
    rows = [(part, name, value) for part, values in numbers.items() for name, value in values.items()]
    click.echo(to_json(numbers) if as_json else table(("part", "name", "value"), rows), nl=as_json)


@broker.command(
    examples="""
    rmq-admin broker backup /backups/monday
    rmq-admin broker backup --link ~/.rmq/snapshot
    rmq-broker restore /backups/monday ~/.rmq/data
    """,
)
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--link", is_flag=True, help="Hard-link closed segments: takes no space, but stays on the same disk.")
@admin_options
def backup(target: Path, link: bool, broker: str, as_json: bool) -> None:
    """
    Copy the log of a running broker, as far as it is durable now, to the new folder TARGET.

    Run it on the broker's machine, as a user who may read its data directory. A broker started on the copy has every
    message and every change that was acknowledged before the command began.
    """
    from rmq.broker.offline.backup import Backup
    from rmq.broker.store.directory import StoreError

    numbers = ask(broker, lambda admin: admin.stats())
    source, log = Path(numbers["broker"]["data_dir"]), numbers["log"]
    with progress_bar("copying", log["log_durable"] - log["log_start"]) as advance:
        try:
            copied = Backup(
                source, target, log["log_durable"], store_id=log["store_id"], link=link, progress=advance
            ).run()
        except (OSError, StoreError) as error:
            raise store_failure(error, target, "name another folder") from error
    if as_json:
        click.echo(to_json({**copied._asdict(), "source": str(source), "target": str(target)}))
    else:
        size = copied.end - copied.start
        segments = counted(copied.segments, "segment")
        click.echo(f"{target}: {segments}, {size} bytes, up to position {copied.end}")
    if copied.missing_bytes:
        text = "bytes are missing in the original: check the copy with `rmq-admin broker verify-store`"
        click.echo(f"{copied.missing_bytes} {text}", err=True)


@broker.command(
    "accept-history",
    examples="""
    rmq-admin broker accept-history
    """,
)
@admin_options
def accept_history(broker: str, as_json: bool) -> None:
    """
    Let readers that keep their own position continue in a restored store.

    After a restore, broadcasting members, saved Spark ranges and tails that had read past the backup stop, because the
    messages after it differ. This command lets them continue at the offset where both histories part. Groups do not
    need it: they continue by themselves.
    """
    accepted = ask(broker, lambda admin: admin.accept_history())
    if as_json:
        return click.echo(to_json({"store_id": f"{accepted.store_id:016x}", "before": accepted.before}))
    done = "was accepted before" if accepted.before else "is accepted"
    click.echo(f"the history of store {accepted.store_id:016x} {done}: readers continue where it parts from theirs")


@broker.command(
    "verify-store",
    examples="""
    rmq-admin broker verify-store ~/.rmq/data
    rmq-admin broker verify-store /backups/monday --json
    """,
)
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
@log_options("error")
def verify_store(directory: Path, as_json: bool) -> None:
    """
    Check every byte of DIRECTORY, the data directory of a stopped broker, and every index against the log.

    Changes nothing. Exit codes: 0 sound, 65 messages are damaged, 1 only files that the next start rebuilds from the
    log are damaged, 66 DIRECTORY does not exist, 71 it cannot be read, has no log, or is in use by a broker. An
    incomplete batch at the end is what a crash leaves of unacknowledged sends: the next start moves it to quarantine/.
    """
    from rmq.broker.offline.verify import Verification
    from rmq.broker.store.directory import StoreError

    log = directory / "commitlog"
    try:
        directory.stat()
    except FileNotFoundError as error:
        text = f"{directory} does not exist: name the data directory of a broker or a backup"
        raise Failure(text, exit_codes.NO_INPUT) from error
    except OSError as error:
        raise store_failure(error, directory, "name another folder") from error
    try:
        size = sum(path.stat().st_size for path in log.iterdir()) if log.is_dir() else 0
        with progress_bar("checking", size) as advance:
            report = Verification(directory, progress=advance).run()
    except (OSError, StoreError) as error:
        raise store_failure(error, directory, "name another folder") from error
    if as_json:
        findings = [finding._asdict() for finding in report.findings]
        click.echo(to_json({**report._asdict(), "findings": findings}))
    else:
        for finding in report.findings:
            click.echo(f"{'LOG' if finding.in_log else 'outside the log'}: {finding.place}: {finding.text}")
        tail = f", {report.torn} bytes of an incomplete batch at the end" if report.torn else ""
        queues = counted(report.queues, "queue")
        click.echo(f"{report.batches} batches, {report.messages} messages in {queues}{tail}: {_verdict(report)}")
    if report.findings:
        raise click.exceptions.Exit(exit_codes.FAILURE if report.log_is_sound else exit_codes.DATA_ERROR)


def _verdict(report: Any) -> str:
    if not report.findings:
        return "sound"
    return "the log is sound, the next start rebuilds the rest" if report.log_is_sound else "damaged"


COLUMNS = ("setting", "value", "default")
SHOWN = 40  # characters of a value in the table


class InForce(NamedTuple):
    """A setting of a running broker; ``default`` is that of this version of rmq, None if it has no such setting."""

    setting: str
    value: Any
    default: Any
    changed: bool
    help: str


def in_force(values: Mapping[str, Any]) -> list[InForce]:
    """Compare the settings of a broker with the defaults; a broker of another version may have others."""
    from rmq.broker.config import BrokerConfig

    known = settings_of(BrokerConfig)
    settings = []
    for name, value in values.items():
        setting = known.get(name)
        default = None if setting is None else setting.default
        settings.append(InForce(name, value, default, value != default, "" if setting is None else setting.help))
    return settings


def settings_table(shown: Sequence[InForce]) -> str:
    """Return the settings as a table."""
    return table(COLUMNS, [[s.setting, _cell(s.value), _cell(s.default) if s.changed else ""] for s in shown])


def _cell(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else printable(str(value))
    return cut(text, SHOWN) or '""'
