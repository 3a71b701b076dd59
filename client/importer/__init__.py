"""Reads a store of RocketMQ 4.9 and sends its content to a broker of ours. Never writes to the store."""
