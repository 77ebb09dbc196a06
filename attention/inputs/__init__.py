"""What q, k and v may be, and what a call does with them first: rotary positions, packed sequences,
scales of FP8, and which query stands at which key.
"""
