"""The client processes of a load."""
