"""
The story of rmq in one run: ``make demo``, or ``python examples/demo.py``.

A thousand order events go through two workers of one ordered group. One of them is killed with ``kill -9`` in the
middle of its work, and the other takes over. A payment that fails holds its queue up, and ends as a dead letter that is
replayed. Spark reads the same topic as a table. Everything runs as the real commands, on a free port and in a folder
that goes away; whatever is claimed is checked, and a claim that does not hold ends the program with code 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from demo_stage import (
    Broken,
    Stage,
    Worker,
    broker,
    chapter,
    follow,
    promise,
    say,
    shown,
    ticking,
    typed,
    wait_until,
    why_no_spark,
)

ORDERS, STEPS, QUEUES = 100, 10, 4
EVENTS = ORDERS * STEPS
HALF = EVENTS // 2
Lock = dict[str, Any]  # a row of `rmq-admin lock-status --json`
NEXT = """
What to try next

   rmq-broker start                        a broker of your own, in one terminal
   rmq-consume --orderly --topic orders    a worker, in a second one
   echo paid | rmq-produce --topic orders --key o-17      and a message
   rmq-admin lock-status --watch           who holds which queue, live
   rmq-admin explain rmq-consume           why a queue moves, or does not
   rmq-admin top                           the broker at work

   docs/tutorial.md      from nothing to a service that retries, in 20 minutes
   docs/howto.md         recipes; docs/operations.md: the night on call
   examples/             programs to begin with; examples/quickstart.py first
   make pipeline         orders through rmq and Spark to a report
   (commands: with .venv/bin/ in front, or after `. .venv/bin/activate`)
"""


def main() -> int:
    """Tell the story; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-spark", action="store_true", help="leave Spark out; DEMO_SPARK=0 does the same")
    wanted = not parser.parse_args().no_spark and os.environ.get("DEMO_SPARK", "1") != "0"
    try:
        tell(wanted)
    except Broken as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: stopped", file=sys.stderr)
        return 130
    return 0


def tell(spark_wanted: bool) -> None:
    """All chapters, and how long they took."""
    missing = why_no_spark() if spark_wanted else "it was to be left out"
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-demo-", ignore_cleanup_errors=True)))
        stage = stack.enter_context(broker(folder))
        say(f"rmq, shown with real processes. A broker is ready on {stage.address};")
        say("its data lie in a folder that goes away.")
        send(stage)
        work(stage)
        fail(stage)
        if missing is None:
            read_with_spark(stage)
        else:
            chapter(5, "Spark", f"Not shown: {missing}.")
        took = time.monotonic() - began
    say(f"\nEvery promise held, in {took:.0f} s.")
    say(NEXT.rstrip())


# The chapters


def send(stage: Stage) -> None:
    """The first half of the events, and where they went."""
    why = f"""{HALF} events of {ORDERS} orders. The order's number is the key: events with the same key go to the
    same queue, and stay in the order in which they were sent."""
    chapter(1, "Send", why)
    typed("rmq-produce --topic orders --key-field order --tag packing events.jsonl")
    receipts = produce(stage, "packing", first=1, last=STEPS // 2)
    queues = defaultdict(set)
    for event, receipt in zip(events(1, STEPS // 2), receipts, strict=True):
        queues[event["order"]].add(receipt["queue_id"])
    held = Counter(queue for of in queues.values() for queue in of)
    shown("\n".join(f"queue {queue}: {held[queue]} orders" for queue in range(QUEUES)))
    promise(len(receipts) == HALF and all(receipt["durable"] for receipt in receipts), "all are on the disk")
    promise(all(len(of) == 1 for of in queues.values()), "each order has one queue")


def work(stage: Stage) -> None:
    """Two workers; then one of them, after the other was killed."""
    arguments = ("--topic", "orders", "--group", "billing", "--listener", "demo_worker:on_event")
    with stage.worker("first", *arguments) as first, stage.worker("second", *arguments) as second:
        before = share(stage, first, second)
        take_over(stage, first, second, before)


def share(stage: Stage, first: Worker, second: Worker) -> list[Lock]:
    """Both workers consume the first half; the locks that they hold."""
    why = """Two workers of one group share the queues. The broker holds a lock for each queue: only its owner gets
    its messages, one after the other."""
    chapter(2, "Consume in order", why)
    typed("rmq-consume --orderly --topic orders --group billing   (twice)")
    follow("consumed", HALF, lambda: seen(first, second))
    held: list[Lock] = []

    def shared() -> bool:
        held[:] = locks(stage)
        return len({lock["owner"] for lock in held}) == 2

    wait_until("both workers hold queues", shared)
    show_locks(held, first, second)
    promise(len(held) == QUEUES, "each queue has one owner, and each worker has queues")
    promise(not gaps(first, second), "no event is missing, and the steps of each order came in order")
    return held


def take_over(stage: Stage, first: Worker, second: Worker, before: list[Lock]) -> None:
    """The second half, during which one worker dies."""
    why = """The other half of the events. In the middle of it the second worker is killed with kill -9: it can neither
    finish nor say goodbye. Its queues are given to the first one as soon as it is certain that it is gone (5 s after
    its last answer); a higher epoch on each lock shuts out whatever the dead might still send."""
    chapter(3, "Crash and take-over", why)
    lost = {lock["queue_id"]: int(lock["epoch"]) for lock in before if is_of(second, lock)}
    mark = len(second.lines)
    produce(stage, "shipping", first=STEPS // 2 + 1, last=STEPS)
    wait_until("the second worker is in the middle of its work", lambda: len(second.lines) > mark + 20)
    killed_at = time.monotonic()
    second.process.send_signal(signal.SIGKILL)
    second.process.wait()
    typed(f"kill -9 {second.process.pid}")
    follow("consumed", EVENTS, lambda: seen(first, second))
    heard = zip(first.lines, first.said_at, strict=False)
    resumed_at = min(at for line, at in heard if line["queue"] in lost and at > killed_at)
    after = locks(stage)
    show_locks(after, first, second)
    promise(len(after) == QUEUES and all(is_of(first, lock) for lock in after), "the first worker has all queues now")
    higher = all(int(lock["epoch"]) > lost.get(lock["queue_id"], 0) for lock in after)
    promise(higher, f"its epochs are higher on the {len(lost)} queues that it took over")
    promise(not gaps(first, second), f"all {EVENTS} events were consumed, those of each order in order")
    again = len(first.lines) + len(second.lines) - EVENTS
    say(f"   The queues went on {resumed_at - killed_at:.1f} s after the kill. {again} events came twice: delivery is")
    say("   at least once, and what was not committed comes again, in order.")


def fail(stage: Stage) -> None:
    """A message that fails holds its queue up; it becomes a dead letter, and is replayed."""
    why = """Three payments; the second one fails. Passing it over would break the order, so its queue waits while it is
    tried again. One command says what is going on; after three attempts it becomes a dead letter."""
    chapter(4, "Fail, find out why, and mend it", why)
    stage.run("rmq-admin", "topic", "create", "payments", "--queues", "1")
    stage.run("rmq-produce", "--topic", "payments", stdin="o-1 paid\no-2 declined\no-3 paid\n")
    arguments = ("--topic", "payments", "--group", "shop", "--listener", "demo_worker:on_payment")
    with stage.worker("shop", *arguments, "-o", "max_attempts=3") as shop:
        wait_until("the second attempt failed", lambda: len(tries(shop, "o-2 declined")) == 2)
        explained = stage.show("rmq-admin", "explain", "shop")
        promise("RETRYING" in explained and "card 4711" in explained, "the broker knows why the queue does not move")
        promise("o-3 paid" not in bodies(shop), "the payment behind it waits")
        wait_until("the queue went on", lambda: "o-3 paid" in bodies(shop))
        promise([line["attempt"] for line in tries(shop, "o-2 declined")] == [1, 2, 3], "it was tried three times")
        (letter,) = stage.json("rmq-admin", "dlq", "show", "shop")
        typed("rmq-admin dlq show shop   (some columns)")
        shown(f"{letter['body']}: {letter['reason']}")
        promise(letter["body"] == "o-2 declined", "it is a dead letter, and its queue went on")
        say("   Now the card is mended, and the dead letter is delivered again:")
        (stage.folder / "mended").touch()
        stage.show("rmq-admin", "dlq", "replay", "shop", "--yes")
        wait_until("the payment was taken", lambda: any(line["done"] for line in tries(shop, "o-2 declined")))
        promise(True, "the payment that failed has been taken")


def read_with_spark(stage: Stage) -> None:
    """The same topic as a DataFrame."""
    why = """The topic is also a table. A data source that comes with rmq reads it, in parallel, with offsets, keys and
    times as columns. Here it counts the messages by their tags."""
    chapter(5, "Spark", why)
    typed("python examples/spark_count.py ADDRESS orders")
    began = time.monotonic()
    counted = ticking("Spark starts", lambda: stage.spark("spark_count.py", stage.address, "orders"))
    shown(counted)
    promise(f"orders has {EVENTS} messages" in counted, "Spark counts as many messages as were sent")
    say(f"   It took {time.monotonic() - began:.0f} s, most of them to start.")


# What is sent, and what was seen


def events(first: int, last: int) -> list[dict[str, Any]]:
    """These steps of every order, the orders interleaved."""
    return [{"order": f"o-{order}", "step": step} for step in range(first, last + 1) for order in range(1, ORDERS + 1)]


def produce(stage: Stage, tag: str, first: int, last: int) -> list[dict[str, Any]]:
    """Send these steps of every order; the receipts."""
    lines = "".join(json.dumps(event) + "\n" for event in events(first, last))
    how = ("--topic", "orders", "--key-field", "order", "--tag", tag)
    receipts = stage.run("rmq-produce", *how, "--json", stdin=lines)
    return [json.loads(line) for line in receipts.splitlines()]


def seen(*workers: Worker) -> int:
    """How many different messages were consumed."""
    return len({(line["queue"], line["offset"]) for worker in workers for line in list(worker.lines)})


def gaps(*workers: Worker) -> list[str]:
    """
    What is wrong with the order: per queue each offset follows the one before, per order each step.

    The epoch tells who had a queue first, since it grows with every change of owner. A message that came again was not
    committed when its worker was killed.
    """
    lines = sorted(itertools.chain(*(worker.lines for worker in workers)), key=lambda line: line["epoch"])
    next_offset: dict[int, int] = defaultdict(int)
    next_step: dict[str, int] = defaultdict(lambda: 1)
    wrong = []
    for line in lines:
        event = json.loads(line["body"])
        if line["offset"] < next_offset[line["queue"]]:
            continue
        if line["offset"] != next_offset[line["queue"]]:
            wrong.append(f"queue {line['queue']}: {line['offset']} instead of {next_offset[line['queue']]}")
        if event["step"] != next_step[event["order"]]:
            wrong.append(f"{event['order']}: step {event['step']} instead of {next_step[event['order']]}")
        next_offset[line["queue"]] = line["offset"] + 1
        next_step[event["order"]] = event["step"] + 1
    return wrong


def locks(stage: Stage) -> list[Lock]:
    """The locks of the group on its topic."""
    (rows,) = stage.json("rmq-admin", "lock-status", "--group", "billing")
    return [row for row in rows if row["topic"] == "orders"]


def show_locks(held: list[Lock], *workers: Worker) -> None:
    """The lock table in short: the real one has more columns than fit here."""
    typed("rmq-admin lock-status --group billing   (some columns)")
    rows = ["QUEUE  OWNER   EPOCH       EXPIRES IN"]
    for lock in held:
        owner = next((worker.name for worker in workers if is_of(worker, lock)), "?")
        rows.append(f"{lock['queue_id']:>5}  {owner:<6}  {lock['epoch']:<10}  {lock['expires_in_s']:.0f} s")
    shown("\n".join(rows))


def is_of(worker: Worker, lock: Lock) -> bool:
    """Whether this worker holds the lock: the process id is part of a member's name."""
    return f"@{worker.process.pid}#" in lock["owner"]


def tries(worker: Worker, body: str) -> list[dict[str, Any]]:
    """What became of a message, delivery by delivery."""
    return [line for line in list(worker.lines) if line["body"] == body]


def bodies(worker: Worker) -> list[str]:
    """What was done so far."""
    return [line["body"] for line in list(worker.lines) if line["done"]]


if __name__ == "__main__":
    sys.exit(main())
