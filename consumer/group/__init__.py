"""Membership: which queues are ours, and under which lease."""
