"""Options generated from config classes, the annotated files that name every field, and points in time."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rmq.broker.config import BrokerConfig
from rmq.cli.shell import exit_codes
from rmq.cli.shell.command import Command
from rmq.cli.shell.options import broker_option, config_options, parse_duration, parse_time
from rmq.cli.shell.settings import as_toml, load, settings_of
from rmq.consumer.config import ConsumerConfig

CONF = Path(__file__).parents[3] / "conf"
FILES: list[tuple[str, Any, str]] = [
    ("broker.toml", BrokerConfig, "rmq-broker start"),
    ("consumer.toml", ConsumerConfig, "rmq-consume"),
]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A config class."""

    listen: str = field(default="h:1", metadata={"help": "where to listen"})
    size_bytes: int = field(default=8, metadata={"help": "a size"})


@click.command(cls=Command)
@config_options(Sample, "S_", {"listen": "--listen HOST:PORT"}, {"listen": "RMQ_LISTEN"})
def sample(config: Sample) -> None:
    """Show the config."""
    click.echo(repr(config))


def shown(*arguments: str, **environ: str) -> str:
    result = CliRunner().invoke(sample, arguments, env=environ, prog_name="try")
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_source_reaches_the_command(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('listen = "file:1"\nsize_bytes = 1')

    assert shown() == f"{Sample()!r}\n"
    assert shown("--config", str(file)) == f"{Sample(listen='file:1', size_bytes=1)!r}\n"
    assert shown("--config", str(file), S_SIZE_BYTES="1k") == f"{Sample(listen='file:1', size_bytes=1000)!r}\n"
    assert shown(RMQ_LISTEN="alias:1") == f"{Sample(listen='alias:1')!r}\n"
    assert shown("-o", "listen=o:1", S_LISTEN="env:1") == f"{Sample(listen='o:1')!r}\n"
    assert shown("--listen", "flag:1", "-o", "listen=o:1") == f"{Sample(listen='flag:1')!r}\n"


def test_show_config_prints_what_would_be_used_and_runs_nothing() -> None:
    text = shown("--show-config", "--listen", "here:9")

    assert text == as_toml(Sample(listen="here:9"), "try")
    assert "Sample(" not in text


@pytest.mark.parametrize("arguments", [["-o", "lisen=x"], ["-o", "size_bytes=much"], ["--config", "gone.toml"]])
def test_a_wrong_setting_is_one_line_and_the_code_for_it(arguments: list[str]) -> None:
    result = CliRunner().invoke(sample, arguments, prog_name="try")

    assert result.exit_code == exit_codes.CONFIG
    assert result.stderr.startswith("try: ")
    assert result.stderr.count("\n") == 1


def test_a_variable_with_a_typing_error_is_pointed_out() -> None:
    result = CliRunner().invoke(sample, env={"S_LISTE": "x:1"})

    assert result.exit_code == 0
    assert result.stderr == "warning: S_LISTE is not a setting: did you mean S_LISTEN?\n"


def test_the_help_of_a_flag_comes_from_its_field() -> None:
    text = " ".join(CliRunner().invoke(sample, ["--help"]).stdout.split())

    assert "--listen HOST:PORT Where to listen. [default: h:1; env var: RMQ_LISTEN]" in text


def test_the_broker_is_a_flag_then_a_variable_then_the_usual_port() -> None:
    @click.command(cls=Command)
    @broker_option
    def command(broker: str) -> None:
        click.echo(broker)

    runner = CliRunner()
    assert runner.invoke(command, env={"RMQ_BROKER": None}).stdout == "127.0.0.1:10911\n"
    assert runner.invoke(command, env={"RMQ_BROKER": "a:1"}).stdout == "a:1\n"
    assert runner.invoke(command, ["--broker", "b:2"], env={"RMQ_BROKER": "a:1"}).stdout == "b:2\n"


@pytest.mark.parametrize(("name", "config", "command"), FILES)
def test_the_annotated_file_names_every_field_once_with_its_default(name: str, config: Any, command: str) -> None:
    text = (CONF / name).read_text()

    hint = f"run: {command} --show-config > conf/{name}"
    assert tomllib.loads(text) == asdict(config()), hint
    for setting in settings_of(config).values():
        assert len(re.findall(rf"^{setting.name}\b", text, re.MULTILINE)) == 1, hint
        assert f"# {setting.help}\n{setting.name} = " in text, hint


@pytest.mark.parametrize(("name", "config", "command"), FILES)
def test_the_annotated_file_is_what_show_config_prints(name: str, config: Any, command: str) -> None:
    assert (CONF / name).read_text() == as_toml(config(), command), f"run: {command} --show-config > conf/{name}"


@pytest.mark.parametrize(("name", "config", "command"), FILES)
def test_the_annotated_file_loads_to_the_defaults(name: str, config: Any, command: str) -> None:
    assert load(config, prefix="X_", file=CONF / name, environ={}) == config()


@pytest.mark.parametrize("config", [BrokerConfig, ConsumerConfig])
def test_every_field_has_its_line_of_help_and_can_be_set_as_text(config: Any) -> None:
    for setting in settings_of(config).values():
        assert setting.help, setting.name
        assert "\n" not in setting.help
        text = f"{setting.name}={setting.default}"
        assert load(config, prefix="X_", environ={}, assignments=[text]) == config()
        assert load(config, prefix="X_", environ={f"X_{setting.name.upper()}": str(setting.default)}) == config()


NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("10m", timedelta(minutes=10)),
        ("1.5h", timedelta(minutes=90)),
        ("30 s", timedelta(seconds=30)),
        ("250ms", timedelta(milliseconds=250)),
        ("2d", timedelta(days=2)),
        ("0s", timedelta(0)),
    ],
)
def test_a_duration_is_that_long_ago(text: str, ago: timedelta) -> None:
    assert parse_time(text, NOW) == NOW - ago


def test_an_iso_time_with_a_zone_is_what_it_says() -> None:
    assert parse_time("2026-01-31T13:00+01:00", NOW) == NOW
    assert parse_time(" 2026-01-31T12:00:00.000Z", NOW) == NOW


def test_a_time_since_1970_is_in_seconds_or_milliseconds() -> None:
    assert parse_time("@1769860800", NOW) == NOW
    assert parse_time("@1769860800250", NOW) == NOW + timedelta(milliseconds=250)
    for text in ("@", "@x", "@999999999999999"):
        with pytest.raises(ValueError, match="seconds since 1970"):
            parse_time(text, NOW)


def test_an_iso_time_without_a_zone_is_local() -> None:
    assert parse_time("2026-01-31 12:00", NOW) == datetime(2026, 1, 31, 12, 0).astimezone()
    assert parse_time("2026-01-31", NOW) == datetime(2026, 1, 31).astimezone()


@pytest.mark.parametrize("text", ["", "10", "m", "10 weeks", "-5m", "yesterday", "2026-13-01", "9" * 40 + "d"])
def test_anything_else_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: write 10m"):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("1500ms", 1.5), ("2m", 120), ("1h", 3600), (" 1.5 d", 129_600), ("0s", 0)],
)
def test_a_duration_is_a_number_with_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "s", "-5s", "5 weeks", "2026-01-31"])
def test_an_invalid_duration_is_refused_with_advice(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: write 10s, 1500ms, 2m, 1h or 1d"):
        parse_duration(text)
