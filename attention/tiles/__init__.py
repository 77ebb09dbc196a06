"""Loops over the tiles of a head, what block formats ask of tiles, and which tiles a trace looks
at.

The equations of one tile are in `attention.algorithm`; arrays of many heads are the engines'
business.
"""
