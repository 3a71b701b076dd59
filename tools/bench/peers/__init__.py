"""Other brokers, each with the quickest of its Python clients, measured as ours is."""
