"""Replays of any model: storage, progress, where they begin, and what they say of the failure."""
