"""
Options that several commands take, and options generated from config classes, so that each is declared once.

``config_options(BrokerConfig, "RMQ_BROKER_", {"listen": "--listen HOST:PORT"})`` gives a command ``--config``,
``-o``, ``--show-config`` and ``--listen``, and passes the finished config to its callback. Points in time and
durations are parsed here, too.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq.wire.address import parse_address
from rmq.wire.errors import ConfigError

from . import logs
from .settings import Setting, as_toml, load, settings_of, suspicious

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DEFAULT_BROKER = "127.0.0.1:10911"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _address(ctx: click.Context, param: click.Parameter, text: str) -> str:
    """The callback of ``--broker``: says where an address that cannot be comes from, since that is easily forgotten."""
    try:
        parse_address(text)
    except ConfigError as error:
        is_set = ctx.get_parameter_source(str(param.name)) is click.core.ParameterSource.ENVIRONMENT
        raise ConfigError(f"{'RMQ_BROKER in the environment' if is_set else '--broker'}: {error}") from error
    return text


broker_option: Decorator = click.option(
    "--broker",
    metavar="HOST:PORT",
    envvar="RMQ_BROKER",
    default=DEFAULT_BROKER,
    show_default=True,
    show_envvar=True,
    callback=_address,
    help="Broker to connect to.",
)


def _message_id(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    from rmq.wire.batch.batch import split_message_id

    try:
        split_message_id(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}; receipts and `rmq-admin message tail TOPIC --ids` show them") from error
    return text


def key_of_option(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """Refuse a key that no message has; a callback of options."""
    if text is not None and not text:
        raise click.BadParameter("it is empty, and no key of a message is")
    return text


def index_key_of_option(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """Refuse an index key that no message has; a callback of options."""
    if text is not None and (not text or any(letter.isspace() for letter in text)):
        raise click.BadParameter(f"{text!r} is empty or holds white space, and no index key of a message does")
    return text


def refuse_two_keys(key: str | None, index_key: str | None) -> None:
    """Refuse ``--key`` together with ``--index-key``."""
    if key is not None and index_key is not None:
        raise click.UsageError("--key and --index-key exclude each other.")


message_id_argument: Decorator = click.argument("message_id", metavar="ID", callback=_message_id)
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def log_options(level: str) -> Decorator:
    """Add ``--log-level`` and ``--log-format``, and set logging up before the command runs."""

    def decorate(callback: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(callback)
        def configured(*args: Any, log_level: str, log_format: str, **more: Any) -> Any:
            logs.configure(log_level, log_format)
            return callback(*args, **more)

        formats = click.option(
            "--log-format",
            type=click.Choice(logs.FORMATS),
            default="auto",
            show_default=True,
            help="Format of log lines on standard error; auto: console on a terminal, else logfmt.",
        )
        levels = click.option(
            "--log-level",
            type=click.Choice(logs.LEVELS),
            default=level,
            show_default=True,
            help="Lowest level logged.",
        )
        return levels(formats(configured))

    return decorate


def admin_options(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Add what every command of rmq-admin that asks a broker takes: ``--json``, ``--broker`` and the log options."""
    return json_option(broker_option(log_options("error")(callback)))


def config_options(
    config: type[DataclassInstance], prefix: str, flags: Mapping[str, str], aliases: Mapping[str, str] | None = None
) -> Decorator:
    """
    Add the options that fill a config class; the callback gets it as ``config``.

    ``flags`` maps fields to an option and its placeholder, ``aliases`` to a second variable of the environment.
    """
    settings = settings_of(config)
    aliases = aliases or {}

    def decorate(callback: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(callback)
        def configured(
            *args: Any, config_file: Path | None, assignments: tuple[str, ...], show_config: bool, **more: Any
        ) -> Any:
            given = {name: more.pop(name) for name in flags}
            sources: dict[str, Any] = {"file": config_file, "environ": os.environ, "assignments": assignments}
            value = load(config, prefix=prefix, aliases=aliases, flags=given, **sources)
            if show_config:
                return click.echo(as_toml(value, click.get_current_context().command_path), nl=False)
            for warning in suspicious(config, prefix, os.environ):
                click.echo(f"warning: {warning}", err=True)
            return callback(*args, config=value, **more)

        named = [_flag(settings[name], option, prefix, aliases) for name, option in flags.items()]
        decorated: Callable[..., Any] = configured
        for option in reversed([*named, *_source_options(prefix)]):
            decorated = option(decorated)
        return decorated

    return decorate


def _flag(setting: Setting, option: str, prefix: str, aliases: Mapping[str, str]) -> Decorator:
    default = f"default: {setting.default}; " if setting.default not in ("", None) else ""
    name, _, metavar = option.partition(" ")
    variable = aliases.get(setting.name, prefix + setting.name.upper())
    return click.option(
        name,
        setting.name,
        metavar=metavar,
        help=f"{setting.help[:1].upper()}{setting.help[1:]}.  [{default}env var: {variable}]",
    )


def _source_options(prefix: str) -> list[Decorator]:
    return [
        click.option(
            "--config",
            "config_file",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="TOML file with settings; environment variables and other options override it.",
        ),
        click.option(
            "-o",
            "assignments",
            metavar="KEY=VALUE",
            multiple=True,
            help=f"Set anything that --show-config lists, like {prefix}KEY in the environment. May be repeated.",
        ),
        click.option("--show-config", is_flag=True, help="Print every setting and its value as TOML, and exit."),
    ]


_LONG = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\Z", re.ASCII)
_SINCE_1970 = re.compile(r"@(\d{1,15})\Z", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_time(text: str, now: datetime) -> datetime:
    """
    ``10m`` (that long before ``now``; ms, s, m, h or d), ``@1769860800`` (seconds since 1970, or milliseconds if it has
    12 digits and more), or a date or time as of ISO 8601, local unless it has a zone.

    Raises:
        ValueError: it is neither; the sentence says what would do.
    """
    ago, since = _LONG.match(text.strip()), _SINCE_1970.match(text.strip())
    try:
        if since is not None:
            return datetime.fromtimestamp(int(since[1]) / (1000 if len(since[1]) >= 12 else 1), UTC)
        if ago is not None:
            return now - timedelta(seconds=float(ago[1]) * _UNITS[ago[2]])
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(
            f"{text!r} is not a time: write 10m (ten minutes ago), 2026-01-31T12:00 (local time) or @1769860800 "
            "(seconds since 1970)"
        ) from error


def time_of_option(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | None:
    """The callback of an option that is a point in time."""
    try:
        return None if text is None else parse_time(text, datetime.now(UTC))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def parse_duration(text: str) -> float:
    """
    Seconds, of ``10s``, ``1500ms``, ``2m``, ``1h`` or ``1d``.

    Raises:
        ValueError: it is none of these; the sentence says what would do.
    """
    found = _LONG.match(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a duration: write 10s, 1500ms, 2m, 1h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def duration_of_option(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """The callback of an option that is a duration."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
