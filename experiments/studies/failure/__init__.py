"""The claims of arXiv 2510.04212 (Qiu and Yao), each with a verdict: `roundscope reproduce
qiu-yao`.
"""
