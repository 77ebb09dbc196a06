"""Replays of any model: what is stored, how far they are, where they begin, what they say of the
failure.
"""
