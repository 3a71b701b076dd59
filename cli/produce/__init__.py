"""What `rmq-produce` adds to a producer."""
