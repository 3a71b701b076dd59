"""The broker daemon: it stores batches, serves pulls and grants the leases of groups."""
