"""arXiv 2506.08027, Recipes for Pre-training LLMs with MXFP8: its claims tested.

They are tested on a small GPT and on the student-teacher proxy.
"""
