"""``rmq-admin broker config``: what a running broker works with, and what of that is not the default."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rmq.broker.config import BrokerConfig
from rmq.cli.admin.broker import COLUMNS, in_force, settings_table
from rmq.cli.rmq_admin import command
from rmq.cli.shell import exit_codes
from rmq.cli.shell.settings import load


def config(broker: str, *arguments: str) -> Result:
    asked = ["broker", "config", *arguments, "--broker", broker]
    return CliRunner().invoke(command, asked, prog_name="rmq-admin")


def test_what_differs_is_marked_with_its_default() -> None:
    told = in_force(asdict(BrokerConfig(flush="async", data_dir="/d")))
    changed = [setting for setting in told if setting.changed]

    assert [(setting.setting, setting.value, setting.default) for setting in changed] == [
        ("data_dir", "/d", ""),
        ("flush", "async", "sync"),
    ]
    lines = [line.split() for line in settings_table(told).splitlines()]
    assert lines[0] == [name.upper() for name in COLUMNS]
    assert ["flush", "async", "sync"] in lines
    assert ["data_dir", "/d", '""'] in lines
    assert ["grace_s", "5.0"] in lines
    assert max(map(len, settings_table(told).splitlines())) <= 80


def test_a_setting_of_a_later_broker_is_shown_all_the_same() -> None:
    (told,) = in_force({"of_tomorrow": "x\x1b"})

    assert (told.changed, told.default, told.help) == (True, None, "")
    assert settings_table([told]).splitlines()[1].split() == ["of_tomorrow", "x\\x1b", "None"]


@pytest.mark.slow
def test_the_settings_of_a_running_broker_as_table_toml_and_json(broker: str) -> None:
    rows = json.loads(config(broker, "--json").stdout)
    assert [row["setting"] for row in rows] == [field.name for field in fields(BrokerConfig)]
    assert {row["setting"] for row in rows if row["changed"]} >= {"data_dir", "listen"}

    toml = config(broker, "--toml").stdout
    told = tomllib.loads(toml)
    assert told == {row["setting"]: row["value"] for row in rows}
    assert "\n# host:port to bind; port 0 picks a free one\nlisten = " in toml

    changed = config(broker, "--changed").stdout.splitlines()
    assert [line.split()[0] for line in changed[1:]] == [row["setting"] for row in rows if row["changed"]]


@pytest.mark.slow
def test_the_file_that_is_printed_can_be_given_to_a_broker(broker: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(config(broker, "--toml").stdout)

    again = load(BrokerConfig, prefix="RMQ_BROKER_", file=file, environ={})

    assert asdict(again) == {row["setting"]: row["value"] for row in json.loads(config(broker, "--json").stdout)}


def test_only_one_form_can_be_asked_for() -> None:
    result = config("127.0.0.1:1", "--toml", "--json")

    assert (result.exit_code, result.stderr) == (
        exit_codes.USAGE,
        "rmq-admin: --toml and --json exclude each other\n",
    )
