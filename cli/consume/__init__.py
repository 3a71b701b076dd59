"""Parts of `rmq-consume`: listeners and the wait for broker and topics."""
