"""Attention kernels that people run, and how their arithmetic is recognised.

Here: adapters that call a kernel, files of its inputs and outputs, the search for the plan that
gives the same bits. Not here: the plans themselves (attention.plans.presets) and the tables of
studies.
"""
