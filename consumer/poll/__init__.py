"""The consumer for programs that ask for messages."""
