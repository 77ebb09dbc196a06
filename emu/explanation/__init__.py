"""Step-by-step explanations of one rounding or one addition, in exact integers and fractions.

This package shares no code with `emu.roundings.rule`, which it explains. `experiments.look` draws
the explanations.
"""
