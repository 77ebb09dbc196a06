"""Which rows of arXiv 2510.04212 hold on the arithmetic that its training runs?

The same trainings are run on two plans. The whole ablation table, on the preset qiu-yao, is in
papers.failure_2510_04212; how the released code was matched is in docs/findings/kernels.md.
"""
