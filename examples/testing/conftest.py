"""This line is all that tests need to have the fixture ``rmq_broker``."""

pytest_plugins = ["rmq.testing.plugin"]
