"""What every process of rmq needs: clocks, logging, tasks, an event loop in a thread. No sockets."""
