"""`rmq-admin top`: one view of a broker, refreshed."""
