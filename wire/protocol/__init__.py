"""Frames, payloads and the greeting."""
