"""Scripts are drawn by their seeds and by nothing else, and leave no kind of misfortune out."""

from __future__ import annotations

from typing import get_args

from simulation.scripts import Join, Kill, Leave, Step, script


def test_a_seed_gives_the_same_script_every_time_and_another_seed_another_one() -> None:
    assert script(7) == script(7)
    assert len({script(seed) for seed in range(50)}) == 50


def test_the_scripts_of_a_test_run_have_steps_of_every_kind() -> None:
    found = {type(step) for seed in range(1, 101) for step in script(seed).steps}

    assert found == set(get_args(Step))


def test_nobody_joins_twice_or_leaves_without_having_joined() -> None:
    for seed in range(1, 101):
        steps = script(seed).steps
        joined = [step.member for step in steps if isinstance(step, Join)]
        gone = [step.member for step in steps if isinstance(step, Leave | Kill)]

        assert len(set(joined)) == len(joined)
        assert len(set(gone)) == len(gone)
        assert set(gone) <= set(joined)


def test_a_script_that_is_printed_can_be_played_as_it_is_printed() -> None:
    from simulation import scripts

    assert eval(str(script(3)), vars(scripts)) == script(3)
