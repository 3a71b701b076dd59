"""The processes that a load consists of."""
