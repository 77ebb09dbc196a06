"""Which rows of arXiv 2510.04212 stand on the arithmetic that its training runs: the same trainings
on two plans.

Not here: the whole ablation table on the preset qiu-yao (studies.failure), and how the released
code was met (docs/kernels.md).
"""
