"""Figures of a broker, sampled: the data of `rmq-admin top`."""
