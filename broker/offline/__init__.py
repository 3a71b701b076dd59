"""The log of a stopped broker, or of a backup: read, verified, copied."""
