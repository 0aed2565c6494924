"""NumPy oracles, written from the specification alone."""
