"""The commands rmq-broker, rmq-consume, rmq-produce, rmq-admin and rmq-bench."""
