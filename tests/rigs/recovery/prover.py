"""
Recovery from every place of a recording: each state is put on a disk, a broker is started on it, and judged.

Equal states are recovered once and judged as often as they come up, since more may have been promised meanwhile.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rmq.broker.config import BrokerConfig
from rmq.broker.store.directory import StoreError
from rmq.broker.store.files import Files
from rmq.wire.errors import WireError

from rigs.disk.crash import POLICIES, Crash, Image, crashes, digest, materialise
from rigs.disk.recording import Recording, RecordingFiles, memory_folder
from rigs.recovery.promises import History, violations
from rigs.recovery.served import Found, Recovered, log_of, recover, settings
from rigs.recovery.workload import Plan, record

SAVED = Path(__file__).parents[3] / ".cache" / "crashes"


class Failure(NamedTuple):
    """A state that was recovered wrongly, with all that is needed to see it again."""

    crash: Crash
    last_step: Any
    broken: list[str]

    def __str__(self) -> str:
        return "\n  ".join([f"{self.crash} (the last step: {self.last_step!r:.200}):", *self.broken[:6]])


class Report(NamedTuple):
    """How many states there were, how many different ones, and those that failed."""

    states: int
    different: int
    failures: list[Failure]

    def __str__(self) -> str:
        shown = [str(failure) for failure in self.failures[:3]]
        return "\n".join([f"{self.states} states, {self.different} different, {len(self.failures)} failed", *shown])


class Prover:
    """
    Recovers and judges the states of one recording.

    ``enough``: how many failures to look for; the search for a broken build ends with the first.
    ``recovering`` is the disk on which brokers recover; the real one if there is none.
    """

    def __init__(self, recording: Recording, plan: Plan, *, enough: int = 20, recovering: Files | None = None) -> None:
        self._recording = recording
        self._history = History(recording, plan.flush)
        self._plan = plan
        self._enough = enough
        self._recovering = recovering
        self._known: dict[bytes, Recovered | str] = {}
        self._rebuilt: dict[bytes, Found] = {}  # by what the log was
        self.states = 0
        self.failures: list[Failure] = []

    async def run(self, *, torn_seeds: Sequence[int], policies: Sequence[str] = POLICIES) -> Report:
        """Judge every state."""
        for crash in crashes(self._recording, torn_seeds=torn_seeds, policies=policies):
            await self.judge(crash)
            if len(self.failures) >= self._enough:
                break
        return Report(self.states, len(self._known), self.failures)

    async def judge(self, crash: Crash) -> None:
        """Recover a state, unless an equal one was, and note what it broke."""
        self.states += 1
        name = crash.digest
        if name not in self._known:
            self._known[name] = await self._recover(crash.image)
        recovered = self._known[name]
        broken = [recovered] if isinstance(recovered, str) else violations(self._history, crash, recovered)
        if broken:
            last = self._recording.steps[crash.prefix - 1].operation if crash.prefix else None
            self.failures.append(Failure(crash, last, broken))

    async def _recover(self, image: Image) -> Recovered | str:
        with TemporaryDirectory(prefix="rmq-crash-", dir=memory_folder()) as folder:
            directory = Path(folder, "data")
            materialise(image, directory)
            try:
                recovered = await recover(self._settings(directory), files=self._recovering)
                return recovered._replace(rebuilt=await self._rebuild(log_of(image)))
            except StoreError as error:
                return f"the start was refused: {error}"
            except (AssertionError, ArithmeticError, LookupError, OSError, ValueError, WireError) as error:
                return f"the start failed: {error!r}"

    async def _rebuild(self, log: Image) -> Found:
        """What the log alone says: everything else is left out."""
        name = digest(log)
        if name not in self._rebuilt:
            with TemporaryDirectory(prefix="rmq-log-", dir=memory_folder()) as folder:
                directory = Path(folder, "data")
                materialise(log, directory)
                self._rebuilt[name] = (await recover(self._settings(directory), drain=False)).found
        return self._rebuilt[name]

    def _settings(self, directory: Path) -> BrokerConfig:
        return settings(directory, flush=self._plan.flush, **dict(self._plan.settings))

    async def crash_again(self, crash: Crash, *, torn_seed: int, every: int = 1) -> Report:
        """
        Crash during the recovery from a crash, at every ``every``-th place: the promises are those of the first one.

        What the recovery itself wrote was not promised.
        """
        with TemporaryDirectory(prefix="rmq-again-", dir=memory_folder()) as folder:
            directory = Path(folder, "data")
            materialise(crash.image, directory)
            files = RecordingFiles(directory)
            await recover(self._settings(directory), files=files)
            offset = Random(torn_seed).randrange(every)
            for again in crashes(files.recording, torn_seeds=[torn_seed]):
                if again.prefix % every == offset:
                    await self.judge(crash._replace(image=again.image))
            shutil.rmtree(directory, ignore_errors=True)
        return Report(self.states, len(self._known), self.failures)


def save(recording: Recording, name: str) -> Path:
    """Keep a recording that failed, for ``--replay``: threads and sockets may do things in another order next time."""
    path = SAVED / f"{name}.pickle"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(recording))
    return path


def load(path: Path) -> Recording:
    """A recording that was kept."""
    recording = pickle.loads(path.read_bytes())
    assert isinstance(recording, Recording)
    return recording


async def record_in_memory(plan: Plan, **options: Any) -> Recording:
    """What a plan does to an empty directory."""
    with TemporaryDirectory(prefix="rmq-record-", dir=memory_folder()) as folder:
        config = settings(Path(folder), flush=plan.flush, **dict(plan.settings))
        return (await record(plan, Path(folder), config, **options)).recording
