"""Which rows of arXiv 2510.04212 hold on the arithmetic that its training runs?"""
