"""
Loads settings from, in rising priority: defaults, a TOML file, the environment, the command line.

Works on any flat dataclass whose fields are ``str``, ``int``, ``float`` or ``bool``, perhaps ``| None``; a field's
``metadata["help"]`` is its one line of documentation. An unknown key is refused with the nearest known one, a value
of a wrong type with its origin.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rmq.wire.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Config = TypeVar("Config", bound=DataclassInstance)

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_SIZE = re.compile(r"([+-]?\d[\d_]*)\s*([kmg]?i?)b?\Z", re.IGNORECASE)
_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class Setting(NamedTuple):
    """One field of a config class."""

    name: str
    kind: type[Any]
    optional: bool
    default: Any
    help: str


def settings_of(config: type[DataclassInstance]) -> dict[str, Setting]:
    """The settings of a config class, in order."""
    hints = typing.get_type_hints(config)
    return {field.name: _setting(field, hints[field.name]) for field in dataclasses.fields(config)}


def load(
    config: type[Config], *, prefix: str, file: Path | None = None, environ: Mapping[str, str],
    aliases: Mapping[str, str] | None = None, assignments: Iterable[str] = (), flags: Mapping[str, Any] | None = None,
) -> Config:  # fmt: skip
    """
    Return a config from all its sources; later ones win, and a named flag wins over ``-o``.

    ``aliases`` gives fields a second variable of the environment, weaker than the one with the prefix.

    Raises:
        ConfigError: an unknown key, or an invalid value.
    """
    settings = settings_of(config)
    own = {name: prefix + name.upper() for name in settings}
    values = _from_file(settings, file) if file is not None else {}
    origins = dict.fromkeys(values, str(file))
    for variables in (aliases or {}, own):
        found = _from_environment(settings, variables, environ)
        values |= found
        origins |= {name: f"{variables[name]} in the environment" for name in found}
    said = _from_assignments(settings, assignments)
    for name, value in (flags or {}).items():
        if value is not None:
            said[name] = from_text(settings[name], value, f"--{name.replace('_', '-')}")
    unseen = {name: origin for name, origin in origins.items() if name not in said}
    try:
        return config(**values | said)
    except ConfigError as error:
        origin = _to_blame(config, values | said, unseen)
        if origin is None:
            raise
        raise ConfigError(f"{origin}: {error}") from error


def _to_blame(config: type[Any], values: Mapping[str, Any], origins: Mapping[str, str]) -> str | None:
    """Return the origin of the one value without which the config is valid, unless it is the command line."""
    for name, origin in origins.items():
        try:
            config(**{other: value for other, value in values.items() if other != name})
        except ConfigError:
            continue
        return origin
    return None


def from_text(setting: Setting, text: str, where: str) -> Any:
    """Return the value that ``text`` means for a setting; integers may be sizes such as ``64MiB``."""
    text = text.strip()
    if setting.optional and text.lower() in ("", "none"):
        return None
    if setting.kind is bool:
        if text.lower() in _TRUTH:
            return _TRUTH[text.lower()]
        raise ConfigError(f"{where}: {setting.name} must be true or false, not {text!r}")
    if setting.kind is int:
        return _size(setting, text, where)
    if setting.kind is float:
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{where}: {setting.name} must be a number, not {text!r}") from None
    return text


def as_toml(value: DataclassInstance, command: str) -> str:
    """Every setting with its help and its value, as a TOML file for ``command``."""
    heading = f"Settings of {command}. A setting left out has its default; -o and the environment override this file."
    settings = settings_of(type(value))
    return toml_of(heading, [(getattr(value, name), name, setting.help) for name, setting in settings.items()])


def toml_of(heading: str, settings: Iterable[tuple[Any, str, str]]) -> str:
    """Values with their names and help, as a TOML file."""
    lines = [f"# {heading}\n"]
    for value, name, text in settings:
        shown = f"{name} = {_literal(value)}" if value is not None else f"# {name} is not set"
        lines.append(f"# {text}\n{shown}\n" if text else f"{shown}\n")
    return "\n".join(lines)


def suspicious(config: type[DataclassInstance], prefix: str, environ: Mapping[str, str]) -> list[str]:
    """
    Environment variables that look like a setting with a typing error.

    Others are let pass without a word: Kubernetes alone makes half a dozen for a service called ``rmq-broker``.
    """
    from difflib import get_close_matches

    names = [prefix + name.upper() for name in settings_of(config)]
    found = []
    for name in environ:
        near = get_close_matches(name, names, n=1, cutoff=0.85) if name.startswith(prefix) else []
        if near and near[0] != name and name not in names:
            found.append(f"{name} is not a setting: did you mean {near[0]}?")
    return found


def _setting(field: dataclasses.Field[Any], hint: Any) -> Setting:
    optional = isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)
    if optional:
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        hint = type(typing.get_args(hint)[0])
    return Setting(field.name, hint, optional, field.default, field.metadata.get("help", ""))


def _from_file(settings: Mapping[str, Setting], file: Path) -> dict[str, Any]:
    import tomllib

    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        text = f"{file} cannot be read: {error.strerror}; --show-config prints a file to begin with"
        raise ConfigError(text) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error
    return {name: _typed(_known(settings, name, str(file)), value, str(file)) for name, value in values.items()}


def _from_environment(
    settings: Mapping[str, Setting], variables: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, Any]:
    return {
        name: from_text(settings[name], environ[variable], variable)
        for name, variable in variables.items()
        if variable in environ
    }


def _from_assignments(settings: Mapping[str, Setting], assignments: Iterable[str]) -> dict[str, Any]:
    values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"-o {assignment}: write it as key=value")
        setting = _known(settings, name.strip(), f"-o {assignment}")
        values[setting.name] = from_text(setting, text, f"-o {assignment}")
    return values


def _known(settings: Mapping[str, Setting], name: str, where: str) -> Setting:
    setting = settings.get(name) or settings.get(name.replace("-", "_"))
    if setting is None:
        from difflib import get_close_matches

        near = get_close_matches(name, settings, n=1, cutoff=0.5)
        advice = f"did you mean {near[0]!r}?" if near else "--show-config shows all"
        raise ConfigError(f"{where}: there is no setting {name!r}; {advice}")
    return setting


def _typed(setting: Setting, value: Any, where: str) -> Any:
    """A TOML value as the field wants it: whole numbers do for floats, texts with a unit for sizes."""
    if setting.kind is int and type(value) is str:
        return _size(setting, value, where)
    if setting.kind is float and type(value) is int:
        return float(value)
    if type(value) is not setting.kind:
        raise ConfigError(f"{where}: {setting.name} must be {_PLAIN[setting.kind]}, not {value!r}")
    return value


_PLAIN = {str: "a quoted string", int: "a whole number", float: "a number", bool: "true or false"}


def _size(setting: Setting, text: str, where: str) -> int:
    match = _SIZE.match(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f"{where}: {setting.name} must be a whole number or a size such as 64MiB, not {text!r}")
    return int(match[1].replace("_", "")) * _UNITS[match[2].lower()]


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        import json

        return json.dumps(value, ensure_ascii=False)  # a JSON text is a TOML basic string
    return f"{value:_}" if isinstance(value, int) else repr(value)
