"""Measuring rmq beside the machine's limits and beside other brokers: through the public API, with every check on."""
