"""Reads what ``rmq-bench all --json`` found: runs with their figures, and targets with their results. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from rmq.bench.figures import Figure, Verdict

_Kind = TypeVar("_Kind", Figure, Verdict)
_LIMITS = {"floor", "socket_to_file", "fdatasync", "echo"}
_NOT_ABOUT = {"benchmark", "command", "targets", "figures", "verdicts", "why_not", "percentiles"}


class NotAReport(Exception):
    """The JSON is not one that a report can be made of; the text is one sentence for the user."""


@dataclass(frozen=True)
class Run:
    """One command line, and what it found."""

    benchmark: str
    command: str
    about: Mapping[str, Any]  # how it was measured
    figures: tuple[Figure, ...]
    verdicts: tuple[Verdict, ...]
    percentiles: Mapping[str, Mapping[str, float]]  # of latencies, in milliseconds, by what was measured
    why_not: str = ""  # why it found nothing


@dataclass(frozen=True)
class Findings:
    """All of them, and where."""

    machine: Mapping[str, Any]
    runs: tuple[Run, ...]
    verdicts: tuple[Verdict, ...]  # of all targets, in their order

    def command_of(self, verdict: Verdict) -> str:
        """The command line that repeats it; empty where none does."""
        return next((run.command for run in self.runs if any(one.key == verdict.key for one in run.verdicts)), "")

    def peers_ahead(self) -> Iterator[tuple[Run, Figure, Figure]]:
        """Where a figure of ours is below that of another broker in the same run: the run, ours, theirs."""
        for run in self.runs:
            rates = [figure for figure in run.figures if figure.unit.endswith("/s") and figure.samples]
            for theirs in (figure for figure in rates if whose(figure) == "peer"):
                for ours in (figure for figure in rates if whose(figure) == "rmq"):
                    if ours.middle < theirs.middle:
                        yield run, ours, theirs


def whose(figure: Figure) -> str:
    """Return ``rmq``, ``machine`` or ``peer``, by the key and the durability, which peers say in words of their own."""
    if figure.flush is None or _LIMITS.intersection(figure.key.split(".")):
        return "machine"
    return "rmq" if figure.flush in ("sync", "async") else "peer"


def score(verdict: Verdict, value: float) -> float:
    """Return how much better than wanted a value is: 2.0 is twice as good, 1.0 just good enough."""
    of_low = [value / verdict.at_least] if verdict.at_least else []
    of_high = [verdict.at_most / max(value, 1e-9)] if verdict.at_most is not None else []
    return min(of_low + of_high)


def is_target(verdict: Verdict) -> bool:
    """True if it has a bound, or was not measured."""
    return verdict.at_least is not None or verdict.at_most is not None or not verdict.samples


def read(found: Mapping[str, Any]) -> Findings:
    """
    The object of the JSON.

    Raises:
        NotAReport: it is that of another command, or of a quick run, whose numbers mean nothing.
    """
    if found.get("benchmark") != "all" or not isinstance(found.get("reports"), list):
        raise NotAReport("this is not what `rmq-bench all --json` prints")
    if found.get("quick"):
        raise NotAReport("this was a quick run, whose numbers mean nothing: leave --quick out")
    runs = tuple(_run(one) for one in found["reports"])
    verdicts = tuple(_made(Verdict, one) for one in found.get("verdicts", ()))
    return Findings(found.get("machine", {}), runs, verdicts or tuple(one for run in runs for one in run.verdicts))


def _run(found: Mapping[str, Any]) -> Run:
    return Run(
        found["benchmark"],
        found.get("command", f"rmq-bench {found['benchmark']}"),
        {name: value for name, value in found.items() if name not in _NOT_ABOUT},
        tuple(_made(Figure, one) for one in found["figures"]),
        tuple(_made(Verdict, one) for one in found["verdicts"]),
        found.get("percentiles", {}),
        found.get("why_not", ""),
    )


def _made(kind: type[_Kind], found: Mapping[str, Any]) -> _Kind:
    return kind(**{field.name: found[field.name] for field in fields(kind) if field.name in found})
