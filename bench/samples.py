"""Sampled stacks, as :mod:`rmq.bench.profiled` writes them: read, counted, and shown by function and by line. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

# What of a path says nothing: where the checkout, an installed copy, packages or Python itself lie.
_WHERE = re.compile(r"^.*/(?:site-packages/rmq|\.typing/rmq|site-packages|lib(?:64)?/python3\.\d+)/")
# The frame that runs the event loop: what is seen in it, and in nothing that it calls, is the loop's own C code.
_RUNNER = "asyncio/runners.py run"
LOOP = "(event loop and its system calls)"


@dataclass(frozen=True, order=True)
class Frame:
    """A place in a stack; without a line where it stands for no code of Python's."""

    name: str  # "client/producer/producer.py send"
    line: int = 0


Stack = tuple[Frame, ...]  # the innermost last


def stacks(dump: str) -> Counter[Stack]:
    """How often each stack was seen; a line that is cut off is left out."""
    return Counter(_stack(line) for line in dump.split("\n")[:-1])


def _stack(line: str) -> Stack:
    frames: list[Frame] = []
    for part in line.split(";"):
        file, name, number = part.split("|") if "|" in part else (part, "", "0")
        frame = Frame(f"{_WHERE.sub('', file)} {name}".strip(), int(number))
        if frame.name == _RUNNER:
            break  # what started the loop is the same in all
        frames.append(frame)
    return tuple(reversed(frames)) or (Frame(LOOP),)


@dataclass(frozen=True)
class Share:
    """How much of the time was spent at a place: in it alone, and together with all that it called."""

    name: str
    own: float  # 0 to 1
    whole: float


def by_function(found: Counter[Stack]) -> list[Share]:
    """The shares of functions, the most expensive by itself first."""
    return _shares(found, lambda frame: frame.name)


def by_whole(found: Counter[Stack]) -> list[Share]:
    """The same, the most expensive with all that it calls first."""
    return sorted(by_function(found), key=lambda share: (-share.whole, -share.own, share.name))


def by_line(found: Counter[Stack]) -> list[Share]:
    """The shares of lines."""
    return _shares(found, lambda frame: f"{frame.name}:{frame.line}" if frame.line else frame.name)


def _shares(found: Counter[Stack], named: Callable[[Frame], str]) -> list[Share]:
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for stack, times in found.items():
        names = [named(frame) for frame in stack]
        own[names[-1]] += times
        for name in set(names):  # recursion counts once
            whole[name] += times
    total = found.total()
    shares = [Share(name, own[name] / total, times / total) for name, times in whole.items()]
    return sorted(shares, key=lambda share: (-share.own, -share.whole, share.name))


def folded(found: Counter[Stack]) -> str:
    """The stacks one a line, outermost first, as programs that draw flame graphs read them."""
    by_name: Counter[str] = Counter()
    for stack, times in found.items():
        by_name[";".join(frame.name for frame in stack)] += times
    return "".join(f"{names} {times}\n" for names, times in sorted(by_name.items()))


def table(shares: Iterable[Share], us_a_message: float) -> str:
    """Shares, also as microseconds of processor time a message."""
    lines = ["   own      us   whole      us"]
    for share in shares:
        lines.append(
            f"{share.own:6.1%} {share.own * us_a_message:7.3f}  {share.whole:6.1%} "
            f"{share.whole * us_a_message:7.3f}  {share.name}"
        )
    return "\n".join(lines) + "\n"


def changes(before: Mapping[str, float], after: Mapping[str, float], most: int) -> str:
    """What changed most in what functions cost themselves, in microseconds a message."""
    names = sorted({*before, *after}, key=lambda name: (-abs(after.get(name, 0.0) - before.get(name, 0.0)), name))
    rows = [("(all)", sum(before.values()), sum(after.values()))]
    rows += [(name, before.get(name, 0.0), after.get(name, 0.0)) for name in names[:most]]
    lines = [" before    after   change"]
    lines += [f"{old:7.3f}  {new:7.3f}  {new - old:+7.3f}  {name}" for name, old, new in rows]
    return "\n".join(lines) + "\n"
