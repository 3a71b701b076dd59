"""The loads of ``rmq-bench``, one module each."""
