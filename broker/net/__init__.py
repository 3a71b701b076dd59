"""Connections: frames in, replies out, and the limits of each."""
