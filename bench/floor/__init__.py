"""The least that a broker in Python could do: what ours is measured against."""
