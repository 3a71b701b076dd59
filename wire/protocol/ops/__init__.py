"""Every operation, its request and its reply."""
