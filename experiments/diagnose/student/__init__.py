"""The student of block-scaled training: its units (layer, matrix, event), its run, its replays, its
own evidence.
"""
