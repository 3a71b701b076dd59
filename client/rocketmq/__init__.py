"""
Reading a store of RocketMQ 4.9, and sending what it holds to a broker of ours. Nothing is ever written to the store.

The readers (``record``, ``bodies``, ``store_files``, ``queue_index``, ``log_walk``, ``config_files``) know the layouts
and nothing of rmq; ``survey`` says what a store holds, ``plan`` what goes where, ``take_over`` sends it.
"""
