"""Scripts of all modes are drawn by their seeds and by nothing else, and leave no kind of misfortune out."""

from __future__ import annotations

from typing import get_args

import pytest

from simulation import mixed_scripts
from simulation.mixed_history import KINDS, Group
from simulation.mixed_scripts import WAYS, MixedStep, Post, Reject, group_of, instance_of, mixed_script
from simulation.scripts import Crash, Join, Kill, Leave

SCRIPTS = [mixed_script(seed) for seed in range(1, 101)]


def test_a_seed_gives_the_same_script_every_time_and_another_seed_another_one() -> None:
    assert mixed_script(7) == mixed_script(7)
    assert len(set(SCRIPTS)) == 100


def test_the_scripts_of_a_test_run_have_steps_and_groups_of_every_kind() -> None:
    steps = [step for script in SCRIPTS for step in script.steps]

    assert {type(step) for step in steps} == set(get_args(MixedStep))
    assert {group.kind for script in SCRIPTS for group in script.groups} == set(KINDS)
    assert {step.how for step in steps if isinstance(step, Reject)} == set(WAYS)
    assert {step.policy for step in steps if isinstance(step, Crash)} == {"kept", "lost", "torn"}


def test_messages_wait_by_levels_and_by_times_and_fail_never_sometimes_and_always() -> None:
    posts = [step for script in SCRIPTS for step in script.steps if isinstance(step, Post)]

    assert {bool(post.level) for post in posts} == {post.delay_s is not None for post in posts} == {True, False}
    assert not any(post.level and post.delay_s is not None for post in posts)
    assert {post.bad for post in posts} >= {0, 1, 2, 99}


def test_two_of_five_scripts_are_calm_so_that_everything_has_to_happen_once() -> None:
    calm = [script for script in SCRIPTS if not any(isinstance(step, Crash | Kill) for step in script.steps)]

    assert 30 < len(calm) < 60


def test_nobody_joins_twice_or_leaves_without_having_joined_and_an_instance_has_one_life_at_a_time() -> None:
    for script in SCRIPTS:
        alive: set[str] = set()
        names: set[str] = set()
        for step in script.steps:
            if isinstance(step, Join):
                assert step.member not in names
                names.add(step.member)
                whose = step.member if script.group(step.member).shared else step.member.rpartition("-")[0]
                assert whose not in alive
                alive.add(whose)
            elif isinstance(step, Leave | Kill):
                whose = step.member if script.group(step.member).shared else step.member.rpartition("-")[0]
                alive.remove(whose)


@pytest.mark.parametrize(("member", "group", "instance"), [("g1-2", "g1", "2"), ("g2-i3-4", "g2", "i3")])
def test_members_are_named_after_their_group_and_instance(member: str, group: str, instance: str) -> None:
    assert group_of(member) == group
    assert instance_of(member) == instance


def test_a_script_that_is_printed_can_be_played_as_it_is_printed() -> None:
    names = {**vars(mixed_scripts), "Group": Group}

    assert eval(str(mixed_script(3)), names) == mixed_script(3)
