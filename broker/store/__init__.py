"""The commit log and the indexes that are derived from it."""
