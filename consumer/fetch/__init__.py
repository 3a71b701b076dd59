"""Pulls messages of assigned queues into a cache."""
