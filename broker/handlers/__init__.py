"""One module a family of operations: request in, answer out. The only place that knows the wire and the services."""
