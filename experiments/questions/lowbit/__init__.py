"""Attention in few bits that trains: recipes, what leaks in each, and what cures it."""
