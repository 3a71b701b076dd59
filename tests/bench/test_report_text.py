"""The text of a report: ratios first, nothing unfavourable left out."""

from __future__ import annotations

import re

from rmq.bench.findings import read
from rmq.bench.report_plots import plots
from rmq.bench.report_text import NOTHING, text

from rigs.made_up_findings import everything


def made() -> str:
    found = read(everything())
    return text(found, plots(found))


def section(name: str) -> str:
    return re.split(r"^### ", made(), flags=re.MULTILINE)[1:][
        ["Ratios", "What was measured, and how", "Plots", "Unfavourable cases"].index(name)
    ]


def test_ratios_come_first_then_the_method_the_plots_and_what_speaks_against_us() -> None:
    assert re.findall(r"^### (.*)$", made(), re.MULTILINE) == [
        "Ratios", "What was measured, and how", "Plots", "Unfavourable cases",
    ]  # fmt: skip


def test_each_target_has_what_is_wanted_what_was_found_and_the_command_that_repeats_it() -> None:
    ratios = section("Ratios")

    assert "Targets met: 3, not met: 2, not shown: 2." in ratios
    assert (
        "| P1.floor | of the floor | >= 0.5 | **0.700** (0.600 to 0.800) | met | async "
        "| `rmq-bench produce --size 100` |" in ratios
    )
    assert "| <= 3 ms | **6.00** ms (5.00 to 7.00) | **NOT MET** | async | `rmq-bench latency` |" in ratios
    assert "| >= 4 | - | not shown: nats-server is not installed |" in ratios
    assert "![Targets, and what was found](images/bench-targets.svg)" in ratios


def test_each_figure_has_its_key_and_its_durability() -> None:
    method = section("What was measured, and how")

    assert "The machine: cores 2, fdatasync ms 0.123." in method
    assert "#### Sending: `rmq-bench produce --size 100`\n\nMessages 1,000, size 100, rounds 3." in method
    assert "| `produce.bodies` | bodies, by send_bodies | async | **100** | 90.0 to 110 | msg/s |" in method
    assert "| `produce.floor` | a bare loop | - | **160** | 150 to 170 | msg/s |" in method
    assert "| XADD \\| MAXLEN | appendonly, each second |" in method
    assert "`rmq-bench recovery`\n\nNot shown: the disk is full." in method


def test_what_was_missed_what_wavers_who_is_ahead_and_what_is_not_shown_is_told() -> None:
    against = section("Unfavourable cases")

    assert "- **P7.wake.p99**, send to listener, p99 (async): **6.00** ms" in against
    assert "wanted <= 3 ms: 2.0 times as much" in against
    assert "wanted >= 0.8: 25% short" in against
    assert "- **P1.peer**, of a peer (async): **4.20** (3.00 to 5.00), wanted >= 4: missed in 1 of 3" in against
    assert "XADD | MAXLEN (appendonly, each second) 30.0 msg/s, Message objects (async) 20.0: 67% of it" in against
    assert "- **P1.nats**, of another peer (async): nats-server is not installed" in against
    assert "- **P9**, by rmq-bench recovery: the disk is full" in against


def test_where_nothing_speaks_against_us_that_is_said() -> None:
    printed = everything()
    printed["reports"] = [printed["reports"][2]]
    printed["verdicts"] = printed["reports"][0]["verdicts"][:1]
    found = read(printed)

    assert "every target was met, in every round" in text(found, plots(found))


def test_without_a_run_it_says_how_to_make_one() -> None:
    assert text(read({"benchmark": "all", "reports": []}), []) == NOTHING
