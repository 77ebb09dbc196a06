"""Training: one core (state, step, loop, checkpoint, divergence), of which the GPT with emulated
attention and the student are models.
"""
