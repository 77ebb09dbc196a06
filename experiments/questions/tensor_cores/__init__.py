"""How tensor cores bias long sums, and in which order this machine adds."""
