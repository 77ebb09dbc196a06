"""The diagnosis of the student of block-scaled training.

Here are its units (layer, matrix, event), its run, its replays, and its own evidence.
"""
