"""The smallest set of events that must be exact, of any model: ddmin and what holds its result
up.
"""
