"""Measures rmq next to the machine's limits: through the public API, with every check on."""
