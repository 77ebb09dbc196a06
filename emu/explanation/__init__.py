"""Step-by-step explanations of one rounding or one addition, in exact integers and fractions.

This package shares no code with `emu.roundings.rule`, which it explains. `drawing` draws the
explanations in bits; it imports rich, and the other modules do not import it.
"""
