"""What benchmarks send."""

from __future__ import annotations

import json

from rmq.bench.options import Load


def test_the_messages_are_as_many_as_asked_all_of_their_size_and_all_different() -> None:
    batches = Load(messages=1003, size=16, batch=100).bodies()

    assert [len(batch) for batch in batches] == [100] * 10 + [3]
    bodies = [body for batch in batches for body in batch]
    assert {len(body) for body in bodies} == {16}
    assert len(set(bodies)) == 1003


def test_the_same_load_gives_the_same_bodies_again() -> None:
    load = Load(messages=10, size=16, batch=3)

    assert load.bodies() == load.bodies()


def test_producers_share_the_messages_and_nothing_is_left_over() -> None:
    load = Load(messages=10, producers=4, keys=True)

    shares = [load.share(part) for part in range(4)]

    assert [share.messages for share in shares] == [3, 3, 2, 2]
    assert {share.producers for share in shares} == {1}
    assert all(share.keys for share in shares)


def test_a_load_goes_to_another_process_and_is_the_same_there() -> None:
    load = Load(messages=7, size=3, tags=8, keys=True, connections=2)

    assert Load(**json.loads(json.dumps(load.as_object()))) == load
