"""Scripts are drawn by their seeds and by nothing else, and leave no kind of misfortune out."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from simulation import scripts
from simulation.groups import KINDS
from simulation.scripts import WAYS, Crash, Fail, Join, Kill, Leave, Reset, Script, Send, Step, mixed_script
from simulation.scripts import ordered_script as ordered

ORDERED = [ordered(seed) for seed in range(1, 101)]
MIXED = [mixed_script(seed) for seed in range(1, 101)]


@pytest.mark.parametrize("script", [ordered, mixed_script])
def test_a_seed_determines_a_script_which_can_be_played_as_it_is_printed(script: Callable[[int], Script]) -> None:
    assert script(7) == script(7)
    assert len({script(seed) for seed in range(50)}) == 50
    assert eval(str(script(3)), vars(scripts)) == script(3)


def test_a_test_run_has_steps_groups_failures_and_delays_of_every_kind() -> None:
    steps = [step for script in MIXED for step in script.steps]
    sends = [step for step in steps if isinstance(step, Send)]

    assert {type(step) for script in ORDERED for step in script.steps} == set(get_args(Step))
    assert {type(step) for step in steps} == set(get_args(Step)) - {Reset}
    assert {group.kind for script in MIXED for group in script.groups} == set(KINDS)
    assert {step.how for step in steps if isinstance(step, Fail)} == set(WAYS)
    assert {step.policy for step in steps if isinstance(step, Crash)} == {"kept", "lost", "torn"}
    assert {bool(send.level) for send in sends} == {send.delay_s is not None for send in sends} == {True, False}
    assert not any(send.level and send.delay_s is not None for send in sends)
    assert {send.bad for send in sends} >= {0, 1, 2, 99}


def test_two_of_five_mixed_scripts_are_calm_so_that_everything_has_to_happen_once() -> None:
    calm = [script for script in MIXED if not any(isinstance(step, Crash | Kill) for step in script.steps)]

    assert 30 < len(calm) < 60


@pytest.mark.parametrize("drawn", [ORDERED, MIXED], ids=["ordered", "mixed"])
def test_a_member_joins_once_before_it_leaves_and_an_instance_has_one_life_at_a_time(drawn: list[Script]) -> None:
    for script in drawn:
        alive: set[str] = set()
        names: set[str] = set()
        for step in script.steps:
            if isinstance(step, Join | Leave | Kill):
                shared = script.group(step.member).shared
                whose = step.member if shared else step.member.rpartition("-")[0]
            if isinstance(step, Join):
                assert step.member not in names
                names.add(step.member)
                assert whose not in alive
                alive.add(whose)
            elif isinstance(step, Leave | Kill):
                alive.remove(whose)
