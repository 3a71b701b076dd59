"""Sending: routes, outboxes, the in-flight window, receipts."""
