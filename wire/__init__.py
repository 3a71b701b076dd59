"""Frames, batches, operations and errors: the language every part of rmq speaks, without I/O and without a clock."""
