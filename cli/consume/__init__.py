"""What `rmq-consume` adds to a consumer."""
