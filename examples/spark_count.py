"""
Count the messages of a topic with Spark, by tag.

    rmq-broker start
    seq 1000 | rmq-produce --topic orders
    python examples/spark_count.py 127.0.0.1:10911 orders

Needs `pip install 'rmq[spark]'`, and Java 17 or newer (`rmq[java]` has one): no activated environment, no JAVA_HOME, no
spark-submit.
"""

from __future__ import annotations

import sys

from rmq.spark import one_line, session


def main(broker: str = "127.0.0.1:10911", topic: str = "orders") -> None:
    """Print how many messages the topic has, in all and by tag."""
    spark = session("count")
    messages = spark.read.format("rmq").option("broker", broker).option("topic", topic).option("columns", "tag").load()
    print(f"{topic} has {messages.count()} messages")
    messages.groupBy("tag").count().orderBy("tag").show()
    spark.stop()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(one_line(error))
