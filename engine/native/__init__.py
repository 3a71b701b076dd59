"""The native engine: our own frames to our own broker."""
