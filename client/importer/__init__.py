"""
Reads a store of RocketMQ 4.9 and sends its content to a broker of ours. Never writes to the store.

The readers (``store_files``, ``queue_index``, ``log_walk``, ``config_files``) know the layouts of RocketMQ and nothing
of rmq; ``survey`` classifies what a store holds, ``plan`` decides what goes where, ``take_over`` sends it.
"""
