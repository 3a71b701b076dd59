"""
Where the processor time goes, in the broker and in a client: ``make profile``.

    make profile                                        all parts, a minute or two
    make profile ARGS="--quick ordered"                 one of them, in some seconds
    make profile ARGS="--dir before send-bodies pull"
    make profile ARGS="--dir after --against before send-bodies pull"

Each part has a real broker process and a real client process, both under :mod:`rmq.bench.profiled`; only what they do
between the word to begin and the last message is looked at. For each of the two it prints what a message costs in
processor time, and how that is shared out by function and by line: *own* is the code itself with the C functions and
system calls that it makes, *whole* includes the functions of Python's that it calls. The same goes into a directory as
text, together with folded stacks, of which other programs draw flame graphs, and as JSON, with which a later profile
is compared.

Microseconds a message, not shares, are what to compare before and after a change: a share also moves when something
else gets faster. The figures are of one run, on a machine that may do other things; a few percent are noise.

It is not called ``profile``: beside a script of this folder that would hide the module of Python's that Spark imports.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import samples
from .options import Load
from .processes import START_S, BrokerProcess, Child, scratch, worker

CLIENT = "rmq.bench.profile_client"
LAUNCHER = "rmq.bench.profiled"
FUNCTIONS, WHOLE, LINES = 25, 20, 15  # so many are printed
BATCHES = Load(messages=500_000)
SINGLES = Load(messages=100_000, batch=1)
APART = Load(messages=50_000, batch=1, connections=64)
ONE_A_CALL = Load(messages=500_000, batch=1)


@dataclass(frozen=True)
class Part:
    """What is profiled: a load that is sent, so many times, or consumed."""

    meaning: str
    load: Load
    repeats: int
    sent: str = ""  # "before", "meanwhile": when another process sends what is consumed


PARTS = {
    "send-bodies": Part("send_bodies, batches of 500, 64 calls in flight", BATCHES, 8),
    "send-messages": Part("send_many of Message objects, batches of 500, 64 calls in flight", BATCHES, 3),
    "send-single": Part("send of one message a call, 64 calls in flight", SINGLES, 1),
    "send-apart": Part("send of one message a call, 64 connections with a call in flight each", APART, 1),
    "pull": Part("ordered catch-up of a backlog, listener batches of 500", BATCHES, 6, "before"),
    "ordered": Part("ordered catch-up of a backlog, one message a call", ONE_A_CALL, 2, "before"),
    "live": Part("ordered, one message a call, of what another process sends meanwhile", ONE_A_CALL, 2, "meanwhile"),
}


class Watched:
    """A process under the launcher, between two moments: its stacks and its processor time."""

    def __init__(self, child: Child, dump: Path) -> None:
        self.name = child.name
        self._pid = child.pid
        self._dump = dump
        self._begins, self._began = dump.stat().st_size, _processor_s(child.pid)

    def end(self) -> None:
        """Look no further."""
        used = [late - early for late, early in zip(_processor_s(self._pid), self._began, strict=True)]
        self._user_s, self._system_s = used
        with self._dump.open("rb") as dump:
            size = self._dump.stat().st_size - self._begins
            dump.seek(self._begins)
            self.stacks = samples.stacks(dump.read(size).decode(errors="replace"))

    def text(self, messages: int) -> str:
        """What to print."""
        user, system = self._user_s / messages * 1e6, self._system_s / messages * 1e6
        head = (
            f"{self.name}: {user + system:.3f} us of processor time a message ({user:.3f} user, {system:.3f} system), "
            f"{self.stacks.total()} samples\n"
        )
        if not self.stacks:
            return f"{head}too short to be seen\n"
        tables = {
            "functions by what they cost themselves": samples.by_function(self.stacks)[:FUNCTIONS],
            "functions by what they cost with all that they call": samples.by_whole(self.stacks)[:WHOLE],
            "lines": samples.by_line(self.stacks)[:LINES],
        }
        return head + "".join(f"\n{name}\n{samples.table(of, user + system)}" for name, of in tables.items())

    def own_us(self, messages: int) -> dict[str, float]:
        """What each function costs itself, in microseconds a message."""
        us = (self._user_s + self._system_s) / messages * 1e6
        return {share.name: round(share.own * us, 6) for share in samples.by_function(self.stacks) if share.own}


def main() -> None:
    """Parse the command line, profile, print and write."""
    parser = argparse.ArgumentParser(description="Where the processor time of broker and client goes.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--dir", type=Path, default=Path("bench/results/profile"), help="default: %(default)s")
    parser.add_argument("--against", type=Path, metavar="DIR", help="an earlier profile to compare with")
    parser.add_argument("--flush", choices=["sync", "async"], default="async", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="a hundredth of it, to see that it works")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"there is no part {unknown[0]}: choose among {', '.join(PARTS)}")
    names = options.parts or list(PARTS)
    if options.against and (missing := [name for name in names if not (options.against / f"{name}.json").is_file()]):
        parser.error(f"there is no profile of {missing[0]} in {options.against}")
    earlier = {name: json.loads((options.against / f"{name}.json").read_text()) for name in names if options.against}
    options.dir.mkdir(parents=True, exist_ok=True)
    for name in names:
        print(profile(name, options.dir, options.flush, earlier.get(name), is_quick=options.quick), flush=True)
    print(f"texts and folded stacks are in {options.dir}", file=sys.stderr)


def profile(name: str, into: Path, flush: str, before: dict[str, Any] | None, *, is_quick: bool) -> str:
    """Profile one part; its files are written, its text returned, with what changed since an earlier one."""
    part = PARTS[name]
    load, repeats = part.load, part.repeats
    if is_quick:
        load, repeats = dataclasses.replace(load, messages=load.messages // 100), 1
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        dumped = folder / "broker"
        options = ("-o", f"default_queues={load.queues}")  # of the topic, which the first send makes
        broker = BrokerProcess(folder / "data", flush, *options, launcher=[LAUNCHER, str(dumped)])
        stack.callback(broker.close)
        orders = {"what": name, "address": broker.address, "load": load.as_object(), "repeats": repeats}
        if part.sent == "before":
            with _sender(orders) as sender:
                sender.go()
                sender.told()
        beside = stack.enter_context(_sender(orders)) if part.sent == "meanwhile" else None
        watched = _watch(broker, dumped, folder / "client", orders, beside)
    messages = load.messages * repeats
    head = f"== {name}: {part.meaning}; {messages:,} messages of {load.size} bytes, flush {flush}\n"
    text = head + "".join(f"\n-- {one.text(messages)}" for one in watched)
    own = {one.name: one.own_us(messages) for one in watched}
    if before is not None:
        compared = ((who, samples.changes(before[who], own[who], FUNCTIONS)) for who in own)
        text += "".join(f"\n-- {who}: what functions cost themselves, us a message\n{of}" for who, of in compared)
    (into / f"{name}.txt").write_text(text)
    (into / f"{name}.json").write_text(json.dumps(own, indent=1) + "\n")
    for one in watched:
        (into / f"{name}.{one.name}.folded").write_text(samples.folded(one.stacks))
    return text


@contextmanager
def _sender(orders: dict[str, Any]) -> Iterator[Child]:
    """A client of its own that sends what is to be consumed, when it is told to; it is not profiled."""
    load = orders["load"] | {"batch": BATCHES.batch}
    with worker(CLIENT, **orders | {"what": "send-bodies", "load": load}) as sender:
        yield sender


def _watch(
    broker: Child, broker_dump: Path, client_dump: Path, orders: dict[str, Any], beside: Child | None
) -> list[Watched]:
    client = Child("client", [sys.executable, "-m", LAUNCHER, str(client_dump), CLIENT, json.dumps(orders)])
    try:
        client.told(START_S)
        watched = [Watched(broker, broker_dump), Watched(client, client_dump)]
        client.go()
        if beside is not None:
            beside.go()
        client.told()
        for one in watched:
            one.end()
        if beside is not None:
            beside.told()
    finally:
        client.close()
    return watched


def _processor_s(pid: int) -> tuple[float, float]:
    """The processor time that a process has used, in user and in system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick


if __name__ == "__main__":
    main()
