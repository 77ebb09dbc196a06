"""Training: one core (state, step, loop, checkpoint, divergence) for several models.

These are the GPT with emulated attention and the student.
"""
