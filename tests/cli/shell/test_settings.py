"""Where settings come from, who wins, and what is refused."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from rmq.broker.config import BrokerConfig
from rmq.cli.shell.settings import as_toml, from_text, load, settings_of, suspicious
from rmq.wire.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A config class with one field of each kind."""

    name: str = field(default="n", metadata={"help": "a name"})
    size_bytes: int = field(default=8, metadata={"help": "a size"})
    pause_s: float = field(default=1.5, metadata={"help": "a pause"})
    loud: bool = field(default=False, metadata={"help": "how loud"})
    share_s: float | None = field(default=None, metadata={"help": "a share"})
    mode: Literal["sync", "async"] = field(default="sync", metadata={"help": "a mode"})

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            raise ConfigError("size_bytes must not be negative")


def loaded(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    assignments: tuple[str, ...] = (),
    **flags: str | None,
) -> Sample:
    return load(Sample, prefix="S_", file=file, environ=environ or {}, assignments=assignments, flags=flags)


def written(folder: Path, text: str) -> Path:
    file = folder / "sample.toml"
    file.write_text(text)
    return file


def test_without_any_source_every_setting_has_its_default() -> None:
    assert loaded() == Sample()


def test_each_source_wins_over_the_one_before(tmp_path: Path) -> None:
    file = written(tmp_path, 'name = "file"')

    assert loaded(file).name == "file"
    assert loaded(file, {"S_NAME": "env"}).name == "env"
    assert loaded(file, {"S_NAME": "env"}, ("name=o",)).name == "o"
    assert loaded(file, {"S_NAME": "env"}, ("name=o",), name="flag").name == "flag"


def test_an_alias_is_weaker_than_the_variable_of_its_own(tmp_path: Path) -> None:
    file = written(tmp_path, 'name = "file"')

    def name(**environ: str) -> str:
        return load(Sample, prefix="S_", file=file, environ=environ, aliases={"name": "OTHER"}).name

    assert name(OTHER="alias") == "alias"
    assert name(OTHER="alias", S_NAME="own") == "own"
    assert name() == "file"


def test_a_source_touches_only_what_it_names(tmp_path: Path) -> None:
    file = written(tmp_path, 'name = "file"\nsize_bytes = 3')

    assert loaded(file, {"S_PAUSE_S": "9"}, ("loud=yes",), name=None) == Sample(
        name="file", size_bytes=3, pause_s=9.0, loud=True
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("name", " spaced ", "spaced"),
        ("size_bytes", "12", 12),
        ("size_bytes", "1_000", 1000),
        ("size_bytes", "64MiB", 64 << 20),
        ("size_bytes", "64 mib", 64 << 20),
        ("size_bytes", "2k", 2000),
        ("size_bytes", "2KB", 2000),
        ("size_bytes", "1Gi", 1 << 30),
        ("pause_s", "2", 2.0),
        ("pause_s", "0.25", 0.25),
        ("loud", "TRUE", True),
        ("loud", "off", False),
        ("loud", "1", True),
        ("share_s", "none", None),
        ("share_s", "", None),
        ("share_s", "0.1", 0.1),
        ("mode", "async", "async"),
    ],
)
def test_text_becomes_the_type_of_the_field(name: str, text: str, value: Any) -> None:
    found = from_text(settings_of(Sample)[name], text, "here")

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text"), [("size_bytes", "12.5"), ("size_bytes", "ib"), ("pause_s", "soon"), ("loud", "maybe")]
)
def test_an_invalid_value_is_refused_with_its_origin(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^here: {name} must be .*'{text}'"):
        from_text(settings_of(Sample)[name], text, "here")


@pytest.mark.parametrize(("text", "value"), [("pause_s = 2", 2.0), ("pause_s = 2.5", 2.5)])
def test_a_file_may_give_a_whole_number_for_a_float(tmp_path: Path, text: str, value: float) -> None:
    assert loaded(written(tmp_path, text)).pause_s == value


def test_a_file_may_give_a_size_with_its_unit(tmp_path: Path) -> None:
    assert loaded(written(tmp_path, 'size_bytes = "4KiB"')).size_bytes == 4096


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("name = 3", "a quoted string"),
        ("size_bytes = true", "a whole number"),
        ("size_bytes = 1.5", "a whole number"),
        ('pause_s = "x"', "a number"),
        ("loud = 1", "true or false"),
        ("[name]\nx = 1", "a quoted string"),
    ],
)
def test_a_wrong_type_in_a_file_is_refused(tmp_path: Path, text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=rf"sample\.toml: \w+ must be {wanted}"):
        loaded(written(tmp_path, text))


@pytest.mark.parametrize(("key", "near"), [("nane", "name"), ("pause", "pause_s"), ("sizebytes", "size_bytes")])
def test_an_unknown_key_is_refused_with_the_nearest_valid_one(tmp_path: Path, key: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"no setting '{key}'; did you mean '{near}"):
        loaded(written(tmp_path, f"{key} = 1"))
    with pytest.raises(ConfigError, match=f"-o {key}=1: there is no setting '{key}'; did you mean '{near}"):
        loaded(assignments=(f"{key}=1",))


def test_one_that_is_like_none_is_refused_with_where_all_are_shown() -> None:
    with pytest.raises(ConfigError, match="there is no setting 'zzz'; --show-config shows all"):
        loaded(assignments=("zzz=1",))


def test_a_value_that_cannot_be_is_named_with_where_it_comes_from(tmp_path: Path) -> None:
    broker: dict[str, Any] = {"prefix": "RMQ_BROKER_"}
    file = tmp_path / "broker.toml"
    file.write_text('flush = "often"\n')

    with pytest.raises(ConfigError, match="RMQ_BROKER_FLUSH in the environment: flush must be"):
        load(BrokerConfig, environ={"RMQ_BROKER_FLUSH": "often"}, **broker)
    with pytest.raises(ConfigError, match=f"{file}: flush must be"):
        load(BrokerConfig, environ={}, file=file, **broker)
    with pytest.raises(ConfigError, match=r"^flush must be"):
        load(BrokerConfig, environ={}, assignments=("flush=often",), **broker)


def test_an_assignment_needs_an_equals_sign_and_takes_more_of_them() -> None:
    with pytest.raises(ConfigError, match="write it as key=value"):
        loaded(assignments=("name",))

    assert loaded(assignments=("name=a=b",)).name == "a=b"


def test_dashes_in_a_key_mean_underscores() -> None:
    assert loaded(assignments=("pause-s=3",)).pause_s == 3.0


def test_a_file_that_is_missing_or_no_toml_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml cannot be read: No such file"):
        loaded(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"sample\.toml is not TOML"):
        loaded(written(tmp_path, "name ="))


def test_what_the_class_itself_refuses_stays_a_config_error() -> None:
    with pytest.raises(ConfigError, match="size_bytes must not be negative"):
        loaded(assignments=("size_bytes=-1",))


def test_toml_of_a_config_reads_back_to_the_same_config(tmp_path: Path) -> None:
    config = Sample(name='quo"te\\ and ü', size_bytes=1 << 40, pause_s=0.1, loud=True, mode="async")

    text = as_toml(config, "rmq-try")

    assert loaded(written(tmp_path, text)) == config
    assert text.startswith("# Settings of rmq-try.")
    assert "# a pause\npause_s = 0.1\n" in text
    assert "# share_s is not set" in text
    assert "share_s" not in tomllib.loads(text)


def test_a_variable_that_is_nearly_a_setting_is_pointed_out_and_others_are_not() -> None:
    environ = {"S_PAUSE_": "1", "S_NAME": "fine", "S_SERVICE_HOST": "10.0.0.1", "OTHER_PAUSE_S": "1"}

    assert suspicious(Sample, "S_", environ) == ["S_PAUSE_ is not a setting: did you mean S_PAUSE_S?"]
