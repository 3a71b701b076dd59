"""Sampled stacks are read, counted and shown."""

from __future__ import annotations

from rmq.bench.samples import LOOP, Frame, by_function, by_line, by_whole, changes, folded, stacks, table

START = "/opt/lib/python3.11/asyncio/runners.py|run|118;<frozen runpy>|run_module|226"
PACK = f"/w/.typing/rmq/wire/batch/batch.py|encode|10;/w/.typing/rmq/client/producer/producer.py|send|7;{START}"
CHECK = f"/w/.typing/rmq/wire/batch/batch.py|encode|12;/w/.typing/rmq/client/producer/producer.py|send|7;{START}"


def test_a_stack_begins_below_the_event_loop_and_names_files_by_their_place_in_the_project() -> None:
    (stack,) = stacks(PACK + "\n")

    assert stack == (Frame("client/producer/producer.py send", 7), Frame("wire/batch/batch.py encode", 10))


def test_files_of_an_installed_copy_of_packages_and_of_python_lose_what_is_before_them() -> None:
    for file, shown in (
        ("/v/lib/python3.12/site-packages/rmq/wire/batch/batch.py", "wire/batch/batch.py f"),
        ("/v/lib/python3.12/site-packages/msgpack/__init__.py", "msgpack/__init__.py f"),
        ("/usr/lib64/python3.13/json/decoder.py", "json/decoder.py f"),
        ("<string>", "<string> f"),
    ):
        assert list(stacks(f"{file}|f|1\n")) == [(Frame(shown, 1),)]


def test_what_is_seen_in_the_runner_alone_is_the_event_loop() -> None:
    assert list(stacks(START + "\n")) == [(Frame(LOOP),)]


def test_a_line_that_is_cut_off_does_not_count() -> None:
    assert stacks(f"{PACK}\n{CHECK[:40]}").total() == 1


def test_own_time_is_that_of_the_innermost_frame_and_whole_time_that_of_all_above_it() -> None:
    found = stacks(f"{PACK}\n{PACK}\n{CHECK}\n{START}\n")

    assert [(share.name, share.own, share.whole) for share in by_function(found)] == [
        ("wire/batch/batch.py encode", 0.75, 0.75),
        (LOOP, 0.25, 0.25),
        ("client/producer/producer.py send", 0.0, 0.75),
    ]
    assert [share.name for share in by_whole(found)] == [
        "wire/batch/batch.py encode",
        "client/producer/producer.py send",
        LOOP,
    ]
    assert [(share.name, share.own) for share in by_line(found)][:2] == [
        ("wire/batch/batch.py encode:10", 0.5),
        (LOOP, 0.25),
    ]


def test_a_function_that_calls_itself_counts_once_a_stack() -> None:
    (share,) = by_function(stacks("a.py|f|1;a.py|f|2\n"))

    assert (share.own, share.whole) == (1.0, 1.0)


def test_folded_stacks_have_one_line_each_outermost_first() -> None:
    found = stacks(f"{PACK}\n{CHECK}\n{START}\n")

    assert folded(found) == f"{LOOP} 1\nclient/producer/producer.py send;wire/batch/batch.py encode 2\n"


def test_a_table_gives_shares_and_microseconds() -> None:
    text = table(by_whole(stacks(f"{PACK}\n{START}\n{START}\n{START}\n")), 2.0)

    assert text.splitlines() == [
        "   own      us   whole      us",
        f" 75.0%   1.500   75.0%   1.500  {LOOP}",
        " 25.0%   0.500   25.0%   0.500  wire/batch/batch.py encode",
        "  0.0%   0.000   25.0%   0.500  client/producer/producer.py send",
    ]


def test_changes_are_told_the_greatest_first_below_the_sum() -> None:
    text = changes({"f": 1.0, "g": 0.5, "gone": 0.2}, {"f": 0.4, "g": 0.5, "new": 0.1}, 3)

    assert text.splitlines() == [
        " before    after   change",
        "  1.700    1.000   -0.700  (all)",
        "  1.000    0.400   -0.600  f",
        "  0.200    0.000   -0.200  gone",
        "  0.000    0.100   +0.100  new",
    ]
