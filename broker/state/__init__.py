"""The broker's tables. Pure: time is an argument."""
