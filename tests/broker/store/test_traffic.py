from __future__ import annotations

from rmq.broker.store.traffic import MAX_TOLD, Flow, Traffic


def test_what_goes_in_and_out_is_counted_by_topic() -> None:
    traffic = Traffic()
    traffic.took("orders", 3, 300)
    traffic.took("orders", 1, 50)
    traffic.gave("orders", 4, 350)
    traffic.gave("audit", 7, 70)

    assert traffic.busiest(10) == {"orders": Flow(4, 350, 4, 350), "audit": Flow(0, 0, 7, 70)}
    assert traffic.total() == Flow(4, 350, 11, 420)


def test_without_traffic_there_are_zeros() -> None:
    assert Traffic().total() == Flow()
    assert Traffic().busiest(10) == {}


def test_the_sum_does_not_fall_when_a_topic_is_gone() -> None:
    traffic = Traffic()
    traffic.took("orders", 3, 300)
    traffic.forget("orders")
    traffic.forget("orders")
    traffic.took("orders", 1, 10)

    assert traffic.busiest(10) == {"orders": Flow(1, 10)}
    assert traffic.total() == Flow(4, 310)


def test_only_the_busiest_are_told_and_never_too_many() -> None:
    traffic = Traffic()
    for i in range(MAX_TOLD + 10):
        traffic.took(f"t{i}", i + 1, 1)

    assert list(traffic.busiest(2)) == [f"t{MAX_TOLD + 9}", f"t{MAX_TOLD + 8}"]
    assert len(traffic.busiest(1 << 40)) == MAX_TOLD
    assert traffic.busiest(-1) == {}
