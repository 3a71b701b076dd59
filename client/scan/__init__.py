"""Topics read as tables, without a group."""
