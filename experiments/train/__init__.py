"""Training: one core (step, loop, checkpoint, spikes) for several models.

These are the GPT with emulated attention and the student.
"""
