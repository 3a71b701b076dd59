"""
Bad input for as long as one likes: ``python tests/chaos/input.py --minutes 10``.

The broker runs in this process without sockets. With ``atheris`` installed its coverage guides the bytes; otherwise
the mutations of the property tests run one seed after the other. A finding is printed with its seed, which
``--seed N --count 1`` repeats, and the exit code is 1. Memory is looked at all the time: it must not grow.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from rigs.bad_input.mutations import any_batch, any_bytes, any_frame
from rigs.bad_input.target import FuzzPeer, Target

MAX_GROWTH_MIB = 400  # from the first look on; the newest 32 MiB of the log are kept, small batches at four times that
LOOK_EVERY = 2000


def resident_mib() -> float:
    """The resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def one_seed(target: Target, seed: int) -> str:
    """Everything that a seed stands for; what became of its last input."""
    rng = Random(seed)
    peer = target.member() if rng.random() < 0.9 else FuzzPeer(target)
    became = ""
    for _ in range(rng.choice((1, 1, 2, 8))):
        make = rng.choice((any_bytes, any_frame, any_frame, any_frame, any_batch, any_batch))
        data = any_frame(rng, target.epoch) if make is any_frame else make(rng)
        became = target.judge(peer, data)
        if became == "closed":
            break
    target.finish(peer)
    return became


class Look:
    """Now and then: what was stored is there, and the memory is bounded."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._began = target.loop.time()
        self._first: float | None = None
        self.inputs = 0

    @property
    def minutes(self) -> float:
        """For how long it has been going on."""
        return (self._target.loop.time() - self._began) / 60

    def note(self) -> None:
        """One more input is done."""
        self.inputs += 1
        if self.inputs % LOOK_EVERY:
            return
        self._target.check_kept()
        now = resident_mib()
        self._first = self._first or now
        print(f"{self.inputs} inputs in {self.minutes:.1f} min, {now:.0f} MiB resident", flush=True)
        assert now - self._first < MAX_GROWTH_MIB, f"memory grew from {self._first:.0f} to {now:.0f} MiB"


def run_seeds(target: Target, args: argparse.Namespace) -> int:
    """The mutations, seed by seed."""
    look, became = Look(target), Counter[str]()
    for seed in range(args.seed, args.seed + args.count if args.count else 1 << 62):
        if not args.count and look.minutes >= args.minutes:
            break
        try:
            became[one_seed(target, seed)] += 1
            look.note()
        except Exception as error:
            print(f"seed {seed}: {error or repr(error)}\nrepeat it: --seed {seed} --count 1", flush=True)
            raise
    target.check_kept()
    print(f"{look.inputs} inputs from seed {args.seed} on: {dict(became)}; nothing found")
    return 0


def run_atheris(target: Target, atheris: Any, args: argparse.Namespace) -> int:
    """Bytes that its coverage of our code leads to; ends the process by itself."""
    look = Look(target)

    def one_input(data: bytes) -> None:
        if data[:1] < b"\x80":
            peer = target.member()
            target.judge(peer, data[1:])
            target.finish(peer)
        else:
            one_seed(target, int.from_bytes(data[1:9], "big"))
        look.note()

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={int(args.minutes * 60)}"], one_input)
    atheris.Fuzz()
    return 0


def main() -> int:
    """Run for the minutes asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=0, help="so many seeds instead of minutes")
    parser.add_argument("--plain", action="store_true", help="no atheris, even if it is installed")
    args = parser.parse_args()
    with Target() as target:
        if not args.plain and not args.count:
            try:
                return run_atheris(target, importlib.import_module("atheris"), args)
            except ModuleNotFoundError:
                print("atheris is not installed: running the mutations seed by seed", flush=True)
        return run_seeds(target, args)


if __name__ == "__main__":
    sys.exit(main())
