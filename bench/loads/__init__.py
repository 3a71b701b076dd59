"""The loads of `rmq-bench`."""
