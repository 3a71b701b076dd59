"""The broker daemon: it stores batches, serves pulls and holds the queue locks of ordered groups."""
