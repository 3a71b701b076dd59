"""What stores and serves queues: connections to a broker, and the requests that travel over them."""
