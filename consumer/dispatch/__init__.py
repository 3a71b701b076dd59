"""Calls the listener, and decides what happens to messages that fail."""
