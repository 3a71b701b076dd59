"""What the machine allows without a broker."""
