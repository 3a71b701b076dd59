"""The tables behind the broker: locks, parked pulls, offsets, members, topics."""
