"""Which plan of an operation gives the numbers that a call returned."""
