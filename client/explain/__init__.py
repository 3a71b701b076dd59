"""Explains why a queue of a group advances, or does not."""
