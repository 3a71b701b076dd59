"""Formats of RocketMQ that the importer reads."""
