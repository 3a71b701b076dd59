from __future__ import annotations

from rmq.broker.net.limits import ReceiveBudget


class Holder:
    """Somebody who wants ``needed`` bytes and tries again when told to."""

    def __init__(self, budget: ReceiveBudget, needed: int = 0) -> None:
        self.budget = budget
        self.needed = needed
        self.held = 0
        self.tries = 0

    def want(self, needed: int) -> bool:
        self.needed = needed
        granted = self.budget.charge(self, self.held, needed)
        if granted:
            self.held = needed
        return granted

    def budget_freed(self) -> None:
        self.tries += 1
        self.want(self.needed)


def test_charges_are_granted_up_to_the_limit() -> None:
    budget = ReceiveBudget(100)
    one, two, three = (Holder(budget) for _ in range(3))

    assert one.want(60)
    assert two.want(40)
    assert not three.want(1)

    assert budget.used == 100
    assert three.held == 0


def test_the_only_holder_gets_more_than_the_limit() -> None:
    budget = ReceiveBudget(100)
    one = Holder(budget)

    assert one.want(500)
    assert one.want(900)
    assert budget.used == 900


def test_who_waits_is_served_in_order_when_room_is_given_back() -> None:
    budget = ReceiveBudget(100)
    one, two, three, four = (Holder(budget) for _ in range(4))
    one.want(100)
    assert not two.want(50)
    assert not three.want(50)
    assert not four.want(50)

    one.want(0)

    assert (two.held, three.held, four.held) == (50, 50, 0)
    budget.give_back(two, two.held)
    assert four.held == 50
    assert budget.used == 100


def test_nobody_overtakes_who_waits_for_more() -> None:
    budget = ReceiveBudget(100)
    small, large, late = (Holder(budget) for _ in range(3))
    small.want(50)
    assert not large.want(80)

    assert not late.want(10)  # would fit, but then small frames could keep a large one out for ever
    assert late.tries == 0
    small.want(0)

    assert (large.held, late.held) == (80, 10)


def test_who_needs_less_than_it_holds_always_gets_it_and_leaves_the_line() -> None:
    budget = ReceiveBudget(100)
    one, two, three = (Holder(budget) for _ in range(3))
    one.want(90)
    two.want(10)
    assert not two.want(60)
    assert not three.want(5)

    assert two.want(0)

    assert three.held == 5
    assert budget.used == 95


def test_who_waits_and_goes_away_does_not_block_those_behind() -> None:
    budget = ReceiveBudget(100)
    one, two, three = (Holder(budget) for _ in range(3))
    one.want(50)
    two.want(90)
    three.want(40)

    budget.give_back(two, 0)

    assert three.held == 40
