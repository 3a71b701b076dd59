"""
Every event that the packages log, found in their sources.

An event is what a call ``log.warning("dotted.name", key=...)`` names. A name that comes as an argument of the function
around the call is looked up where that function is called; one that cannot be found is an error, since a page that
leaves an event out would not be noticed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}
_DOTTED = re.compile(r"[a-z_]+(\.[a-z_]+)+\Z")
_LOGGER = re.compile(r"(\b|_)(log|logger|logging|getLogger\(.*\)|get_logger\(.*\))\Z")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Unclear(Exception):
    """A log call whose event or keys cannot be told from the source."""


@dataclass
class Event:
    """What is known of an event from all the places that log it."""

    component: str
    name: str
    levels: list[str] = field(default_factory=list)
    loggers: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def add(self, level: str, logger: str, keys: Iterable[str]) -> None:
        """Another place that logs it."""
        for known, more in ((self.levels, [level]), (self.loggers, [logger]), (self.keys, keys)):
            known += [item for item in more if item not in known]


def events_of(root: Path, components: Mapping[str, Sequence[str]]) -> list[Event]:
    """The events of the components, each in its folders, by component and name."""
    found: dict[tuple[str, str], Event] = {}
    for component, folders in components.items():
        paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
        sources = {path: path.read_text() for path in paths}
        modules = {str(path.relative_to(root)): text for path, text in sources.items()}
        for name, level, logger, keys in _Package(modules).calls():
            event = found.setdefault((component, name), Event(component, name))
            event.add(level, logger, keys)
    return [found[key] for key in sorted(found)]


def events_in(modules: Mapping[str, str]) -> list[tuple[str, str, str, list[str]]]:
    """Name, level, logger and keys of every log call in the modules of one package, given as path and source."""
    return list(_Package(modules).calls())


class _Package:
    def __init__(self, modules: Mapping[str, str]) -> None:
        self._trees = {path: ast.parse(text) for path, text in modules.items()}
        self._calls = [node for tree in self._trees.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]

    def calls(self) -> Iterator[tuple[str, str, str, list[str]]]:
        for path, tree in self._trees.items():
            logger = _logger_of(path, tree)
            for call, function in _with_functions(tree):
                try:
                    level = _level_of(call)
                    if level is None:
                        continue
                    names, keys = self._names(call.args[0], function), _keys(call, function)
                except Unclear as error:
                    raise Unclear(f"{path}:{call.lineno}: {error}") from None
                for name in names:
                    yield name, level, logger, keys

    def _names(self, value: ast.expr, function: _Function | None) -> list[str]:
        """The events that an expression may name."""
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return [value.value]
        if isinstance(value, ast.IfExp):
            return [*self._names(value.body, function), *self._names(value.orelse, function)]
        if isinstance(value, ast.Name) and function is not None:
            parameters = [arg.arg for arg in function.args.args if arg.arg != "self"]
            if value.id in parameters:
                return self._handed(function.name, parameters.index(value.id), value.id)
        raise Unclear(f"which event {ast.unparse(value)} is cannot be told from the source")

    def _handed(self, function: str, index: int, parameter: str) -> list[str]:
        """The events that callers hand to a function that logs them."""
        names: list[str] = []
        for call in self._calls:
            if _called(call) != function:
                continue
            named = [keyword.value for keyword in call.keywords if keyword.arg == parameter]
            if any(isinstance(value, ast.Starred) for value in call.args):
                names += self._pairs()
            else:
                given = named or call.args[index : index + 1]
                names += [name for value in given for name in self._names(value, None)]
        if not names:
            raise Unclear(f"nobody calls {function}")
        return list(dict.fromkeys(names))

    def _pairs(self) -> list[str]:
        """Events that travel as a pair of name and advice, as what a listener returned is judged."""
        firsts = [
            node.elts[0]
            for tree in self._trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.Tuple) and len(node.elts) == 2
        ]
        values = [first.value for first in firsts if isinstance(first, ast.Constant)]
        return [value for value in values if isinstance(value, str) and _DOTTED.match(value)]


def _with_functions(tree: ast.Module) -> Iterator[tuple[ast.Call, _Function | None]]:
    """Every call, with the innermost function around it."""

    def walk(node: ast.AST, function: _Function | None) -> Iterator[tuple[ast.Call, _Function | None]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                yield child, function
            yield from walk(child, child if isinstance(child, _Function) else function)

    return walk(tree, None)


def _level_of(call: ast.Call) -> str | None:
    func = call.func
    if not isinstance(func, ast.Attribute):
        return None
    if isinstance(func.value, ast.Name) and func.value.id == "log":
        return LEVELS.get(func.attr)
    if func.attr in LEVELS and _LOGGER.search(ast.unparse(func.value)):
        raise Unclear(f"what logs must be called log, not {ast.unparse(func.value)}")
    return None


def _called(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _keys(call: ast.Call, function: _Function | None) -> list[str]:
    keys: list[str] = []
    for keyword in call.keywords:
        if keyword.arg is None:
            keys += _keys_of_dict(keyword.value, function)
        else:
            keys.append("exception" if keyword.arg == "exc_info" else keyword.arg)
    if _called(call) == "exception":
        keys.append("exception")
    return keys


def _keys_of_dict(value: ast.expr, function: _Function | None) -> list[str]:
    """The keys of a dict that was made in the function that logs it."""
    for node in ast.walk(function) if function is not None else ():
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(value, ast.Name)):
            continue
        if [ast.unparse(target) for target in node.targets] == [value.id]:
            return [str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)]
    raise Unclear(f"the keys in {ast.unparse(value)} cannot be told from the source")


def _logger_of(path: str, tree: ast.Module) -> str:
    """The name of the module's ``log``; ``__name__`` is where it will be imported from."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "log" and isinstance(node.value, ast.Call):
            name = node.value.args[0]
            if isinstance(name, ast.Constant):
                return str(name.value)
    return "rmq." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
