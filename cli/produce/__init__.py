"""Parts of `rmq-produce`: the reader of its input."""
