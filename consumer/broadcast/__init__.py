"""Members that receive every message of their topics."""
