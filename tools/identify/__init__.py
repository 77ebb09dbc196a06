"""Attention kernels that people use, and how their arithmetic is recognized.

Here are adapters that call a kernel, files of a kernel's inputs and outputs, and the search for the
plan that gives the same bits. The plans themselves are in attention.plans.presets, the tables of
studies in experiments/questions.
"""
