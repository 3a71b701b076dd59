"""Shared by all commands: options, settings, logging, exit codes."""
