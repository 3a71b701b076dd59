"""The real broker inside a test process, and the pytest plugin that offers it as a fixture."""
