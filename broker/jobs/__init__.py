"""Periodic and background work of the broker."""
