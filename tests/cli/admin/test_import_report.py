"""What an import tells, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

from rmq.cli.admin.rocketmq_import import report_object, report_text, summary
from rmq.cli.output.render import to_json
from rmq.client.importer.plan import Plan, Wishes, make_plan
from rmq.client.importer.survey import Store
from rmq.client.importer.take_over import Outcome

from support.rocketmq_store import StoreBuilder


def plan_of(root: Path) -> Plan:
    with StoreBuilder(root, start=4096, first_offsets={("orders", 1): 70}) as store:
        store.topics(**{"orders": 2, "%RETRY%billing": 1})
        for n in range(6):
            store.put("orders", n % 2, b"%d" % n)
        store.put("%RETRY%billing", 0, b"again")
        store.put("orders", 0, sysflag=4)
        store.put("SELF_TEST_TOPIC")
        store.delay("orders", 1, b"later", 3)
        store.offsets({"orders@billing": {0: 2, 1: 72}})
        store.delays({3: 0})
        store.config["subscriptionGroup.json"] = "{}"
    return make_plan(Store(root), Wishes())


REPORT = """\
messages
TOPIC          QUEUE  MESSAGES  OLD_OFFSETS  NEW_OFFSETS  OLD_TOPIC
RETRY-billing      0         1          0-0          0-0  %RETRY%billing
orders             0         3          0-2          0-2
orders             1         3        70-72          0-2

delayed
TOPIC   QUEUE  MESSAGES             FIRST_DUE              LAST_DUE
orders      1         1  2023-11-14T22:13:30Z  2023-11-14T22:13:30Z

progress of groups
GROUP    TOPIC   QUEUE  OLD_OFFSET  NEW_OFFSET
billing  orders      0           2           2
billing  orders      1          72           2

left out
KIND                          MESSAGES
prepared                             1
system topic SELF_TEST_TOPIC         1

7 messages of 2 topics, 1 delayed: nothing was sent
"""


def test_a_report_for_people_fits_a_terminal(tmp_path: Path) -> None:
    text = report_text(plan_of(tmp_path), None)

    assert text == REPORT
    assert max(map(len, text.splitlines())) <= 80


def test_a_report_for_programs_has_all_of_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)

    told = json.loads(to_json(report_object(plan, Outcome(sent=4, before=3, waiting_sent=1))))

    assert (told["messages"], told["waiting"]) == (7, 1)
    assert told["result"] == {"sent": 4, "sent_before": 3, "waiting_sent": 1, "waiting_sent_before": 0}
    assert told["queues"][2] == {
        "topic": "orders", "queue_id": 1, "messages": 3, "old_first": 70, "old_last": 72, "new_first": 0,
        "new_last": 2, "holes": 0, "old_topic": "orders",
    }  # fmt: skip
    assert told["left_out"] == {"prepared": 1, "system topic SELF_TEST_TOPIC": 1}
    assert told["damage"] == told["notes"] == []
    assert told["log"]["torn_bytes"] == 0


def test_progress_that_was_not_moved_is_told(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)

    text = report_text(plan, Outcome(sent=7, waiting_sent=1, groups=[(plan.groups[0], 9)]))

    assert "billing  orders      0           2           9  was here before: not moved to 2" in text


def test_what_an_earlier_run_did_is_told(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)

    assert summary(plan, Outcome(sent=7, waiting_sent=1)).endswith("7 messages of 2 topics, 1 delayed: all are stored")
    assert summary(plan, Outcome(sent=4, before=3, waiting_sent=1)).endswith("; 3 of them by an earlier run")


def test_damage_and_notes_are_lines_that_no_terminal_obeys(tmp_path: Path) -> None:
    with StoreBuilder(tmp_path) as store:
        store.put("t", 0, b"body")
        store.put("t", 0, b"body")
    path = tmp_path / "commitlog" / f"{0:020}"
    path.write_bytes(path.read_bytes().replace(b"body", b"\x1bdoy", 1))
    plan = make_plan(Store(tmp_path), Wishes())
    plan.notes = ["a note \x1b[2J"]

    text = report_text(plan, None)

    where = "- 00000000000000000000 at 0: the record has a body that does not match its checksum (lost: t/0 @0)\n"
    assert f"damaged\n{where}\nnotes\n" in text
    assert "notes\n- a note \\x1b[2J\n" in text
